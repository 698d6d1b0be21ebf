// SPDX-License-Identifier: Apache-2.0
// Each code of a build: a system that meets it, and the same system one step away from it that does not.
#include "doctor/build_verdicts.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/doctor/fake_system.h"

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
    out.push_back(verdict.code);
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
  std::function<void(FakeSystem&)> spoil;
};

const std::string kSite = "/opt/conda/lib/python3.12/site-packages";

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"BUILD_ISOLATION", [](FakeSystem& s) { s.remove(kSite + "/packaging-1.0.dist-info"); }},
      {"BUILD_NVCC_MISSING", [](FakeSystem& s) { s.remove("/usr/local/cuda-12.8"); }},
      {"BUILD_NVCC_TOO_OLD",
       [](FakeSystem& s) {
         s.write("/usr/local/cuda-12.8/bin/nvcc", "Cuda compilation tools, release 11.6, V11.6.5\n", true);
         s.set("FLASH_ATTN_CUDA_ARCHS", "80");
         s.add_torch(kSite, "2.1.0+cu118", "11.8", false);
       }},
      {"BUILD_CUDA_MAJOR_MISMATCH",
       [](FakeSystem& s) {
         s.write("/usr/local/cuda-12.8/bin/nvcc", "Cuda compilation tools, release 13.0, V13.0.88\n", true);
       }},
      {"BUILD_ARCH_UNSUPPORTED_BY_NVCC",
       [](FakeSystem& s) {
         s.write("/usr/local/cuda-12.8/bin/nvcc", "Cuda compilation tools, release 12.4, V12.4.131\n", true);
       }},
      {"BUILD_ARCH_UNSUPPORTED_BY_NVCC", [](FakeSystem& s) { s.set("FLASH_ATTN_CUDA_ARCHS", "80;110"); }},
      {"BUILD_HOST_COMPILER",
       [](FakeSystem& s) {
         s.remove("/usr/bin/g++");
         s.remove("/usr/bin/g++-11");
       }},
      {"BUILD_HOST_COMPILER",
       [](FakeSystem& s) {
         s.remove("/usr/bin/g++");
         s.library("/usr/bin/g++-15", {});
         s.link("/usr/bin/g++", "g++-15");
       }},
      {"BUILD_HEADERS_MISSING", [](FakeSystem& s) { s.remove("/opt/conda/include/python3.12/Python.h"); }},
      {"BUILD_OOM",
       [](FakeSystem& s) {
         s.write("/sys/fs/cgroup/cgroup.controllers", "memory\n");
         s.write("/proc/self/cgroup", "0::/\n");
         s.write("/sys/fs/cgroup/memory.max", "17179869184\n");
       }},
      {"BUILD_OOM", [](FakeSystem& s) { s.set("MAX_JOBS", "16"); }},
      {"BUILD_NO_NINJA", [](FakeSystem& s) { s.remove(kSite + "/ninja-1.0.dist-info"); }},
      {"URL_GUESS_404", [](FakeSystem& s) { s.add_torch(kSite, "2.9.0+cu128", "12.8", true); }},
      {"GPU_TOO_OLD",
       [](FakeSystem& s) {
         s.write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
         s.write("/sys/bus/pci/devices/0000:01:00.0/device", "0x1eb8\n");
         s.write("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
       }},
  };
  return all;
}

TEST(Build, EachCodeAlone) {
  for (const Case& c : cases()) {
    FakeSystem system;
    make_good(system);
    c.spoil(system);
    std::vector<std::string> found = codes(system);
    // No wheel is published for the torch of an old CUDA.
    if (std::string(c.code) == "BUILD_NVCC_TOO_OLD") std::erase(found, "URL_GUESS_404");
    EXPECT_EQ(found, std::vector<std::string>{c.code});
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

TEST(Build, NearMisses) {
  const std::vector<std::function<void(FakeSystem&)>> harmless = {
      [](FakeSystem& s) {
        s.write("/usr/local/cuda-12.8/bin/nvcc", "Cuda compilation tools, release 12.9, V12.9.1\n", true);
      },
      [](FakeSystem& s) {
        s.write("/usr/local/cuda-12.8/bin/nvcc", "Cuda compilation tools, release 12.4, V12.4.131\n", true);
        s.set("FLASH_ATTN_CUDA_ARCHS", "80;90");
      },
      [](FakeSystem& s) { s.set("FLASH_ATTN_CUDA_ARCHS", "80;120"); },
      [](FakeSystem& s) {  // the newest that 12.8 takes
        s.remove("/usr/bin/g++");
        s.library("/usr/bin/g++-14", {});
        s.link("/usr/bin/g++", "g++-14");
      },
      [](FakeSystem& s) {  // a limit, but a wide one
        s.write("/sys/fs/cgroup/cgroup.controllers", "memory\n");
        s.write("/proc/self/cgroup", "0::/\n");
        s.write("/sys/fs/cgroup/memory.max", "64424509440\n");
      },
      [](FakeSystem& s) { s.set("MAX_JOBS", "6"); },
      [](FakeSystem& s) {
        s.remove(kSite + "/ninja-1.0.dist-info");
        s.library("/usr/bin/ninja", {});
      },
      [](FakeSystem& s) { s.add_torch(kSite, "2.7.1+cu126", "12.6", true); },
      [](FakeSystem& s) {
        s.write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
        s.write("/sys/bus/pci/devices/0000:01:00.0/device", "0x20b2\n");
        s.write("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
      },
      [](FakeSystem& s) {  // found on PATH instead
        s.set("CUDA_HOME", "");
        s.set("PATH", "/usr/bin:/usr/local/cuda-12.8/bin");
      },
  };
  for (std::size_t i = 0; i < harmless.size(); ++i) {
    FakeSystem system;
    make_good(system);
    harmless[i](system);
    EXPECT_EQ(codes(system), std::vector<std::string>{}) << i;
  }
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
