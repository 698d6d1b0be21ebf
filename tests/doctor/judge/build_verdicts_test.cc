// SPDX-License-Identifier: Apache-2.0
// Each code of a build: a system that meets it, and the same system one step away from it that does not.
#include "doctor/judge/build_verdicts.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/doctor/fake_system.h"
#include "tests/verdict_notes.h"

namespace doctor {
namespace {

// A machine on which flash-attn builds: 64 GiB, CUDA 12.8, g++ 11, torch 2.8 for CUDA 12.8.
void make_good(FakeSystem& system) {
  system.add_base();
  const std::string site = system.add_python("/opt/conda", "3.12.4");
  system.set("CONDA_PREFIX", "/opt/conda");
  system.add_torch(site, "2.8.0+cu128", "12.8", true);
  for (const char* name : {"packaging", "setuptools", "wheel", "psutil", "ninja"})
    system.add_package(site, name, "1.0");
  system.write("/usr/local/cuda-12.8/bin/nvcc", "Cuda compilation tools, release 12.8, V12.8.93\n", true);
  system.set("CUDA_HOME", "/usr/local/cuda-12.8");
  system.set("NVCC_THREADS", "2");
  system.library("/usr/bin/g++-11", {});
  system.link("/usr/bin/g++", "g++-11");
}

std::vector<std::string> codes(FakeSystem& system) {
  const Survey found = survey(system.outlook());
  std::vector<std::string> out;
  if (found.pythons.empty()) return {"no Python"};
  for (const Verdict& verdict : judge_build(found, found.pythons[0])) {
    EXPECT_FALSE(verdict.cause.empty() || verdict.fix.empty()) << verdict.code;
    out.push_back(verdict.code.text());
  }
  return out;
}

TEST(Build, NothingToComplainAbout) {
  FakeSystem system;
  make_good(system);
  EXPECT_EQ(codes(system), std::vector<std::string>{});
}

struct Case {
  const char* code;
  std::function<void(FakeSystem&)> spoil, near_miss;
};

const std::string kSite = "/opt/conda/lib/python3.12/site-packages";

void set_nvcc(FakeSystem& s, const std::string& release) {
  s.write("/usr/local/cuda-12.8/bin/nvcc", "Cuda compilation tools, release " + release + ", V" + release + ".5\n",
          true);
}
void set_compiler(FakeSystem& s, const std::string& version) {
  s.remove("/usr/bin/g++");
  s.library("/usr/bin/g++-" + version, {});
  s.link("/usr/bin/g++", "g++-" + version);
}
void set_memory_limit(FakeSystem& s, const std::string& bytes) {
  s.write("/sys/fs/cgroup/cgroup.controllers", "memory\n");
  s.write("/proc/self/cgroup", "0::/\n");
  s.write("/sys/fs/cgroup/memory.max", bytes + "\n");
}
void set_gpu(FakeSystem& s, const std::string& device) {
  s.write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
  s.write("/sys/bus/pci/devices/0000:01:00.0/device", device + "\n");
  s.write("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"BUILD_ISOLATION", [](FakeSystem& s) { s.remove(kSite + "/packaging-1.0.dist-info"); },
       [](FakeSystem& s) { s.add_package(kSite, "packaging", "26.1"); }},
      {"BUILD_NVCC_MISSING", [](FakeSystem& s) { s.remove("/usr/local/cuda-12.8"); },
       [](FakeSystem& s) {  // found on PATH instead
         s.set("CUDA_HOME", "");
         s.set("PATH", "/usr/bin:/usr/local/cuda-12.8/bin");
       }},
      {"BUILD_NVCC_TOO_OLD",
       [](FakeSystem& s) {
         set_nvcc(s, "11.6");
         s.set("FLASH_ATTN_CUDA_ARCHS", "80");
         s.add_torch(kSite, "2.1.0+cu118", "11.8", false);
       },
       [](FakeSystem& s) {
         set_nvcc(s, "11.7");
         s.set("FLASH_ATTN_CUDA_ARCHS", "80");
         s.add_torch(kSite, "2.1.0+cu118", "11.8", false);
       }},
      {"BUILD_CUDA_MAJOR_MISMATCH", [](FakeSystem& s) { set_nvcc(s, "13.0"); },
       [](FakeSystem& s) { set_nvcc(s, "12.9"); }},
      {"BUILD_ARCH_UNSUPPORTED_BY_NVCC", [](FakeSystem& s) { set_nvcc(s, "12.4"); },
       [](FakeSystem& s) {
         set_nvcc(s, "12.4");
         s.set("FLASH_ATTN_CUDA_ARCHS", "80;90");
       }},
      {"BUILD_ARCH_UNSUPPORTED_BY_NVCC", [](FakeSystem& s) { s.set("FLASH_ATTN_CUDA_ARCHS", "80;110"); },
       [](FakeSystem& s) { s.set("FLASH_ATTN_CUDA_ARCHS", "80;120"); }},
      {"BUILD_HOST_COMPILER",
       [](FakeSystem& s) {
         s.remove("/usr/bin/g++");
         s.remove("/usr/bin/g++-11");
       },
       [](FakeSystem& s) { s.remove("/usr/bin/g++-12"); }},
      {"BUILD_HOST_COMPILER", [](FakeSystem& s) { set_compiler(s, "15"); },
       [](FakeSystem& s) { set_compiler(s, "14"); }},  // the newest that 12.8 takes
      {"BUILD_HOST_COMPILER", [](FakeSystem& s) { set_compiler(s, "8"); }, [](FakeSystem& s) { set_compiler(s, "9"); }},
      {"BUILD_HOST_COMPILER",
       [](FakeSystem& s) {  // the toolkit's own word comes before the table's
         s.write("/usr/local/cuda-12.8/include/crt/host_config.h", "#if __GNUC__ > 12\n#error\n#endif\n");
         set_compiler(s, "13");
       },
       [](FakeSystem& s) {
         s.write("/usr/local/cuda-12.8/include/crt/host_config.h", "#if __GNUC__ > 13\n#error\n#endif\n");
         set_compiler(s, "13");
       }},
      {"BUILD_ARCH_UNSUPPORTED_BY_NVCC",
       [](FakeSystem& s) {  // 13.0 dropped it
         s.add_torch(kSite, "2.9.0+cu130", "13.0", true);
         set_nvcc(s, "13.0");
         s.set("FLASH_ATTN_CUDA_ARCHS", "70;90");
       },
       [](FakeSystem& s) { s.set("FLASH_ATTN_CUDA_ARCHS", "70;90"); }},
      {"BUILD_HEADERS_MISSING", [](FakeSystem& s) { s.remove("/opt/conda/include/python3.12/Python.h"); },
       [](FakeSystem& s) {  // another Python's
         s.add_python("/usr", "3.11.2");
         s.remove("/usr/include/python3.11/Python.h");
       }},
      {"BUILD_OOM", [](FakeSystem& s) { set_memory_limit(s, "17179869184"); },
       [](FakeSystem& s) { set_memory_limit(s, "64424509440"); }},
      {"BUILD_OOM", [](FakeSystem& s) { s.set("MAX_JOBS", "16"); }, [](FakeSystem& s) { s.set("MAX_JOBS", "6"); }},
      {"BUILD_NO_NINJA", [](FakeSystem& s) { s.remove(kSite + "/ninja-1.0.dist-info"); },
       [](FakeSystem& s) {
         s.remove(kSite + "/ninja-1.0.dist-info");
         s.library("/usr/bin/ninja", {});
       }},
      {"URL_GUESS_404", [](FakeSystem& s) { s.add_torch(kSite, "2.9.0+cu128", "12.8", true); },
       [](FakeSystem& s) { s.add_torch(kSite, "2.7.1+cu126", "12.6", true); }},
      {"URL_GUESS_WRONG_CUDA",
       [](FakeSystem& s) {
         s.add_torch(kSite, "2.9.0+cu130", "13.0", true);
         set_nvcc(s, "13.0");
       },
       [](FakeSystem& s) { set_nvcc(s, "12.9"); }},
      {"GPU_TOO_OLD", [](FakeSystem& s) { set_gpu(s, "0x1eb8"); }, [](FakeSystem& s) { set_gpu(s, "0x20b2"); }},
  };
  return all;
}

TEST(Build, EachCodeAlone) {
  for (const Case& c : cases()) {
    FakeSystem system, near;
    make_good(system);
    c.spoil(system);
    make_good(near);
    c.near_miss(near);
    std::vector<std::string> found = codes(system), missed = codes(near);
    // No wheel is published for the torch of an old CUDA.
    if (std::string(c.code) == "BUILD_NVCC_TOO_OLD")
      std::erase(found, "URL_GUESS_404"), std::erase(missed, "URL_GUESS_404");
    // What dropped an architecture is also too new for setup.py's guess.
    if (std::string(c.code) == "BUILD_ARCH_UNSUPPORTED_BY_NVCC") std::erase(found, "URL_GUESS_WRONG_CUDA");
    EXPECT_EQ(found, std::vector<std::string>{c.code});
    EXPECT_EQ(missed, std::vector<std::string>{}) << c.code;
    note_covered(c.code);
  }
}

TEST(Build, TheWrongCudaIsGuessed) {
  FakeSystem system;
  make_good(system);
  system.add_torch(kSite, "2.9.0+cu130", "13.0", true);
  system.write("/usr/local/cuda-12.8/bin/nvcc", "Cuda compilation tools, release 13.0, V13.0.88\n", true);
  EXPECT_EQ(codes(system), std::vector<std::string>{"URL_GUESS_WRONG_CUDA"});
  const Survey found = survey(system.outlook());
  EXPECT_EQ(guessed_wheel(found, found.pythons[0]),
            "flash_attn-2.8.3+cu12torch2.9cxx11abiTRUE-cp312-cp312-linux_x86_64.whl");
}

TEST(Build, ATorchForTheCpuHasNothingToBuildFor) {
  FakeSystem system;
  make_good(system);
  system.add_torch(kSite, "2.8.0+cpu", "", true);
  EXPECT_EQ(codes(system), std::vector<std::string>{"BUILD_NVCC_MISSING"});
}

TEST(Build, ThePlanThatFits) {
  FakeSystem system;
  make_good(system);
  Survey found = survey(system.outlook());
  EXPECT_EQ(default_build_plan(found).jobs, 6);  // 60 GiB / (5 x 2), less than 16 / 2
  found.host.memory_limit_bytes = uint64_t(12) << 30;
  const BuildPlan plan = fitting_build_plan(found);
  EXPECT_EQ(plan.jobs * plan.threads, 2);
  EXPECT_LE(plan.peak_bytes, *found.host.memory_limit_bytes);
  found.host.memory_limit_bytes = uint64_t(1) << 30;
  EXPECT_EQ(fitting_build_plan(found).jobs, 1);
}

}  // namespace
}  // namespace doctor
