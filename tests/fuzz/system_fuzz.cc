// SPDX-License-Identifier: Apache-2.0
// libFuzzer over the files by which a system is surveyed: a whole system in a folder, of which the input writes some
// files. Any contents give a survey, an environment that can be exported and read again, and verdicts.
#include <cstdlib>

#include "doctor/judge/build_verdicts.h"
#include "doctor/judge/installed.h"
#include "doctor/report/report.h"
#include "doctor/report/report_html.h"
#include "doctor/system/environment_json.h"
#include "doctor/system/survey.h"
#include "tests/doctor/fake_system.h"

namespace {

const std::string kVenv = "/home/user/venv", kSite = kVenv + "/lib/python3.12/site-packages";

const std::vector<std::string>& paths() {
  static const std::vector<std::string> all = {
      "/etc/os-release",
      "/etc/ld.so.conf",
      "/etc/ld.so.cache",
      "/proc/meminfo",
      "/proc/self/status",
      "/proc/self/cgroup",
      "/proc/self/mountinfo",
      "/proc/driver/nvidia/version",
      "/sys/fs/cgroup/cgroup.controllers",
      "/sys/fs/cgroup/memory.max",
      "/sys/fs/cgroup/cpu.max",
      "/sys/fs/cgroup/memory/memory.limit_in_bytes",
      "/sys/devices/system/cpu/online",
      "/sys/bus/pci/devices/0000:01:00.0/device",
      "/proc/driver/nvidia/gpus/0000:01:00.0/information",
      "/usr/local/cuda/version.json",
      "/usr/local/cuda/include/cuda.h",
      "/usr/lib/python3.12/_sysconfigdata__linux_x86_64-linux-gnu.py",
      "/usr/include/python3.12/patchlevel.h",
      kVenv + "/pyvenv.cfg",
      kSite + "/more.pth",
      kSite + "/torch/version.py",
      kSite + "/flash_attn-2.8.3.dist-info/METADATA",
      kSite + "/flash_attn-2.8.3.dist-info/RECORD",
      kSite + "/flash_attn/flash_attn_interface.py",
      "/home/user/.conda/environments.txt",
      "/home/user/.local/share/jupyter/kernels/one/kernel.json",
      "/usr/bin/nvcc",
  };
  return all;
}

FakeSystem& system_of_the_test() {
  static FakeSystem* system = [] {
    auto* out = new FakeSystem;
    std::atexit([] { std::filesystem::remove_all(system_of_the_test().root()); });
    out->add_base();
    out->add_python("/usr", "3.12.4");
    out->add_virtual_environment(kVenv, "/usr", "3.12.4");
    out->add_torch(kSite, "2.8.0+cu128", "12.8", true);
    out->library(kSite + "/flash_attn_2_cuda.so", {.needed = {"libc10.so"}, .imports = {"missing"}});
    out->write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    out->write("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
    out->set("VIRTUAL_ENV", kVenv);
    return out;
  }();
  return *system;
}

// As it was before the input: what one run leaves must not change the next.
void restore(FakeSystem& system, const std::string& path) {
  static const std::map<std::string, std::string>* const originals = [] {
    auto* out = new std::map<std::string, std::string>;
    FakeSystem& fresh = system_of_the_test();
    for (const std::string& path : paths())
      if (const auto text = fresh.outlook().files.read(path)) out->emplace(path, *text);
    return out;
  }();
  const auto original = originals->find(path);
  if (original == originals->end())
    system.remove(path);
  else
    system.write(path, original->second);
}

}  // namespace

// Pieces: the number of a path, two bytes of length, so many bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FakeSystem& system = system_of_the_test();
  restore(system, paths()[0]);  // also: remembers the others before the first input
  std::vector<std::string> written;
  for (size_t at = 0; at + 3 <= size && written.size() < 8;) {
    const std::string& path = paths()[data[at] % paths().size()];
    const size_t length = std::min<size_t>(data[at + 1] | size_t(data[at + 2]) << 8, size - at - 3);
    system.write(path, std::string(reinterpret_cast<const char*>(data) + at + 3, length), path == "/usr/bin/nvcc");
    written.push_back(path);
    at += 3 + length;
  }
  const doctor::Survey found = doctor::survey(system.outlook());
  doctor::report_html("survey", describe(found), {});
  for (const doctor::PythonInstall& python : found.pythons) {
    const doctor::Environment target = environment_of(found, &python);
    judge_installed(found, python, target);
    judge_build(found, python);
    doctor::parse_environment(export_environment(target, found.outlook.files), "node.json");
  }
  for (const std::string& path : written) restore(system, path);
  return 0;
}
