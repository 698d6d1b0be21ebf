// SPDX-License-Identifier: Apache-2.0
#include "builder/plan/plan.h"

#include <algorithm>
#include <cstdio>

#include "builder/plan/parallel.h"
#include "doctor/facts/mangled.h"
#include "doctor/facts/toolchain.h"
#include "doctor/tables/gpu_arch.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

using doctor::make_verdict;
using support::Version;

class Planner {
 public:
  explicit Planner(const PlanInputs& inputs) : in_(inputs) { plan_.recipe = &recipe_of(inputs.package); }

  Plan make() {
    check_torch();
    check_targets();
    if (plan_.refused()) return plan_;
    plan_.cuda = needs_cuda();
    choose_abi();
    if (plan_.cuda) choose_architectures();
    if (plan_.cuda && !plan_.refused()) choose_toolkit();
    if (!plan_.refused()) choose_compiler();
    if (!plan_.refused()) choose_parallelism();
    if (!plan_.refused()) collect_settings();
    return plan_;
  }

 private:
  void refuse(doctor::VerdictParts parts) {
    parts.subject = in_.package.empty() ? "the build" : in_.package;
    plan_.verdicts.push_back(make_verdict(std::move(parts)));
  }
  void decide(std::string what, std::string value, std::string why) {
    plan_.decisions.push_back({std::move(what), std::move(value), std::move(why)});
  }
  const doctor::TorchFacts& torch() const { return *in_.here.torch; }

  void check_torch() {
    if (in_.here.torch) return;
    refuse({.code = "TORCH_MISSING",
            .message = "this Python has no torch",
            .cause = "The extension is compiled against torch's own headers.",
            .fix = "install the torch that it shall run with, or name the Python that has it: --python PATH"});
  }

  // The wheel is made with the Python and torch here: they must be those of the target.
  void check_targets() {
    check_target(in_.target);
    for (const doctor::Environment& other : in_.others) check_target(other);
  }

  void check_target(const doctor::Environment& target) {
    if (!in_.here.torch || !in_.here.python) return;
    const auto same = [&](const char* what, const std::string& here, const std::string& there) {
      if (there.empty() || here == there) return;
      refuse({.code = "CANNOT_TELL",
              .message = std::string(what) + " here is " + here + ", in " + target.name + " " + there,
              .cause = "A wheel fits the " + std::string(what) + " that it was built with.",
              .fix = "build with the target's " + std::string(what) + ": --python PATH"});
      plan_.verdicts.back().severity = doctor::Severity::kError;
    };
    same("machine", in_.here.machine, target.machine);
    const auto python = [](const doctor::Environment& e) {
      return e.python ? std::to_string(e.python->version.major_part()) + "." +
                            std::to_string(e.python->version.minor_part()) + (e.python->free_threaded ? "t" : "")
                      : "";
    };
    same("Python", python(in_.here), python(target));
    const auto series = [](const doctor::Environment& e) {
      if (!e.torch) return std::string();
      const Version version = support::parse_version(e.torch->version);
      return std::to_string(version.major_part()) + "." + std::to_string(version.minor_part());
    };
    same("torch", series(in_.here), series(target));
    const auto cuda = [](const doctor::Environment& e) {
      if (!e.torch) return std::string();
      return e.torch->cuda_version.empty() ? "none"
                                           : std::to_string(support::parse_version(e.torch->cuda_version).major_part());
    };
    same("torch's CUDA", cuda(in_.here), cuda(target));
  }

  bool needs_cuda() {
    const bool torch_has_cuda = !torch().cuda_version.empty();
    if (plan_.recipe->needs_cuda && !torch_has_cuda) {
      refuse({.code = "BUILD_CUDA_MAJOR_MISMATCH",
              .message = "torch " + torch().version + " is a build for the CPU",
              .cause = in_.package + " is CUDA code and needs a torch that was built with CUDA.",
              .fix = "install torch with CUDA, or name the Python that has it: --python PATH"});
      return true;
    }
    if (plan_.recipe->needs_cuda) return true;
    if (!in_.source_seen) return torch_has_cuda;
    if (in_.cuda_files == 0) {
      decide("CUDA", "not used", "there is no .cu file in the source");
      return false;
    }
    if (!torch_has_cuda) decide("CUDA", "not used", "torch " + torch().version + " is a build for the CPU");
    return torch_has_cuda;
  }

  void choose_abi() {
    switch (torch().cxx_abi) {
      case doctor::CxxAbi::kOld: plan_.cxx_abi = 0; break;
      case doctor::CxxAbi::kNew: plan_.cxx_abi = 1; break;
      default: break;
    }
    decide("C++ ABI", plan_.cxx_abi < 0 ? "left to torch" : std::to_string(plan_.cxx_abi),
           plan_.cxx_abi < 0 ? "the symbols of torch's libraries show neither"
                             : "the symbols that torch " + torch().version + " exports are of that kind");
  }

  void choose_architectures() {
    if (in_.architectures != "auto") {
      plan_.architectures = parse_architectures(in_.architectures);
    } else {
      choose_for_gpus();
    }
    if (plan_.architectures.empty()) {
      refuse({.code = "BUILD_NO_ARCH",
              .message = "no GPU is known for " + in_.target.name,
              .cause = "GPU code is compiled for one kind of GPU.",
              .fix = "say which: --arch 9.0 (H100, H200), --arch 8.0 (A100); or --target FILE, written on the GPU node "
                     "by mica "
                     "doctor --export FILE"});
      return;
    }
    std::vector<std::string> names;
    for (const Architecture& a : plan_.architectures) {
      names.push_back(dotted(a.arch));
      if (a.arch.sm < plan_.recipe->lowest_sm)
        refuse({.code = "GPU_TOO_OLD",
                .message = in_.package + " does not support GPUs of " + a.arch.capability().text(),
                .cause = "Its kernels need " + doctor::GpuArch{plan_.recipe->lowest_sm, 0}.capability().text() +
                         " or later.",
                .fix = "Mica itself runs from 8.0 on (mica info)"});
    }
    if (in_.others.empty() || in_.architectures != "auto")
      decide("architectures", support::joined(names, ", "),
             in_.architectures == "auto" ? "the GPUs of " + in_.target.name : "asked for");
  }

  // One machine gets code for each of its GPUs; a fleet gets the least that runs on all.
  void choose_for_gpus() {
    std::vector<doctor::ComputeCapability> seen;
    const auto add = [&](const doctor::Environment& target) {
      for (const doctor::Gpu& gpu : target.gpus)
        if (std::find(seen.begin(), seen.end(), gpu.capability) == seen.end()) seen.push_back(gpu.capability);
    };
    add(in_.target);
    for (const doctor::Environment& other : in_.others) add(other);
    std::sort(seen.begin(), seen.end());
    if (in_.others.empty()) {
      for (const auto& gpu : seen) plan_.architectures.push_back({{gpu.major * 10 + gpu.minor, 0}, false});
      return;
    }
    leave_out_too_old(seen);
    const FleetArchitectures fleet = smallest_set(seen);
    plan_.architectures = fleet.needed;
    std::vector<std::string> names;
    for (const auto& gpu : fleet.exact) names.push_back(gpu.text());
    std::string why = "the least that runs on all " + std::to_string(in_.others.size() + 1) + " targets: exact for " +
                      support::joined(names, ", ");
    for (const auto& [gpu, by] : fleet.compatible) why += "; " + gpu.text() + " runs the code of " + by.text();
    if (!names.empty()) decide("architectures", support::joined(names, ", "), why);
  }

  // A fleet may have nodes that the project does not support: the others are served.
  void leave_out_too_old(std::vector<doctor::ComputeCapability>& gpus) {
    const auto is_too_old = [&](const auto& gpu) { return gpu.major * 10 + gpu.minor < plan_.recipe->lowest_sm; };
    if (std::all_of(gpus.begin(), gpus.end(), is_too_old)) return;
    for (const auto& gpu : gpus) {
      if (!is_too_old(gpu)) continue;
      plan_.verdicts.push_back(
          make_verdict({.code = "GPU_TOO_OLD",
                        .subject = in_.package,
                        .message = "nodes with GPUs of " + gpu.text() + " are left out",
                        .cause = "Its kernels need " + doctor::GpuArch{plan_.recipe->lowest_sm, 0}.capability().text() +
                                 " or later.",
                        .fix = "on those nodes: attn_implementation=\"sdpa\", or another package"}));
      plan_.verdicts.back().severity = doctor::Severity::kWarning;
    }
    std::erase_if(gpus, is_too_old);
  }

  // Empty: it fits.
  std::string why_not(const Toolkit& toolkit) const {
    const Version wanted = support::parse_version(torch().cuda_version);
    if (const std::string why = doctor::why_cuda_differs(toolkit.version, wanted); !why.empty()) return why;
    for (const Architecture& a : plan_.architectures)
      if (const std::string why = doctor::why_nvcc_cannot(toolkit.version, a.arch); !why.empty()) return why;
    return "";
  }

  void choose_toolkit() {
    const Version wanted = support::parse_version(torch().cuda_version);
    const auto distance = [&](const Toolkit& t) { return std::abs(t.version.minor_part() - wanted.minor_part()); };
    const Toolkit* best = nullptr;
    std::vector<std::string> evidence;
    bool too_old = false;
    for (const Toolkit& toolkit : in_.toolkits) {
      const std::string why = why_not(toolkit);
      evidence.push_back(toolkit.folder + ": " + (why.empty() ? "CUDA " + toolkit.version.text() : why));
      too_old |= !why.empty() && toolkit.version.major_part() == wanted.major_part();
      if (why.empty() && (!best || distance(toolkit) < distance(*best))) best = &toolkit;
    }
    if (!best) {
      const std::string install = "install a CUDA toolkit " + std::to_string(wanted.major_part()) + ".x (best " +
                                  wanted.text() + ") and let CUDA_HOME name its folder";
      if (in_.toolkits.empty())
        refuse({.code = "BUILD_NVCC_MISSING",
                .message = "no nvcc is here",
                .cause = "torch brings CUDA's libraries, but not its compiler, and pip has one only from CUDA 13 on.",
                .fix = install});
      else if (too_old)
        refuse({.code = "BUILD_ARCH_UNSUPPORTED_BY_NVCC",
                .message = "no nvcc here knows the architectures asked for",
                .fix = install,
                .evidence = evidence});
      else
        refuse({.code = "BUILD_CUDA_MAJOR_MISMATCH",
                .message = "no nvcc here is of torch's CUDA " + wanted.text(),
                .cause = "nvcc and torch must be of the same major version.",
                .fix = install,
                .evidence = evidence});
      return;
    }
    plan_.toolkit = *best;
    if (!best->fetched_by.empty()) {
      decide("toolkit", best->folder + " (CUDA " + best->version.text() + ")",
             "none here suits; it will be fetched into that folder by " + best->fetched_by);
      return;
    }
    std::string why = best->version.minor_part() == wanted.minor_part()
                          ? "the CUDA that torch was built with"
                          : "same major as torch's CUDA " + wanted.text() + ", which is enough";
    if (!in_.first_nvcc.empty() && in_.first_nvcc != best->folder)
      why += "; the nvcc that comes first on PATH, in " + in_.first_nvcc + ", is not used";
    decide("toolkit", best->folder + " (CUDA " + best->version.text() + ")", why);
  }

  void choose_compiler() {
    std::vector<std::string> evidence;
    for (const HostCompiler& compiler : in_.host_compilers) {
      const int most = plan_.cuda ? plan_.toolkit.most_gcc : 0;
      if (doctor::is_gcc_too_new(compiler.version, most)) {
        evidence.push_back(compiler.cxx + " " + compiler.version.text() + ": nvcc " + plan_.toolkit.version.text() +
                           " takes g++ up to " + std::to_string(most));
        continue;
      }
      if (doctor::is_gcc_too_old(compiler.version)) {
        evidence.push_back(compiler.cxx + " " + compiler.version.text() + ": torch's headers need g++ " +
                           std::to_string(doctor::kLeastGcc) + " or later");
        continue;
      }
      plan_.compiler = compiler;
      const std::string suits = evidence.empty() ? "the default" : "the default does not suit: " + evidence[0];
      decide("host compiler", compiler.cxx + " " + compiler.version.text(),
             compiler.fetched_by.empty() ? (compiler.is_fetched ? "fetched, since none here suits" : suits)
                                         : "none here suits; it will be fetched by " + compiler.fetched_by);
      return;
    }
    const int most = plan_.cuda ? plan_.toolkit.most_gcc : 0;
    const std::string package = most ? "g++-" + std::to_string(std::min(most, 12)) : "g++";
    refuse({.code = "BUILD_HOST_COMPILER",
            .message = evidence.empty() ? "no g++ is here" : "no g++ here suits",
            .fix = "install " + package + " (Debian and Ubuntu: apt-get install " + package + ")",
            .evidence = evidence});
  }

  void choose_parallelism() {
    const int files = plan_.recipe->cuda_files ? plan_.recipe->cuda_files : in_.cuda_files;
    Parallelism p;
    p.cores = in_.cores;
    p.memory_bytes = in_.memory_bytes;
    p.memory_from = in_.memory_from;
    constexpr uint64_t kHostJobBytes = uint64_t(1500) << 20;  // one file that includes torch's headers
    p.job_bytes = plan_.cuda ? plan_.recipe->job_bytes : kHostJobBytes;
    p.files = files;
    p.architectures = int(plan_.architectures.size());
    p.wanted_jobs = in_.jobs;
    const ParallelChoice choice = choose_jobs(p);
    plan_.jobs = choice.jobs;
    plan_.nvcc_threads = choice.nvcc_threads;
    plan_.job_bytes = p.job_bytes;
    decide("jobs", std::to_string(choice.jobs), choice.why);
    if (plan_.cuda)
      decide("nvcc threads", std::to_string(choice.nvcc_threads),
             choice.nvcc_threads > 1
                 ? "fewer files than cores, and several architectures"
                 : "more jobs use the cores better than threads, and can be fewer if memory runs out");
    if (!choice.warning.empty()) {
      plan_.verdicts.push_back(make_verdict({.code = "BUILD_OOM",
                                             .subject = "memory",
                                             .message = choice.warning,
                                             .cause = "A compiler that is killed is started again with fewer jobs.",
                                             .fix = "more memory (docker -m, sbatch --mem)"}));
      plan_.verdicts.back().severity = doctor::Severity::kWarning;
    }
  }

  void set(std::string name, std::string value, std::string why) {
    plan_.settings.push_back({std::move(name), std::move(value), std::move(why), false});
  }
  void remove(std::string name, std::string why) {
    if (!name.empty()) plan_.settings.push_back({std::move(name), "", std::move(why), true});
  }

  void collect_settings() {
    const Recipe& recipe = *plan_.recipe;
    if (plan_.cuda) {
      set("CUDA_HOME", plan_.toolkit.folder, "torch's build class takes nvcc and the headers from there");
      set("CUDA_PATH", plan_.toolkit.folder, "some projects read this one");
    }
    if (*recipe.force) set(recipe.force, "TRUE", "else setup.py downloads a wheel that somebody else built");
    remove(recipe.skip, "it would make a py3-none-any wheel with nothing compiled inside");
    remove(recipe.force_abi, "the ABI is torch's");
    remove(recipe.version_suffix, "file name and METADATA shall agree");
    if (plan_.cuda) {
      std::vector<std::string> listed, plain;
      for (const Architecture& a : plan_.architectures) {
        listed.push_back(dotted(a.arch) + (a.ptx ? "+PTX" : ""));
        plain.push_back(std::to_string(a.arch.sm));
      }
      set("TORCH_CUDA_ARCH_LIST", support::joined(listed, ";"), "no GPU need be here; setup.py may ask for it");
      if (*recipe.architectures)
        set(recipe.architectures, support::joined(plain, ";"), "the project's own switch for architectures");
      set("NVCC_THREADS", std::to_string(plan_.nvcc_threads), "see nvcc threads");
      const bool is_default = !in_.host_compilers.empty() && plan_.compiler.cxx == in_.host_compilers[0].cxx;
      if (!is_default || plan_.compiler.is_fetched)
        set("NVCC_PREPEND_FLAGS", "-ccbin " + plan_.compiler.cxx, "nvcc shall use the same host compiler");
    }
    set("CC", plan_.compiler.cc, "see host compiler");
    set("CXX", plan_.compiler.cxx, "see host compiler");
    set("MAX_JOBS", std::to_string(plan_.jobs), "see jobs");
    set("NINJA_STATUS", "[%f/%t] ", "progress is read from it");
    set("LC_ALL", "C", "compilers then say in English what went wrong, and mica explain reads it");
    set("PYTHONUNBUFFERED", "1", "the log shows each line when it is printed");
    remove("PYTHONHOME", "another Python's modules would be loaded");
  }

  const PlanInputs& in_;
  Plan plan_;
};

}  // namespace

Plan make_plan(const PlanInputs& inputs) { return Planner(inputs).make(); }

std::vector<std::string> Plan::gencode() const {
  std::vector<std::string> out;
  for (const Architecture& a : architectures) {
    const std::string compute = a.arch.text("compute_");
    out.push_back("arch=" + compute + ",code=" + a.arch.text("sm_"));
    if (a.ptx) out.push_back("arch=" + compute + ",code=" + compute);
  }
  return out;
}

}  // namespace builder
