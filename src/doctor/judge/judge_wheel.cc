// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge/judge_wheel.h"

#include <algorithm>
#include <map>
#include <set>

#include "doctor/facts/facts.h"
#include "doctor/facts/mangled.h"
#include "doctor/facts/release.h"
#include "doctor/facts/tags.h"
#include "doctor/judge/attention_wheel.h"
#include "doctor/read/python/outline.h"
#include "doctor/read/record.h"
#include "doctor/read/requirement.h"
#include "doctor/read/wheel_name.h"
#include "doctor/system/python_env.h"
#include "doctor/tables/manylinux.h"
#include "support/package_name.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

std::string tag_list(const std::set<WheelTag>& tags) {
  std::vector<std::string> texts;
  texts.reserve(tags.size());
  for (const WheelTag& tag : tags) texts.push_back(printable(tag.text()));
  return joined(texts, ", ");
}

// Modules of other names that belong to a distribution.
bool belongs_to(const std::string& module, const std::string& distribution) {
  const std::string name = normal_name(distribution), top = lower(split(module, '.')[0]);
  return top.starts_with(name) || (name == "mamba_ssm" && top == "selective_scan_cuda") ||
         (name == "flash_attn_3" && top.starts_with("flash_attn"));
}

// The modules that a wheel's files are, by dotted names.
std::set<std::string> modules_of(const Wheel& wheel) {
  std::set<std::string> out;
  for (const WheelEntry& entry : wheel.entries)
    if (entry.path.ends_with(".py") || entry.path.ends_with(".so")) out.insert(module_of_path(entry.path));
  return out;
}

// Compiled for the machine that loads the wheel, as opposed to data for a GPU.
std::size_t host_binaries(const Wheel& wheel) {
  return std::size_t(std::count_if(wheel.binaries.begin(), wheel.binaries.end(),
                                   [](const Binary& b) { return !b.cubin && !b.bare_fatbin; }));
}

void judge_name(const Wheel& wheel, std::vector<Verdict>& out) {
  if (!wheel.name) {
    out.push_back(make_verdict(
        {.code = "WHEEL_NAME",
         .subject = wheel.file_name,
         .message = "'" + printable(wheel.file_name) + "' is not the name of a wheel",
         .cause = "Installers go by the file name: {name}-{version}[-{build}]-{python}-{abi}-{platform}.whl.",
         .fix = "give the file its original name back"}));
    return;
  }
  if (wheel.dist_info.empty() || wheel.metadata.first("Version").empty() ||
      wheel.wheel.first("Wheel-Version").empty()) {
    const char* missing = wheel.dist_info.empty()                   ? "there is no .dist-info folder"
                          : wheel.metadata.first("Version").empty() ? "METADATA is missing or has no Version"
                                                                    : "WHEEL is missing or has no Wheel-Version";
    out.push_back(make_verdict({.code = "WHEEL_METADATA",
                                .subject = wheel.file_name,
                                .message = missing,
                                .cause = "Without these an installer refuses the wheel.",
                                .fix = "build the wheel again with a build backend"}));
    return;
  }
  const std::string format = wheel.wheel.first("Wheel-Version");
  if (parse_version(format).major_part() > 1)
    out.push_back(make_verdict({.code = "WHEEL_METADATA",
                                .subject = wheel.file_name,
                                .message = "its format is " + printable(format) + ", installers know 1.0",
                                .cause = "An installer refuses a Wheel-Version of another major than its own.",
                                .fix = "build the wheel again with a build backend",
                                .evidence = {"Wheel-Version: " + printable(format)}}));
  const std::string file_version = wheel.name->version, version = wheel.metadata.first("Version");
  const std::string file_name = wheel.name->distribution, name = wheel.metadata.first("Name");
  const std::vector<std::string> evidence = {"file name: " + printable(file_name) + " " + printable(file_version),
                                             "METADATA: " + printable(name) + " " + printable(version)};
  if (normal_name(file_name) != normal_name(name)) {
    Verdict verdict = make_verdict(
        {.code = "WHEEL_VERSION_MISMATCH",
         .subject = wheel.file_name,
         .message = "the file is called " + printable(file_name) + ", METADATA calls it " + printable(name),
         .cause = "The file was renamed.",
         .fix = "give the file its original name back",
         .evidence = evidence});
    verdict.severity = Severity::kError;
    out.push_back(std::move(verdict));
  } else if (!is_same_release(file_version, version)) {
    const std::string normal = normal_version(file_version);
    const bool only_local = is_same_release(normal.substr(0, normal.find('+')), version);
    out.push_back(make_verdict(
        {.code = "WHEEL_VERSION_MISMATCH",
         .subject = wheel.file_name,
         .message = "the file says version " + printable(file_version) + ", METADATA says " + printable(version),
         .cause = only_local ? "The build renamed the file and left METADATA alone. Installing the file itself "
                               "works; a requirement of that exact version, or an index, makes pip refuse it."
                             : "The file was renamed; pip refuses it with 'inconsistent version'.",
         .fix = only_local ? "pip install ./" + wheel.file_name + "   (the file, not name==version)"
                           : "give the file its original name back",
         .evidence = evidence}));
  }
  const std::string folder = printable(wheel.dist_info);
  const std::size_t dash = folder.rfind('-', folder.size() - std::string(".dist-info").size() - 1);
  const bool is_its_own = dash != folder.npos && normal_name(folder.substr(0, dash)) == normal_name(name) &&
                          is_same_release(folder.substr(dash + 1, folder.size() - 10 - dash - 1), version);
  if (!is_its_own)
    out.push_back(make_verdict(
        {.code = "WHEEL_METADATA",
         .subject = wheel.file_name,
         .message = "the folder " + folder + " does not belong to " + printable(name) + " " + printable(version),
         .cause = "pip looks for {name}-{version}.dist-info.",
         .fix = "build the wheel again with a build backend"}));
}

void judge_tags(const Wheel& wheel, std::vector<Verdict>& out) {
  const std::set<WheelTag> by_name(wheel.name->tags.begin(), wheel.name->tags.end());
  std::set<WheelTag> by_wheel;
  for (const std::string& text : wheel.wheel.all("Tag"))
    if (const auto parsed = parse_wheel_name("a-1-" + text + ".whl"))
      by_wheel.insert(parsed->tags.begin(), parsed->tags.end());
  if (!by_wheel.empty() && by_name != by_wheel)
    out.push_back(make_verdict(
        {.code = "WHEEL_TAG_MISMATCH",
         .subject = wheel.file_name,
         .message = "the file name promises " + tag_list(by_name) + ", WHEEL promises " + tag_list(by_wheel),
         .cause = "Installers decide by the file name, other tools by WHEEL; the file was renamed or retagged by hand.",
         .fix = "python -m wheel tags --remove ...   (it changes both)"}));
}

void judge_contents(const Wheel& wheel, std::vector<Verdict>& out) {
  const std::size_t binaries = host_binaries(wheel);
  const bool tagged_pure = std::all_of(wheel.name->tags.begin(), wheel.name->tags.end(),
                                       [](const WheelTag& t) { return t.platform == "any"; });
  std::string missing;
  const std::set<std::string> modules = modules_of(wheel);
  for (const std::string& module : wheel.imports)
    if (belongs_to(module, wheel.name->distribution) && !modules.count(module))
      missing = missing.empty() ? module : missing;
  if (!missing.empty() && binaries == 0) {
    out.push_back(make_verdict(
        {.code = "WHEEL_NO_EXTENSION",
         .subject = wheel.file_name,
         .message = "No module named '" + printable(missing) + "'",
         .cause = "Its Python files import the compiled module " + printable(missing) +
                  ", and the wheel holds no compiled file at all: it was built where no CUDA was found, or with "
                  "FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE.",
         .fix =
             "install a wheel that was built with CUDA (mica pick), or build one: FLASH_ATTENTION_FORCE_BUILD=TRUE pip "
             "install --no-build-isolation " +
             printable(wheel.name->distribution),
         .evidence = {"import " + printable(missing),
                      "0 compiled files among " + std::to_string(wheel.entries.size())}}));
  } else if (!tagged_pure && binaries == 0 && wheel.binaries.empty() && !wheel.entries.empty()) {
    Verdict verdict = make_verdict({.code = "WHEEL_NO_EXTENSION",
                                    .subject = wheel.file_name,
                                    .message = "the tags promise compiled code for " + printable(wheel.name->platform) +
                                               ", and the wheel holds none",
                                    .cause = "Either the tag is wrong or the build lost its extension.",
                                    .fix = "build it again and look for the extension in the build log",
                                    .evidence = {"0 compiled files among " + std::to_string(wheel.entries.size())}});
    verdict.severity = Severity::kWarning;
    out.push_back(std::move(verdict));
  }
  if (tagged_pure && binaries > 0)
    out.push_back(make_verdict({.code = "WHEEL_TAG_VS_ELF",
                                .subject = wheel.file_name,
                                .message = "tagged for any platform, and holds " + counted(binaries, "compiled file"),
                                .cause = "pip will install it on machines where it cannot load.",
                                .fix = "build it again with platform tags",
                                .evidence = {printable(wheel.binaries.front().path)}}));
}

// What the version's label says of torch (cu12torch2.8cxx11abiTRUE), against what the symbols show.
void judge_label(const Wheel& wheel, std::vector<Verdict>& out) {
  AttentionWheel label;
  if (!parse_attention_wheel(wheel.file_name, label) || (!label.torch.known() && label.cxx_abi == CxxAbi::kUnknown))
    return;
  for (const Binary& binary : wheel.binaries) {
    const BinaryFacts facts = facts_of(binary);
    if (!facts.uses_torch || facts.torch_stable) continue;
    std::string shows, evidence;
    const Version said{{label.torch.major_part(), label.torch.minor_part()}};
    if (label.cxx_abi != CxxAbi::kUnknown && (facts.cxx_abi.abi == CxxAbi::kNew || facts.cxx_abi.abi == CxxAbi::kOld) &&
        facts.cxx_abi.abi != label.cxx_abi) {
      shows = std::string("the ") + cxx_abi_name(facts.cxx_abi.abi) + " C++ ABI";
      evidence = facts.cxx_abi.abi == CxxAbi::kNew ? facts.cxx_abi.new_symbols[0] : facts.cxx_abi.old_symbols[0];
    } else if (label.torch.known() && facts.torch.first.known() && said < facts.torch.first) {
      shows = "torch " + facts.torch.first.text() + " or later";
      evidence = facts.torch.first_symbol;
    } else if (label.torch.known() && facts.torch.last.known() && said > facts.torch.last) {
      shows = "torch " + facts.torch.last.text() + " or before";
      evidence = facts.torch.last_symbol;
    }
    if (shows.empty()) continue;
    out.push_back(
        make_verdict({.code = "WHEEL_LABEL",
                      .subject = wheel.file_name,
                      .message = "the name says " + printable(wheel.name->version) + ", its symbols show " + shows,
                      .cause = "The label is only a name that somebody gave; the loader goes by the symbols.",
                      .fix = "rely on the symbols: mica doctor " + printable(wheel.file_name) +
                             " judges by them; ask whoever built it for one that is what it says",
                      .evidence = {printable(binary.path), printable(evidence)}}));
    return;
  }
}

constexpr int kMaxOfAKind = 5;  // the same thing said of a hundred modules helps nobody

// Machine, C library and Python that the tags promise, against each binary.
void judge_promises(const Wheel& wheel, std::vector<Verdict>& out) {
  std::map<std::string, int> reported;
  const auto add = [&](const Binary& binary, const std::string& kind, std::string message, std::string cause,
                       std::string fix, std::vector<std::string> evidence, Severity severity = Severity::kError) {
    if (++reported[kind] > kMaxOfAKind) return;
    out.push_back(make_verdict({.code = "WHEEL_TAG_VS_ELF",
                                .subject = wheel.file_name + ": " + printable(binary.path),
                                .message = std::move(message),
                                .cause = std::move(cause),
                                .fix = std::move(fix),
                                .evidence = std::move(evidence)}));
    out.back().severity = severity;
  };
  for (const Binary& binary : wheel.binaries) {
    if (binary.cubin || binary.bare_fatbin || !binary.elf.has_dynamic) continue;
    const std::string machine = machine_name(binary.elf);
    const VersionFloor glibc = version_floor(binary.elf, "GLIBC_"), glibcxx = version_floor(binary.elf, "GLIBCXX_");
    for (const std::string& text : split(wheel.name->platform, '.')) {
      const PlatformTag platform = parse_platform(text);
      if (!platform.machine.empty() && platform.machine != machine && parse_platform(text).kind != PlatformKind::kOther)
        add(binary, "machine", "for " + machine + ", and the tag says " + printable(platform.machine),
            "The binary was built for another machine than the tag.",
            "build it on, or for, " + printable(platform.machine), {"e_machine: " + machine});
      if (platform.kind == PlatformKind::kManylinux && glibc.known() && glibc.version > platform.libc)
        add(binary, "glibc", "needs " + glibc.text("GLIBC_") + ", and the tag promises glibc " + platform.libc.text(),
            "pip installs it where the C library is too old, and the import fails there.",
            "tag it manylinux_" + std::to_string(glibc.version.major_part()) + "_" +
                std::to_string(glibc.version.minor_part()) + "_" + machine + ", or build it in an older image",
            glibc.symbols);
      const Version cap = platform.kind == PlatformKind::kManylinux ? glibcxx_of_manylinux(platform.libc) : Version{};
      if (cap.known() && glibcxx.known() && glibcxx.version > cap)
        add(binary, "glibcxx",
            "needs " + glibcxx.text("GLIBCXX_") + ", and " + printable(text) + " promises at most GLIBCXX_" +
                cap.text(),
            "libstdc++ on the oldest systems of this tag lacks it.", "build it in the manylinux image of that tag",
            glibcxx.symbols, Severity::kWarning);
      if (platform.kind == PlatformKind::kMusllinux && glibc.known())
        add(binary, "musl", "linked with glibc, and the tag promises musl", "musl's loader cannot load it.",
            "build it in a musllinux image", {glibc.text("GLIBC_")});
    }
    const ModuleName module = parse_module_name(binary.path);
    if (module.naming == ModuleNaming::kCpython) {
      const bool any = std::any_of(wheel.name->tags.begin(), wheel.name->tags.end(), [&](const WheelTag& tag) {
        PythonFacts python;
        python.version = module.python;
        python.free_threaded = module.free_threaded;
        return python_accepts(tag, python);
      });
      if (!any && module.python.known())
        add(binary, "soabi",
            "a module for Python " + module.python.text() + (module.free_threaded ? "t" : "") + ", and the tag is " +
                printable(wheel.name->python) + "-" + printable(wheel.name->abi),
            "Python looks for its own suffix only: the import fails with ModuleNotFoundError.",
            "build it with the Python of the tag", {printable(module.soabi)});
    }
  }
}

void judge_record(const Wheel& wheel, std::vector<Verdict>& out) {
  if (wheel.dist_info.empty()) return;
  const std::string own = wheel.dist_info + "/RECORD";
  std::map<std::string, const WheelEntry*> entries;
  for (const WheelEntry& entry : wheel.entries) entries[entry.path] = &entry;
  std::set<std::string> listed;
  std::vector<std::string> bad, unlisted;
  for (const RecordRow& row : wheel.record) {
    listed.insert(row.path);
    const auto found = entries.find(row.path);
    const std::string_view hash = std::string_view(row.hash).substr(0, row.hash.find_last_not_of('=') + 1);
    if (found == entries.end())
      bad.push_back(printable(row.path) + " is listed and not there");
    else if (row.size && *row.size != found->second->size)
      bad.push_back(printable(row.path) + " has " + std::to_string(found->second->size) + " bytes, RECORD says " +
                    std::to_string(*row.size));
    else if (hash.starts_with("sha256=") && !found->second->sha256.empty() && hash.substr(7) != found->second->sha256)
      bad.push_back(printable(row.path) + " has another sha256 than RECORD says");
  }
  for (const WheelEntry& entry : wheel.entries)
    if (!entry.is_directory && entry.path != own && !listed.count(entry.path) && !entry.path.starts_with(own + "."))
      unlisted.push_back(printable(entry.path) + " is there and not listed");
  const auto report = [&](std::vector<std::string>& lines, Severity severity) {
    if (lines.empty()) return;
    const std::string first = lines[0] + (lines.size() > 1 ? " (and " + counted(lines.size() - 1, "other") + ")" : "");
    if (lines.size() > 10) lines.resize(10);
    Verdict verdict =
        make_verdict({.code = "RECORD_BAD",
                      .subject = wheel.file_name,
                      .message = first,
                      .cause = "The contents were changed after the wheel was built, or it was packed by hand.",
                      .fix = "download it again, or pack it with: python -m wheel pack",
                      .evidence = lines});
    verdict.severity = severity;
    out.push_back(std::move(verdict));
  };
  if (wheel.record.empty()) {
    out.push_back(make_verdict({.code = "RECORD_BAD",
                                .subject = wheel.file_name,
                                .message = "there is no RECORD",
                                .cause = "Installers need the list of files.",
                                .fix = "pack it with: python -m wheel pack"}));
    return;
  }
  report(bad, Severity::kError);
  report(unlisted, Severity::kWarning);
}

void judge_requirements(const Wheel& wheel, std::vector<Verdict>& out) {
  const Binary* user = nullptr;
  for (const Binary& binary : wheel.binaries)
    if (cxx_abi_of_imports(binary.elf).torch_symbols > 0) user = &binary;
  if (!user) return;
  for (const std::string& requirement : wheel.metadata.all("Requires-Dist")) {
    const Requirement parsed = parse_requirement(requirement);
    if (normal_name(parsed.name) != "torch") continue;
    if (parsed.is_pinned() || !parsed.url.empty() || parsed.version.find('~') != parsed.version.npos) continue;
    out.push_back(
        make_verdict({.code = "WHEEL_REQUIRES_TORCH_UNPINNED",
                      .subject = wheel.file_name,
                      .message = "Requires-Dist: " + printable(requirement),
                      .cause = "It uses torch's C++ interface, which changes with every release, and allows any torch: "
                               "an installer that also upgrades torch breaks it.",
                      .fix = "pip install --no-deps ./" + wheel.file_name,
                      .evidence = {printable(user->path) + " imports " +
                                   counted(cxx_abi_of_imports(user->elf).torch_symbols, "symbol") + " of torch"}}));
  }
}

// A range of releases that leaves out the one that is here, in the words of `pip check`. One release (==) is no matter
// of ranges: what a module made for another does is foretold symbol by symbol. Conditions (after a semicolon) are not
// read.
void judge_torch_range(const Wheel& wheel, const TorchFacts& torch, std::vector<Verdict>& out) {
  const Version here = parse_version(torch.version);
  for (const std::string& requirement : wheel.metadata.all("Requires-Dist")) {
    const Requirement parsed = parse_requirement(requirement);
    if (normal_name(parsed.name) != "torch" || !parsed.marker.empty() || !parsed.extras.empty()) continue;
    const std::string& range = parsed.version;
    if (!here.known() || range.empty() || parsed.is_pinned() || satisfies(torch.version, range)) continue;
    out.push_back(make_verdict(
        {.code = "WHEEL_REQUIRES_TORCH",
         .subject = wheel.file_name,
         .message = printable(normalised_package(wheel.metadata.first("Name"))) + " " +
                    printable(wheel.metadata.first("Version")) + " has requirement torch" + printable(range) +
                    ", but you have torch " + printable(torch.version) + ".",
         .cause = "METADATA excludes this torch: the package may need what this torch lacks, and an installer "
                  "would replace it.",
         .fix = "take a release of the package that allows torch " + here.text() +
                ", or a new environment with pip install 'torch" + printable(range) + "'",
         .evidence = {"Requires-Dist: " + printable(requirement)}}));
  }
}

}  // namespace

void judge_wheel(const Wheel& wheel, std::vector<Verdict>& out) {
  judge_name(wheel, out);
  if (wheel.name) {
    judge_tags(wheel, out);
    judge_contents(wheel, out);
    judge_promises(wheel, out);
    judge_label(wheel, out);
  }
  judge_record(wheel, out);
  judge_requirements(wheel, out);
}

void judge_recorded(const Wheel& package, std::vector<Verdict>& out) {
  if (!package.wheel.fields.empty()) judge_name(package, out);
  if (package.name && !package.name->tags.empty()) {
    judge_contents(package, out);
    judge_promises(package, out);
  }
  if (!package.record.empty()) judge_record(package, out);
}

void judge_wheel(const Wheel& wheel, const Environment& target, std::vector<Verdict>& out) {
  if (!wheel.name) return;
  const auto& tags = wheel.name->tags;
  const std::string not_supported = printable(wheel.file_name) + " is not a supported wheel on this platform.";
  if (target.python && target.python->version.known()) {
    const std::string python = target.python->version.text() + (target.python->free_threaded ? "t" : "");
    if (std::none_of(tags.begin(), tags.end(),
                     [&](const WheelTag& tag) { return python_accepts(tag, *target.python); }))
      out.push_back(
          make_verdict({.code = "WHEEL_TAG_PYTHON",
                        .subject = wheel.file_name,
                        .message = "ERROR: " + not_supported,
                        .cause = "The wheel is for " + printable(wheel.name->python) + "-" +
                                 printable(wheel.name->abi) + ", the Python here is " + python + ".",
                        .fix = "take the wheel for cp3" + std::to_string(target.python->version.minor_part()) +
                               (target.python->free_threaded ? "t" : "") + ", or use a Python that the wheel is for",
                        .evidence = {"tags: " + printable(wheel.name->python) + "-" + printable(wheel.name->abi)}}));
    const std::string requires_python = wheel.metadata.first("Requires-Python");
    if (!requires_python.empty() && !satisfies(target.python->version.text(), requires_python))
      out.push_back(make_verdict({.code = "WHEEL_REQUIRES_PYTHON",
                                  .subject = wheel.file_name,
                                  .message = "ERROR: Package '" + printable(wheel.metadata.first("Name")) +
                                             "' requires a different Python: " + target.python->version.text() +
                                             " not in '" + printable(requires_python) + "'",
                                  .cause = "METADATA excludes this Python.",
                                  .fix = "use another Python, or another release of the package",
                                  .evidence = {"Requires-Python: " + printable(requires_python)}}));
  }
  if (target.torch) judge_torch_range(wheel, *target.torch, out);
  if (std::none_of(tags.begin(), tags.end(), [&](const WheelTag& tag) { return platform_accepts(tag, target); }))
    out.push_back(
        make_verdict({.code = "WHEEL_TAG_PLATFORM",
                      .subject = wheel.file_name,
                      .message = "ERROR: " + not_supported,
                      .cause = "The wheel is for " + printable(wheel.name->platform) + ", this is " + target.machine +
                               " with " + target.libc + " " + target.libc_version.text() + ".",
                      .fix = "take the wheel for " + target.machine,
                      .evidence = {"tag: " + printable(wheel.name->platform)}}));
}

}  // namespace doctor
