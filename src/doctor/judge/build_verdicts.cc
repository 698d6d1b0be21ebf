// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge/build_verdicts.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "doctor/facts/mangled.h"
#include "doctor/facts/toolchain.h"
#include "doctor/judge/attention_wheel.h"
#include "doctor/tables/cuda_releases.h"
#include "doctor/tables/gpu_arch.h"
#include "doctor/tables/published_wheels.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr uint64_t kBytesPerThread = 5'000'000'000;  // of one nvcc thread, by upstream's own estimate
constexpr const char* kNoCudaHome =
    "CUDA_HOME environment variable is not set. Please set it to your CUDA install root.";
constexpr uint64_t kDiskBytes = 5'000'000'000;

class Builder {
 public:
  Builder(const Survey& survey, const PythonInstall& python)
      : survey_(survey), python_(python), toolkit_(build_toolkit(survey.toolkits)) {}

  std::vector<Verdict> run() {
    judge_modules();
    judge_nvcc();
    judge_compiler();
    judge_headers();
    judge_memory();
    judge_ninja();
    judge_disk();
    judge_guess();
    return std::move(verdicts_);
  }

 private:
  Verdict& say(VerdictParts parts) {
    parts.subject = python_.program;
    verdicts_.push_back(make_verdict(std::move(parts)));
    return verdicts_.back();
  }

  void judge_modules() {
    std::vector<std::string> missing;
    // In the order in which setup.py imports them: the first that is missing ends it.
    for (const char* module : {"packaging", "setuptools", "wheel", "torch", "psutil"})
      if (!python_.package(module) && !(std::string(module) == "torch" && python_.torch)) missing.push_back(module);
    if (missing.empty()) return;
    say({.code = "BUILD_ISOLATION",
         .message = "ModuleNotFoundError: No module named '" + missing[0] + "'",
         .cause = "setup.py imports " + joined(missing, ", ") + ", and this Python does not have " +
                  (missing.size() == 1 ? "it" : "them") +
                  "; with build isolation, it would not be seen even if it had.",
         .fix = python_.pip() + " install " + joined(missing, " ") + " ninja && " + python_.pip() +
                " install flash-attn --no-build-isolation"});
  }

  void judge_nvcc() {
    if (python_.torch && python_.torch->cuda_version.empty()) {
      say({.code = "BUILD_NVCC_MISSING",
           .message = std::string("OSError: ") + kNoCudaHome,
           .cause = "torch " + python_.torch->version +
                    " is a build for the CPU: it does not look for CUDA, whatever CUDA_HOME says.",
           .fix = python_.pip() + " install a torch with CUDA"});
      return;
    }
    if (!toolkit_ || toolkit_->nvcc.empty()) {
      std::vector<std::string> others;
      for (const Toolkit& t : survey_.toolkits)
        if (!t.nvcc.empty()) others.push_back("nvcc " + t.version.text() + " is in " + t.folder);
      const std::string fix = others.empty() ? "install a CUDA toolkit of torch's major version, or take a ready wheel "
                                               "(mica pick)"
                                             : "export CUDA_HOME=" + [&] {
                                                 for (const Toolkit& t : survey_.toolkits)
                                                   if (!t.nvcc.empty()) return t.folder;
                                                 return std::string();
                                               }();
      say({.code = "BUILD_NVCC_MISSING",
           .message = std::string("OSError: ") + kNoCudaHome,
           .cause = "No nvcc is found by CUDA_HOME, on PATH or in /usr/local/cuda; PyTorch's own CUDA libraries do not "
                    "bring it.",
           .fix = fix,
           .evidence = others});
      return;
    }
    const Version& nvcc = toolkit_->version;
    if (nvcc.known() && nvcc < parse_version("11.7"))
      say({.code = "BUILD_NVCC_TOO_OLD",
           .message = "FlashAttention is only supported on CUDA 11.7 and above",
           .cause = "The nvcc that a build takes is " + nvcc.text() + ".",
           .fix = newer_toolkit(parse_version("12.0")),
           .evidence = {toolkit_->nvcc + " is " + nvcc.text()}});
    judge_cuda_of_torch(nvcc);
    judge_archs(nvcc);
  }

  void judge_cuda_of_torch(const Version& nvcc) {
    if (!python_.torch) return;
    const Version torch = parse_version(python_.torch->cuda_version);
    const std::vector<std::string> evidence = {
        toolkit_->nvcc + " is " + nvcc.text(),
        "torch " + python_.torch->version + " is for CUDA " + (torch.known() ? torch.text() : "none")};
    if (!why_cuda_differs(nvcc, torch).empty()) {
      say({.code = "BUILD_CUDA_MAJOR_MISMATCH",
           .message = "The detected CUDA version (" + std::to_string(nvcc.major_part()) + "." +
                      std::to_string(nvcc.minor_part()) +
                      ") mismatches the version that was used to compile PyTorch (" + torch.text() +
                      "). Please make sure to use the same CUDA versions.",
           .cause = "nvcc and PyTorch must be of the same CUDA major version.",
           .fix = same_major_toolkit(torch),
           .evidence = evidence});
    }
  }

  void judge_archs(const Version& nvcc) {
    if (!nvcc.known()) return;
    const std::string set = survey_.outlook.variable("FLASH_ATTN_CUDA_ARCHS");
    for (const std::string& word : split(set, ';')) {
      const auto known = known_architecture(std::atoi(word.c_str()));
      const std::string why = known ? why_nvcc_cannot(nvcc, {known->sm, 0}) : "";
      if (why.empty()) continue;
      const std::string other_nvcc = nvcc < known->first ? ", or " + newer_toolkit(known->first) : "";
      say({.code = "BUILD_ARCH_UNSUPPORTED_BY_NVCC",
           .message = "nvcc fatal   : Unsupported gpu architecture 'compute_" + word + "'",
           .cause = "FLASH_ATTN_CUDA_ARCHS asks for " + word + ", but " + why + ".",
           .fix = "export FLASH_ATTN_CUDA_ARCHS=\"80;90\"" + other_nvcc,
           .evidence = {toolkit_->nvcc + " is " + nvcc.text()}});
      return;
    }
    if (set.empty() && !why_nvcc_cannot(nvcc, {120, 0}).empty())
      say({.code = "BUILD_ARCH_UNSUPPORTED_BY_NVCC",
           .message = "nvcc fatal   : Unsupported gpu architecture 'compute_120'",
           .cause = "flash-attn's newest sources always ask for compute_120, which nvcc knows from CUDA 12.8 on; "
                    "releases up to "
                    "2.8.3 do not.",
           .fix = "FLASH_ATTN_CUDA_ARCHS=\"80;90\" " + python_.pip() + " install flash-attn --no-build-isolation",
           .evidence = {toolkit_->nvcc + " is " + nvcc.text()}})
          .severity = Severity::kWarning;
    for (const FoundGpu& gpu : survey_.gpus)
      if (gpu.capability && *gpu.capability < ComputeCapability{8, 0}) {
        say({.code = "GPU_TOO_OLD",
             .message = "FlashAttention only supports Ampere GPUs or newer.",
             .cause = "The GPU here is of compute capability " + gpu.capability->text() + ".",
             .fix = "use attn_implementation=\"sdpa\"",
             .evidence = {gpu.place + " " + gpu.name}});
        return;
      }
  }

  void judge_compiler() {
    const Compiler* first = nullptr;
    for (const Compiler& c : survey_.compilers)
      if (c.is_first) first = &c;
    if (!first) {
      say({.code = "BUILD_HOST_COMPILER",
           .message = "error: command 'g++' failed: No such file or directory",
           .cause = "There is no g++ on PATH.",
           .fix = "apt-get install -y g++ (or: conda install -c conda-forge gxx_linux-64)"});
      return;
    }
    const int most = toolkit_ ? toolkit_->most_gcc : 0;
    const auto suits = [&](const Compiler& c) {
      return c.kind == "gcc" && c.version.known() && !is_gcc_too_new(c.version, most) && !is_gcc_too_old(c.version);
    };
    if (first->kind != "gcc" || !first->version.known() || suits(*first)) return;
    std::string fix = most ? "install g++-" + std::to_string(most) : "install a newer g++";
    for (const Compiler& c : survey_.compilers)
      if (suits(c) && c.name.rfind("g++", 0) == 0)
        fix = "export CXX=" + c.path + " NVCC_PREPEND_FLAGS='-ccbin " + c.path + "'";
    if (is_gcc_too_old(first->version)) {
      say({.code = "BUILD_HOST_COMPILER",
           .message = "#error \"You're trying to build PyTorch with a too old version of GCC. We need GCC " +
                      std::to_string(kLeastGcc) + " or later.\"",
           .cause = "torch's headers need g++ " + std::to_string(kLeastGcc) +
                    " or later, and the first one on PATH is " + first->version.text() + ".",
           .fix = fix,
           .evidence = {first->path + " is " + first->version.text()}});
      return;
    }
    say({.code = "BUILD_HOST_COMPILER",
         .message = "#error -- unsupported GNU version! gcc versions later than " + std::to_string(most) +
                    " are not supported!",
         .cause = "nvcc " + toolkit_->version.text() + " takes g++ up to " + std::to_string(most) +
                  ", and the first one on PATH is " + first->version.text() + ".",
         .fix = fix,
         .evidence = {first->path + " is " + first->version.text()}});
  }

  void judge_headers() {
    const std::string name =
        "python3." + std::to_string(python_.facts.version.minor_part()) + (python_.facts.free_threaded ? "t" : "");
    const std::string header = python_.base_prefix + "/include/" + name + "/Python.h";
    if (survey_.outlook.files.is_file(header)) return;
    say({.code = "BUILD_HEADERS_MISSING",
         .message = "fatal error: Python.h: No such file or directory",
         .cause = "Python's header files are not installed.",
         .fix = python_.base_prefix == "/usr" ? "apt-get install -y " + name + "-dev"
                                              : "install a Python with its headers",
         .evidence = {header + " does not exist"}});
  }

  void judge_memory() {
    const BuildPlan plan = default_build_plan(survey_), fitting = fitting_build_plan(survey_);
    const uint64_t free = survey_.host.memory_free_bytes();
    if (free == 0 || plan.peak_bytes <= free) return;
    std::vector<std::string> evidence = {format_bytes(free) + " of memory are free"};
    if (survey_.host.memory_limit_bytes)
      evidence.push_back("the limit of the control group is " + format_bytes(*survey_.host.memory_limit_bytes) +
                         ", the machine has " + format_bytes(survey_.host.memory_bytes));
    say({.code = "BUILD_OOM",
         .message = "Killed",
         .cause = "A build would start " + counted(std::size_t(plan.jobs), "job") + " of " +
                  counted(std::size_t(plan.threads), "nvcc thread") +
                  " each, about 5 GB per thread: " + format_bytes(plan.peak_bytes) +
                  ". setup.py looks at the memory of the whole machine, not at the limit of a "
                  "container or job.",
         .fix = "MAX_JOBS=" + std::to_string(fitting.jobs) + " NVCC_THREADS=" + std::to_string(fitting.threads) + " " +
                python_.pip() + " install flash-attn --no-build-isolation",
         .evidence = evidence});
  }

  void judge_ninja() {
    const std::string folder = folder_name(python_.program);
    if (!survey_.ninja.empty() || python_.package("ninja") || survey_.outlook.files.is_executable(folder + "/ninja"))
      return;
    say({.code = "BUILD_NO_NINJA",
         .message = "Attempted to use ninja as the BuildExtension backend but we could not find ninja.",
         .cause = "Without ninja the 72 files are compiled one after the other, for hours.",
         .fix = python_.pip() + " install ninja"});
  }

  void judge_disk() {
    if (survey_.host.disks.empty() || survey_.host.disks[0].free_bytes >= kDiskBytes) return;
    const DiskSpace& disk = survey_.host.disks[0];
    say({.code = "DISK_FULL",
         .message = "OSError: [Errno 28] No space left on device",
         .cause = "A build takes several GB in the temporary folder.",
         .fix = "TMPDIR=/path/with/space " + python_.pip() + " install flash-attn --no-build-isolation",
         .evidence = {disk.folder + " has " + format_bytes(disk.free_bytes) + " left"}})
        .severity = Severity::kWarning;
  }

  void judge_guess() {
    const std::string name = guessed_wheel(survey_, python_);
    if (name.empty()) return;
    const int cuda = parse_version(python_.torch->cuda_version).major_part();
    if (cuda >= 13) {
      say({.code = "URL_GUESS_WRONG_CUDA",
           .message = "setup.py of 2.8.3 looks for " + name,
           .cause = "It knows CUDA 11 and 12 only, and takes 12 for this torch's " + std::to_string(cuda) +
                    ": if that wheel exists, it will miss libcudart.so.12.",
           .fix = "FLASH_ATTENTION_FORCE_BUILD=TRUE " + python_.pip() + " install flash-attn --no-build-isolation"});
      return;
    }
    for (const AttentionWheel& wheel : published_wheels())
      if (wheel.file == name) return;
    say({.code = "URL_GUESS_404",
         .message = "Precompiled wheel not found. Building from source...",
         .cause = "setup.py looks for " + name + ", which is not among the published ones.",
         .fix = "mica pick shows the nearest one; else the build takes an hour or more"});
  }

  std::string newer_toolkit(const Version& least) const {
    for (const Toolkit& t : survey_.toolkits)
      if (!t.nvcc.empty() && t.version >= least) return "export CUDA_HOME=" + t.folder;
    return "install a CUDA toolkit of " + least.text() + " or later";
  }
  std::string same_major_toolkit(const Version& cuda) const {
    for (const Toolkit& t : survey_.toolkits)
      if (!t.nvcc.empty() && t.version.major_part() == cuda.major_part())
        return "export CUDA_HOME=" + t.folder + " PATH=" + t.folder + "/bin:$PATH";
    return "install a CUDA toolkit " + std::to_string(cuda.major_part()) + ".x, or a torch built with CUDA " +
           std::to_string(toolkit_->version.major_part());
  }

  const Survey& survey_;
  const PythonInstall& python_;
  const Toolkit* toolkit_;
  std::vector<Verdict> verdicts_;
};

int positive(const std::string& text, int otherwise) {
  const int value = std::atoi(text.c_str());
  return value > 0 ? value : otherwise;
}

}  // namespace

std::vector<Verdict> judge_build(const Survey& survey, const PythonInstall& python) {
  return Builder(survey, python).run();
}

BuildPlan default_build_plan(const Survey& survey) {
  BuildPlan plan;
  plan.threads = positive(survey.outlook.variable("NVCC_THREADS"), 4);
  const double available_gb = double(survey.host.memory_available_bytes) / (1 << 30);
  const int by_cores = survey.host.cores / 2, by_memory = int(available_gb / (5.0 * plan.threads));
  plan.jobs = positive(survey.outlook.variable("MAX_JOBS"), std::max(1, std::min(by_cores, by_memory)));
  plan.peak_bytes = uint64_t(plan.jobs) * uint64_t(plan.threads) * kBytesPerThread;
  return plan;
}

BuildPlan fitting_build_plan(const Survey& survey) {
  BuildPlan plan;
  const uint64_t compilers = std::max<uint64_t>(1, survey.host.memory_free_bytes() / kBytesPerThread);
  const uint64_t cores = std::max<uint64_t>(1, uint64_t(std::floor(survey.host.cores_allowed)));
  plan.threads = compilers >= 2 && cores >= 2 ? 2 : 1;
  plan.jobs = int(std::max<uint64_t>(1, std::min(compilers, cores) / uint64_t(plan.threads)));
  plan.peak_bytes = uint64_t(plan.jobs) * uint64_t(plan.threads) * kBytesPerThread;
  return plan;
}

std::string guessed_wheel(const Survey& survey, const PythonInstall& python) {
  if (!python.torch) return "";
  const Version cuda = parse_version(python.torch->cuda_version), torch = parse_version(python.torch->version);
  const bool has_abi = python.torch->cxx_abi == CxxAbi::kNew || python.torch->cxx_abi == CxxAbi::kOld;
  if (!cuda.known() || !torch.known() || !has_abi) return "";
  const std::string tag = "cp3" + std::to_string(python.facts.version.minor_part());
  return "flash_attn-2.8.3+cu" + std::string(cuda.major_part() == 11 ? "11" : "12") + "torch" +
         std::to_string(torch.major_part()) + "." + std::to_string(torch.minor_part()) + "cxx11abi" +
         (python.torch->cxx_abi == CxxAbi::kNew ? "TRUE" : "FALSE") + "-" + tag + "-" + tag + "-linux_" +
         survey.host.machine + ".whl";
}

}  // namespace doctor
