// SPDX-License-Identifier: Apache-2.0
// What is found on systems that the test builds, and on broken ones.
#include "doctor/system/survey.h"

#include <gnu/libc-version.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "doctor/facts/mangled.h"
#include "doctor/load/hwcaps.h"
#include "doctor/load/loader_cache.h"
#include "doctor/tables/gpus.h"
#include "tests/doctor/fake_system.h"

namespace doctor {
namespace {

TEST(Files, LinksStayInside) {
  FakeSystem system;
  system.write("/a/b/file", "text");
  system.link("/absolute", "/a/b/file");
  system.link("/relative", "a/./b/../b/file");
  system.link("/escape", "../../../../../../a/b/file");
  system.link("/loop1", "loop2");
  system.link("/loop2", "loop1");
  system.link("/self", "self/self/self");
  system.link("/nowhere", "missing");
  system.link("/folder", "a/b");
  const Files files(system.root());
  for (const char* path : {"/absolute", "/relative", "/escape", "/folder/file", "//a//b/./file", "/../a/b/file"}) {
    EXPECT_EQ(files.resolve(path), "/a/b/file") << path;
    EXPECT_EQ(files.read(path), "text") << path;
  }
  for (const char* path : {"/loop1", "/self", "/nowhere", "/a/b/file2", "/a/missing/file"}) {
    EXPECT_FALSE(files.resolve(path)) << path;
    EXPECT_FALSE(files.read(path)) << path;
  }
  EXPECT_FALSE(files.read("/a")) << "a folder";
  EXPECT_FALSE(files.read("/a/b/file", 3)) << "too long";
  EXPECT_EQ(files.match("/*/b/f*e"), std::vector<std::string>({"/a/b/file"}));
  EXPECT_TRUE(files.match("/x*/y").empty());
  ASSERT_EQ(mkfifo((system.root() + "/pipe").c_str(), 0600), 0);
  EXPECT_FALSE(files.read("/pipe")) << "must not wait for a writer";
}

TEST(Host, OfAnUbuntu) {
  FakeSystem system;
  system.add_base();
  const HostFacts host = read_host(system.outlook());
  EXPECT_EQ(host.machine, "x86_64");
  EXPECT_EQ(host.system, "Ubuntu 22.04.4 LTS");
  EXPECT_EQ(host.kernel, "5.15.0-100-generic");
  EXPECT_EQ(host.libc, "glibc");
  EXPECT_EQ(host.libc_version, parse_version("2.35"));
  EXPECT_EQ(host.glibcxx, parse_version("3.4.30"));
  EXPECT_EQ(host.cxxabi, parse_version("1.3.13"));
  EXPECT_EQ(host.cores, 16);
  EXPECT_EQ(host.cores_allowed, 16);
  EXPECT_EQ(host.memory_bytes, uint64_t(64) << 30);
  EXPECT_EQ(host.memory_free_bytes(), uint64_t(60) << 30);
  EXPECT_FALSE(host.memory_limit_bytes);
  EXPECT_EQ(host.loader.default_folders[0], "/lib/x86_64-linux-gnu");
  EXPECT_EQ(host.disks.size(), 2u);  // the current folder is the home folder
}

TEST(Host, OfThisMachine) {
  const HostFacts host = read_host(outlook_here());
  EXPECT_EQ(host.libc_version, parse_version(gnu_get_libc_version()));
  EXPECT_GT(host.memory_bytes, 0u);
  EXPECT_GT(host.cores_allowed, 0);
  EXPECT_LE(host.cores_allowed, host.cores);
  if (std::filesystem::exists("/etc/ld.so.cache")) {
    EXPECT_FALSE(host.loader.cache.empty());
  }
}

TEST(Host, ControlGroupsOfVersion2) {
  FakeSystem system;
  system.add_base();
  system.write("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
  system.write("/proc/self/cgroup", "0::/system.slice/job/step\n");
  system.write("/sys/fs/cgroup/system.slice/job/step/memory.max", "max\n");
  system.write("/sys/fs/cgroup/system.slice/job/memory.max", "8589934592\n");  // the group around it sets the limit
  system.write("/sys/fs/cgroup/system.slice/job/memory.current", "3221225472\n");
  system.write("/sys/fs/cgroup/system.slice/job/memory.stat", "anon 5\ninactive_file 1073741824\n");
  system.write("/sys/fs/cgroup/system.slice/job/cpu.max", "250000 100000\n");
  system.write("/proc/self/status", "Cpus_allowed_list:\t0-3,8\n");
  const HostFacts host = read_host(system.outlook());
  EXPECT_EQ(host.cgroup_version, 2);
  EXPECT_EQ(host.memory_limit_bytes, uint64_t(8) << 30);
  EXPECT_EQ(host.memory_used_bytes, uint64_t(2) << 30);
  EXPECT_EQ(host.memory_free_bytes(), uint64_t(6) << 30);
  EXPECT_EQ(host.cores_allowed, 2.5);
}

TEST(Host, ControlGroupsOfVersion1) {
  FakeSystem system;
  system.add_base();
  system.write("/proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n");
  // Inside a container the group's own path is not there, its mount point is.
  system.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n");
  system.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
  system.write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  system.write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  const HostFacts host = read_host(system.outlook());
  EXPECT_EQ(host.cgroup_version, 1);
  EXPECT_EQ(host.memory_limit_bytes, uint64_t(4) << 30);
  EXPECT_EQ(host.memory_used_bytes, uint64_t(1) << 30);
  EXPECT_EQ(host.cores_allowed, 16);  // -1: no quota
  system.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(read_host(system.outlook()).memory_limit_bytes);
}

std::string loader_cache(const std::vector<std::pair<std::string, std::string>>& entries, uint32_t flags) {
  std::string head = "glibc-ld.so.cache1.1", strings;
  const auto put = [&](uint32_t value) { head.append(reinterpret_cast<const char*>(&value), 4); };
  put(uint32_t(entries.size()));
  put(0);
  for (int i = 0; i < 5; ++i) put(0);
  const uint32_t base = uint32_t(48 + 24 * entries.size());
  for (const auto& [name, path] : entries) {
    put(flags);
    put(base + uint32_t(strings.size()));
    strings += name + '\0';
    put(base + uint32_t(strings.size()));
    strings += path + '\0';
    put(0);
    put(0);
    put(0);
  }
  return head + strings;
}

TEST(LoaderCache, CopiesForNewerProcessorsComeLast) {
  std::string bytes = loader_cache({{"libz.so.1", "/lib/glibc-hwcaps/x86-64-v3/libz.so.1"},
                                    {"libz.so.1", "/lib/libz.so.1"},
                                    {"libz.so.1", "/lib/haswell/libz.so.1"}},
                                   0x0303);
  const auto set_hwcap = [&](std::size_t entry, uint64_t value) {
    std::memcpy(&bytes[48 + 24 * entry + 16], &value, 8);
  };
  set_hwcap(0, uint64_t(1) << 62);
  set_hwcap(2, 4);
  MemorySource source(bytes);
  const auto entries = read_loader_cache(source, "x86_64", nullptr);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].second, "/lib/libz.so.1");
  EXPECT_EQ(hwcap_of_path(entries[1].second), "x86-64-v3");
}

TEST(Hwcaps, FromWhatLinuxSaysOfTheProcessor) {
  const std::string v2 = "processor: 0\nflags\t\t: fpu cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 ";
  const std::string v3 = v2 + "avx avx2 bmi1 bmi2 f16c fma abm movbe ";
  using Names = std::vector<std::string>;
  EXPECT_EQ(hwcaps_of("x86_64", v2 + "\n"), Names{"x86-64-v2"});
  EXPECT_EQ(hwcaps_of("x86_64", v3 + "avx512f\n"), (Names{"x86-64-v3", "x86-64-v2"}));
  EXPECT_EQ(hwcaps_of("x86_64", v3 + "avx512f avx512bw avx512cd avx512dq avx512vl").size(), 3u);
  EXPECT_EQ(hwcaps_of("aarch64", v3), Names{});
  for (const char* bad : {"", "flags", "flags:", "flags\n:"}) EXPECT_EQ(hwcaps_of("x86_64", bad), Names{}) << bad;
  EXPECT_EQ(hwcap_of_path("/lib/libz.so.1"), "");
  EXPECT_EQ(hwcap_of_path("/lib/glibc-hwcaps/"), "");
}

TEST(LoaderCache, ReadsItsEntriesAndSurvivesTheRest) {
  const std::string good = loader_cache({{"libc.so.6", "/lib/libc.so.6"}, {"liba.so", "/a/liba.so"}}, 0x0303);
  const auto read = [](const std::string& bytes, const char* machine, std::size_t* problems = nullptr) {
    std::vector<std::string> list;
    MemorySource source(bytes);
    const auto entries = read_loader_cache(source, machine, &list);
    if (problems) *problems = list.size();
    return entries.size();
  };
  EXPECT_EQ(read(good, "x86_64"), 2u);
  EXPECT_EQ(read(good, "aarch64"), 0u);
  // An old list may stand before the new one.
  std::string old = "ld.so-1.7.0";
  old.resize(16);
  EXPECT_EQ(read(old + good, "x86_64"), 2u);
  for (std::size_t n = 0; n < good.size(); ++n) {
    std::size_t problems = 0;
    EXPECT_LE(read(good.substr(0, n), "x86_64", &problems), 2u);
    EXPECT_EQ(problems, 1u) << n;
  }
  for (std::size_t i = 20; i < good.size(); ++i)
    for (const char value : {'\xff', '\x00', '\x7f'}) {
      std::string bad = good;
      bad[i] = value;
      read(bad, "x86_64");
    }
}

TEST(Driver, FromEachPlace) {
  const auto driver = [](FakeSystem& system) {
    const HostFacts host = read_host(system.outlook());
    return read_driver(system.outlook(), host.loader);
  };
  FakeSystem system;
  system.add_base();
  EXPECT_FALSE(driver(system).version.known());
  system.library("/usr/lib/x86_64-linux-gnu/libcuda.so.535.104.05", {.soname = "libcuda.so.1"});
  system.link("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "libcuda.so.535.104.05");
  EXPECT_EQ(driver(system).version, parse_version("535.104.05"));
  EXPECT_EQ(driver(system).cuda, parse_version("12.2"));
  system.write("/proc/driver/nvidia/version",
               "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x@y)  Tue Sep 23 "
               "10:11:16 UTC 2025\nGCC version:  gcc version 12.3.0\n");
  EXPECT_EQ(driver(system).version, parse_version("580.95.05"));
  EXPECT_EQ(driver(system).cuda, parse_version("13.0"));
  system.write("/usr/local/cuda-13.0/compat/libcuda.so.1", "");
  EXPECT_EQ(driver(system).compatibility, std::vector<std::string>({"/usr/local/cuda-13.0/compat"}));
}

TEST(Gpus, ByTheirIds) {
  FakeSystem system;
  system.add_base();
  const auto add = [&](const std::string& place, const char* vendor, const char* device, const char* kind) {
    const std::string folder = "/sys/bus/pci/devices/" + place;
    system.write(folder + "/vendor", vendor);
    system.write(folder + "/device", device);
    system.write(folder + "/class", kind);
  };
  add("0000:00:02.0", "0x8086\n", "0x1234\n", "0x030000\n");  // another maker's
  add("0000:1b:00.0", "0x10de\n", "0x2330\n", "0x030200\n");
  add("0000:1b:00.1", "0x10de\n", "0x10f0\n", "0x040300\n");  // its sound
  add("0000:2b:00.0", "0x10de\n", "0xffff\n", "0x030200\n");  // not known
  system.write("/proc/driver/nvidia/gpus/0000:1b:00.0/information", "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n");
  const auto gpus = read_gpus(system.outlook());
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(gpus[0].capability, (ComputeCapability{9, 0}));
  EXPECT_FALSE(gpus[1].capability);
  for (const auto& [id, major, minor] : std::vector<std::tuple<int, int, int>>{{0x1db4, 7, 0},
                                                                               {0x1eb8, 7, 5},
                                                                               {0x20b2, 8, 0},
                                                                               {0x2204, 8, 6},
                                                                               {0x2684, 8, 9},
                                                                               {0x2335, 9, 0},
                                                                               {0x2901, 10, 0},
                                                                               {0x2b85, 12, 0},
                                                                               {0x2e12, 12, 1},
                                                                               {0x3182, 10, 3}})
    EXPECT_EQ(capability_of_device(id), (ComputeCapability{major, minor})) << std::hex << id;
  EXPECT_EQ(capability_of_name("NVIDIA A100-SXM4-80GB"), (ComputeCapability{8, 0}));
  EXPECT_EQ(capability_of_name("Tesla T4"), (ComputeCapability{7, 5}));
  EXPECT_FALSE(capability_of_name("Radeon"));
}

TEST(Toolkits, InTheOrderThatABuildLooks) {
  FakeSystem system;
  system.add_base();
  system.write("/usr/local/cuda-12.4/bin/nvcc", "..Cuda compilation tools, release 12.4, V12.4.131\0..", true);
  system.write("/usr/local/cuda-12.8/bin/nvcc", "#", true);
  system.write("/usr/local/cuda-12.8/version.json",
               "{\n \"cuda\" : {\n \"name\" : \"CUDA SDK\",\n \"version\" : \"12.8.1\"\n } }");
  system.write("/usr/local/cuda-11.8/include/cuda.h", "#define CUDA_VERSION 11080\n");
  system.link("/usr/local/cuda", "cuda-12.8");
  system.write("/usr/bin/nvcc", "#!/bin/sh\nexec /usr/local/cuda-12.4/bin/nvcc \"$@\"\n", true);
  auto toolkits = read_toolkits(system.outlook(), {}, {});
  ASSERT_EQ(toolkits.size(), 3u);
  const Toolkit* build = build_toolkit(toolkits);
  ASSERT_TRUE(build);
  EXPECT_EQ(build->version, parse_version("12.4.131"));  // the first nvcc on PATH, through the script
  for (const Toolkit& t : toolkits)
    if (t.folder == "/usr/local/cuda-11.8") {
      EXPECT_EQ(t.version, parse_version("11.8"));
      EXPECT_TRUE(t.nvcc.empty());
    }
  system.set("CUDA_HOME", "/usr/local/cuda");
  toolkits = read_toolkits(system.outlook(), {}, {});
  build = build_toolkit(toolkits);
  ASSERT_TRUE(build);
  EXPECT_EQ(build->folder, "/usr/local/cuda-12.8");
  EXPECT_EQ(build->version, parse_version("12.8.1"));
}

TEST(Compilers, AndTheirDefaultAbi) {
  FakeSystem system;
  system.add_base();
  system.library("/usr/bin/x86_64-linux-gnu-g++-11", {});
  system.link("/usr/bin/g++-11", "x86_64-linux-gnu-g++-11");
  system.link("/usr/bin/g++", "g++-11");
  system.folder("/usr/lib/gcc/x86_64-linux-gnu/11");
  system.write("/usr/include/x86_64-linux-gnu/c++/11/bits/c++config.h", "# define _GLIBCXX_USE_CXX11_ABI 1\n");
  system.library("/opt/rh/usr/bin/g++", {});
  system.folder("/opt/rh/usr/lib/gcc/x86_64-redhat-linux/9");
  system.write("/opt/rh/usr/include/c++/9/x86_64-redhat-linux/bits/c++config.h", "# define _GLIBCXX_USE_CXX11_ABI 0\n");
  system.write("/usr/bin/g++-filter.txt", "", true);
  system.set("PATH", "/usr/bin:/opt/rh/usr/bin");
  const auto compilers = read_compilers(system.outlook());
  ASSERT_EQ(compilers.size(), 2u);
  EXPECT_TRUE(compilers[0].is_first);
  EXPECT_EQ(compilers[0].version, parse_version("11"));
  EXPECT_EQ(compilers[0].cxx_abi, CxxAbi::kNew);
  EXPECT_EQ(compilers[1].version, parse_version("9"));
  EXPECT_EQ(compilers[1].cxx_abi, CxxAbi::kOld);
}

TEST(Pythons, FromEveryPlace) {
  FakeSystem system;
  system.add_base();
  system.add_python("/usr", "3.10.12");
  system.add_python("/opt/conda", "3.11.9");
  system.write("/opt/conda/conda-meta/python-3.11.9-h1.json", "{}");
  system.add_python("/home/user/.pyenv/versions/3.9.18", "3.9.18");
  system.add_python("/home/user/.local/share/uv/python/cpython-3.13.0-linux-x86_64-gnu", "3.13.0");
  system.add_python("/srv/free", "3.13.1", "t");
  system.add_virtual_environment("/home/user/.venv", "/usr", "3.10.12");
  system.write("/home/user/.local/share/jupyter/kernels/gpu/kernel.json",
               "{\"argv\": [\"/srv/free/bin/python\", \"-m\", \"ipykernel\"], \"language\": \"python\"}");
  system.write("/home/user/.pyenv/shims/python", "#!/usr/bin/env bash\nexec pyenv exec\n", true);
  system.write("/home/user/.pyenv/version", "3.9.18\n");
  system.write("/usr/bin/python3-config", "", true);
  system.set("PATH", "/home/user/.pyenv/shims:/usr/bin");
  const auto pythons = read_pythons(system.outlook(), "x86_64");
  std::map<std::string, const PythonInstall*> by_prefix;
  for (const PythonInstall& python : pythons) by_prefix[python.prefix] = &python;
  ASSERT_EQ(by_prefix.size(), 6u);
  ASSERT_EQ(pythons.size(), 6u);
  EXPECT_EQ(pythons[0].prefix, "/home/user/.pyenv/versions/3.9.18");  // behind the shim
  EXPECT_TRUE(pythons[0].is_active);
  EXPECT_EQ(by_prefix.at("/usr")->facts.version, parse_version("3.10.12"));
  EXPECT_EQ(by_prefix.at("/usr")->kind, "system");
  EXPECT_EQ(by_prefix.at("/opt/conda")->kind, "conda");
  EXPECT_EQ(by_prefix.at("/opt/conda")->facts.version, parse_version("3.11.9"));
  const PythonInstall& venv = *by_prefix.at("/home/user/.venv");
  EXPECT_EQ(venv.kind, "virtual environment");
  EXPECT_EQ(venv.base_prefix, "/usr");
  EXPECT_EQ(venv.facts.soabi, "cpython-310-x86_64-linux-gnu");
  EXPECT_EQ(venv.facts.executable, "/usr/bin/python3.10");
  EXPECT_EQ(venv.facts.site_packages, std::vector<std::string>({"/home/user/.venv/lib/python3.10/site-packages"}));
  const PythonInstall& free = *by_prefix.at("/srv/free");
  EXPECT_TRUE(free.facts.free_threaded);
  EXPECT_EQ(free.facts.soabi, "cpython-313t-x86_64-linux-gnu");
  EXPECT_EQ(free.found_by, std::vector<std::string>({"Jupyter kernel gpu"}));
}

TEST(Torch, TheAbiComesFromTheSymbols) {
  for (const bool is_new : {false, true}) {
    FakeSystem system;
    system.add_base();
    const std::string site = system.add_python("/opt/conda", "3.12.4");
    system.add_torch(site, "2.6.0", "12.4", is_new);  // this version exists with both
    system.set("CONDA_PREFIX", "/opt/conda");
    const auto pythons = read_pythons(system.outlook(), "x86_64");
    ASSERT_FALSE(pythons.empty());
    ASSERT_TRUE(pythons[0].torch);
    EXPECT_EQ(pythons[0].torch->version, "2.6.0");
    EXPECT_EQ(pythons[0].torch->cuda_version, "12.4");
    EXPECT_EQ(pythons[0].torch->cxx_abi, is_new ? CxxAbi::kNew : CxxAbi::kOld);
    EXPECT_TRUE(pythons[0].package("torch"));
  }
}

TEST(Torch, NearMisses) {
  FakeSystem system;
  system.add_base();
  const std::string site = system.add_python("/opt/conda", "3.12.4");
  system.set("CONDA_PREFIX", "/opt/conda");
  system.folder(site + "/torch");  // a folder of that name is no torch
  EXPECT_FALSE(read_pythons(system.outlook(), "x86_64").at(0).torch);
  system.write(site + "/torch/version.py", "__version__ = \"2.9.0+cpu\"\ncuda = None\n");
  system.write(site + "/torch/lib/libc10.so",
               "\x7f"
               "ELF and nothing more");
  const auto torch = read_pythons(system.outlook(), "x86_64").at(0).torch;
  ASSERT_TRUE(torch);
  EXPECT_EQ(torch->version, "2.9.0+cpu");
  EXPECT_EQ(torch->cuda_version, "");
  EXPECT_EQ(torch->cxx_abi, CxxAbi::kUnknown);
}

TEST(Survey, OfBrokenSystems) {
  FakeSystem empty;
  const Survey nothing = survey(empty.outlook());
  EXPECT_TRUE(nothing.pythons.empty());
  EXPECT_TRUE(nothing.toolkits.empty());
  EXPECT_EQ(nothing.host.libc, "");

  FakeSystem system;
  system.add_base();
  system.link("/opt/conda", "/opt/conda");  // loops
  system.link("/home/user/.venv/bin/python", "../../.venv/bin/python");
  system.write("/home/user/.venv/pyvenv.cfg", "home = /home/user/.venv/bin\n");
  system.link("/usr/local/cuda", "/usr/local/cuda/cuda");
  system.write("/etc/ld.so.cache", std::string(5000, '\xff'));
  system.write("/usr/lib/x86_64-linux-gnu/libc.so.6", std::string("\x7f"
                                                                  "ELF\x02\x01\x01",
                                                                  7) +
                                                          std::string(200, '\xff'));
  system.write("/home/user/.conda/environments.txt", std::string(3 << 20, '/'));  // larger than any real one
  system.write("/home/user/.local/share/jupyter/kernels/bad/kernel.json", "{\"argv\": [");
  system.write("/proc/meminfo", "MemTotal: many kB\n");
  system.write("/sys/devices/system/cpu/online", "0-99999999999,5-2,x\n");
  system.add_python("/usr", "3.10.12");
  system.write("/usr/lib/python3.10/_sysconfigdata__linux_x86_64-linux-gnu.py", "'SOABI': ");
  const Survey broken = survey(system.outlook());
  ASSERT_EQ(broken.pythons.size(), 1u);
  EXPECT_EQ(broken.pythons[0].facts.soabi, "cpython-310-x86_64-linux-gnu");  // by its version and machine
  EXPECT_FALSE(broken.host.libc_version.known());
  EXPECT_FALSE(broken.host.problems.empty());
}

TEST(Survey, OfThisMachine) { EXPECT_FALSE(survey(outlook_here()).pythons.empty()); }

TEST(Survey, FindsAPythonByProgramOrFolder) {
  FakeSystem system;
  system.add_base();
  system.add_python("/usr", "3.10.12");
  system.add_python("/srv/odd", "3.12.1");
  Survey found = survey(system.outlook());
  EXPECT_EQ(found.pythons.size(), 1u);
  EXPECT_EQ(find_python(found, "python3")->prefix, "/usr");
  EXPECT_EQ(find_python(found, "/srv/odd")->facts.version, parse_version("3.12.1"));
  EXPECT_EQ(find_python(found, "/srv/odd/bin/python")->prefix, "/srv/odd");
  EXPECT_EQ(find_python(found, "/usr/bin/dash"), nullptr);
  EXPECT_EQ(find_python(found, "/nowhere"), nullptr);
}

}  // namespace
}  // namespace doctor
