// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge/pick.h"

#include <algorithm>
#include <cstdlib>

#include "doctor/facts/tags.h"
#include "doctor/read/wheel_name.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

std::string major_minor(const Version& v) {
  return std::to_string(v.major_part()) + "." + std::to_string(v.minor_part());
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

std::string python_tag(const PickTarget& target) {
  return "cp" + std::to_string(target.python.major_part()) + std::to_string(target.python.minor_part()) +
         (target.free_threaded ? "t" : "");
}

bool python_fits(const AttentionWheel& wheel, const PickTarget& target) {
  PythonFacts python;
  python.version = target.python;
  python.free_threaded = target.free_threaded;
  return std::any_of(wheel.tags.begin(), wheel.tags.end(),
                     [&](const WheelTag& tag) { return python_accepts(tag, python); });
}

bool machine_fits(const AttentionWheel& wheel, const std::string& machine) {
  return std::any_of(wheel.tags.begin(), wheel.tags.end(), [&](const WheelTag& tag) {
    const PlatformTag platform = parse_platform(tag.platform);
    const bool is_glibc = platform.kind == PlatformKind::kLinux || platform.kind == PlatformKind::kManylinux;
    return platform.kind == PlatformKind::kAny || (is_glibc && platform.machine == machine);
  });
}

// The lowest that its tags promise; a plain linux tag promises nothing, but what its release was built on is known.
Version glibc_of(const AttentionWheel& wheel) {
  Version least;
  for (const WheelTag& tag : wheel.tags) {
    const PlatformTag platform = parse_platform(tag.platform);
    if (platform.kind == PlatformKind::kAny) return {};
    if (platform.kind == PlatformKind::kManylinux && (!least.known() || platform.libc < least)) least = platform.libc;
  }
  const bool is_flash_attn = base_name(wheel.file).starts_with("flash_attn-");
  return least.known() || !is_flash_attn ? least : glibc_of_release(wheel.version);
}

// An index of pytorch.org that has this torch for CUDA 12.
std::string index_of(const Version& torch) {
  const char* cuda = torch >= parse_version("2.6") ? "cu126" : torch >= parse_version("2.4") ? "cu124" : "cu121";
  return std::string(" --index-url https://download.pytorch.org/whl/") + cuda;
}

std::string install_torch(const PickTarget& target, const AttentionWheel& wheel) {
  const bool has_cuda_12 = wheel.cuda.known() && wheel.cuda.major_part() == 12;
  if (!wheel.torch.known()) return "a torch built with CUDA " + std::to_string(wheel.cuda.major_part());
  return target.interpreter + " -m pip install 'torch==" + major_minor(wheel.torch) + ".*'" +
         (has_cuda_12 ? index_of(wheel.torch) : "");
}

const char* abi_word(CxxAbi abi) { return abi == CxxAbi::kNew ? "TRUE" : "FALSE"; }

Candidate judge(const AttentionWheel& wheel, const PickTarget& target) {
  Candidate out{wheel, {}, 0};
  const auto differ = [&](int distance, Difference difference) {
    out.distance += distance;
    out.differences.push_back(std::move(difference));
  };
  if (wheel.pretender)
    differ(2000, {"contents", "a name for any platform, so nothing compiled", "CUDA kernels are wanted", ""});
  if (!target.machine.empty() && !machine_fits(wheel, target.machine))
    differ(1000, {"machine", wheel.platform, target.machine, ""});
  const Version glibc = glibc_of(wheel);
  if (glibc.known() && target.glibc.known() && target.glibc < glibc)
    differ(500, {"glibc", glibc.text() + " or later", target.glibc.text(), "a container of a newer system"});
  if (target.python.known() && !python_fits(wheel, target)) {
    const int minor = wheel.python.rfind("cp3", 0) == 0 ? std::atoi(wheel.python.c_str() + 3) : 0;
    differ(100 + std::abs(minor - target.python.minor_part()),
           {"python", wheel.python, python_tag(target),
            minor ? "uv venv --python 3." + std::to_string(minor) : std::string()});
  }
  if (target.torch_for_cpu && wheel.cuda.known()) {
    differ(80, {"cuda", std::to_string(wheel.cuda.major_part()), "none: torch is built for the CPU",
                install_torch(target, wheel)});
  } else if (wheel.cuda.known() && target.cuda.known() && wheel.cuda.major_part() != target.cuda.major_part()) {
    differ(60, {"cuda", std::to_string(wheel.cuda.major_part()), std::to_string(target.cuda.major_part()),
                install_torch(target, wheel)});
  }
  if (wheel.torch.known() && target.torch.known() && major_minor(wheel.torch) != major_minor(target.torch)) {
    const int apart = std::abs((wheel.torch.major_part() - target.torch.major_part()) * 20 + wheel.torch.minor_part() -
                               target.torch.minor_part());
    differ(20 + apart, {"torch", major_minor(wheel.torch), major_minor(target.torch), install_torch(target, wheel)});
  } else if (wheel.torch.known() && target.torch_unreleased && wheel.tried == AttentionWheel::Tried::kNo) {
    differ(10, {"torch", major_minor(wheel.torch) + " as released", "a build before that release",
                install_torch(target, wheel)});
  }
  // A label that is not there promises nothing. Files at hand were judged by their symbols.
  const bool is_compiled =
      std::none_of(wheel.tags.begin(), wheel.tags.end(), [](const WheelTag& tag) { return tag.platform == "any"; });
  if (is_compiled && !wheel.torch.known() && wheel.tried == AttentionWheel::Tried::kNo)
    differ(30, {"torch", "not said by its name", target.torch.known() ? major_minor(target.torch) : "not known",
                "mica doctor " + wheel.file + " reads its symbols"});
  if (wheel.tried == AttentionWheel::Tried::kFails)
    differ(3000, {"contents", wheel.failure, "a file that loads is wanted", ""});
  if (wheel.cxx_abi != CxxAbi::kUnknown && (target.cxx_abi == CxxAbi::kNew || target.cxx_abi == CxxAbi::kOld) &&
      wheel.cxx_abi != target.cxx_abi)
    differ(40, {"cxx11abi", abi_word(wheel.cxx_abi), abi_word(target.cxx_abi), "a torch built with the other C++ ABI"});
  return out;
}

std::string describe(const Difference& d) { return d.what + " " + d.wheel + " (here: " + d.here + ")"; }

// "2.8.3.post1" after "2.8.3".
std::pair<Version, int> order_of(const std::string& version) {
  const std::size_t post = version.find(".post");
  return {parse_version(version.substr(0, post)), post == version.npos ? 0 : std::atoi(version.c_str() + post + 5)};
}

void add_verdicts(const PickTarget& target, Pick& pick) {
  if (!pick.unknown.empty()) {
    pick.verdicts.push_back(
        make_verdict({.code = "CANNOT_TELL",
                      .message = "not known of the target: " + joined(pick.unknown, ", "),
                      .cause = "Which wheel fits depends on them.",
                      .fix = "give them (--python, --torch, --cuda, --abi, --machine), or --python PATH of "
                             "an environment with torch"}));
    return;
  }
  if (pick.candidates.empty()) {
    pick.verdicts.push_back(
        make_verdict({.code = "PICK_NEAREST", .message = "no wheel of flash-attn was given to choose from"}));
    pick.verdicts.back().severity = Severity::kError;
    return;
  }
  const Candidate& best = pick.candidates[0];
  const std::string place = best.wheel.url.empty() ? best.wheel.file : best.wheel.url;
  if (best.differences.empty()) {
    pick.verdicts.push_back(make_verdict({.code = "PICK_MATCH",
                                          .subject = best.wheel.file,
                                          .message = "fits this target",
                                          .fix = target.interpreter + " -m pip install --no-deps '" + place + "'"}));
    return;
  }
  for (std::size_t i = 0; i < std::min<std::size_t>(3, pick.candidates.size()); ++i) {
    const Candidate& c = pick.candidates[i];
    std::vector<std::string> what, how;
    for (const Difference& d : c.differences) {
      what.push_back(describe(d));
      const std::string change = d.change.empty() ? "nothing changes the " + d.what : d.change;
      if (std::find(how.begin(), how.end(), change) == how.end()) how.push_back(change);
    }
    // What serves all the same, in order of effort; another torch only as the last, in an environment of its own, since
    // the rest of this one was made for the torch that is here.
    const std::string serves =
        "1. Mica's drop-in, which is compiled for no torch: " + target.interpreter +
        " -m pip install mica_attention-*.whl flash_attn-*+mica*.whl\n"
        "2. a build for this torch: mica build flash-attn (--dry-run says whether it can work here, and for how long)\n"
        "3. in a new environment: ";
    Verdict verdict = make_verdict({.code = "PICK_NEAREST",
                                    .subject = c.wheel.file,
                                    .message = "differs in " + joined(what, ", "),
                                    .cause = i ? "" : "No wheel of the list fits this target.",
                                    .fix = (i ? "" : serves) + joined(how, i ? "\n" : ", ")});
    if (i == 0) verdict.severity = Severity::kError;
    pick.verdicts.push_back(std::move(verdict));
  }
}

}  // namespace

bool is_unreleased(std::string_view torch_version) {
  const std::string_view number = torch_version.substr(0, torch_version.find('+'));
  const std::string_view rest = number.substr(std::min(number.find_first_not_of("0123456789."), number.size()));
  return rest.starts_with("a") || rest.starts_with("b") || rest.starts_with("dev");
}

PickTarget pick_target(const Environment& environment) {
  PickTarget target;
  target.machine = environment.machine;
  target.glibc = environment.libc == "glibc" ? environment.libc_version : Version{};
  if (environment.python) {
    target.python = environment.python->version;
    target.free_threaded = environment.python->free_threaded;
    if (!environment.python->executable.empty()) target.interpreter = environment.python->executable;
  }
  if (environment.torch) {
    target.torch = parse_version(environment.torch->version);
    target.torch_unreleased = is_unreleased(environment.torch->version);
    target.cuda = parse_version(environment.torch->cuda_version);
    target.torch_for_cpu = environment.torch->cuda_version.empty();
    target.cxx_abi = environment.torch->cxx_abi;
  }
  return target;
}

CxxAbi usual_cxx_abi(const std::string& torch_version, const std::string& machine) {
  const Version v = parse_version(torch_version);
  if (!v.known() || contains(torch_version, ".nv")) return CxxAbi::kUnknown;
  if (v >= parse_version("2.7")) return CxxAbi::kNew;
  if (v < parse_version("2.6")) return machine == "x86_64" ? CxxAbi::kOld : CxxAbi::kUnknown;
  if (machine == "aarch64" || contains(torch_version, "cu126")) return CxxAbi::kNew;
  return contains(torch_version, "cu118") || contains(torch_version, "cu124") || contains(torch_version, "cpu")
             ? CxxAbi::kOld
             : CxxAbi::kUnknown;
}

Pick pick(const PickTarget& target, const std::vector<AttentionWheel>& wheels) {
  Pick out;
  if (!target.python.known()) out.unknown.push_back("the version of Python");
  if (!target.torch.known()) out.unknown.push_back("the version of torch");
  if (!target.cuda.known() && !target.torch_for_cpu) out.unknown.push_back("torch's CUDA");
  if (target.cxx_abi != CxxAbi::kNew && target.cxx_abi != CxxAbi::kOld) out.unknown.push_back("torch's C++ ABI");
  if (target.machine.empty()) out.unknown.push_back("the machine");
  for (const AttentionWheel& wheel : wheels)
    if (wheel.package.starts_with("flash-attn")) out.candidates.push_back(judge(wheel, target));  // also -3 and -4
  std::stable_sort(out.candidates.begin(), out.candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.distance != b.distance) return a.distance < b.distance;
    return order_of(a.wheel.version) > order_of(b.wheel.version);
  });
  add_verdicts(target, out);
  return out;
}

}  // namespace doctor
