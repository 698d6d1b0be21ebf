// SPDX-License-Identifier: Apache-2.0
// A whole system in a temporary folder.
#pragma once

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "doctor/system/outlook.h"
#include "tests/doctor/tiny_elf.h"

class FakeSystem {
 public:
  FakeSystem() {
    std::string name = (std::filesystem::temp_directory_path() / "mica-doctor-XXXXXX").string();
    root_ = mkdtemp(name.data());
    variables_ = {{"PATH", "/usr/bin"}, {"HOME", "/home/user"}};
    write("/tmp/.keep", "");
    write("/home/user/.keep", "");
  }
  ~FakeSystem() { std::filesystem::remove_all(root_); }
  FakeSystem(const FakeSystem&) = delete;
  FakeSystem& operator=(const FakeSystem&) = delete;

  void write(const std::string& path, const std::string& text, bool executable = false) {
    const std::string file = root_ + path;
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    std::ofstream(file, std::ios::binary) << text;
    if (executable) chmod(file.c_str(), 0755);
  }
  void link(const std::string& path, const std::string& target) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::filesystem::create_symlink(target, root_ + path);
  }
  void folder(const std::string& path) { std::filesystem::create_directories(root_ + path); }
  void remove(const std::string& path) { std::filesystem::remove_all(root_ + path); }
  void library(const std::string& path, const tiny::Library& library) { write(path, tiny::elf(library), true); }
  void set(const std::string& variable, const std::string& value) { variables_[variable] = value; }

  // Ubuntu 22.04 with 16 cores and 64 GiB.
  void add_base() {
    library("/usr/bin/dash", {});
    link("/bin", "usr/bin");
    link("/lib", "usr/lib");
    link("/usr/bin/sh", "dash");
    library("/usr/lib/x86_64-linux-gnu/libc.so.6",
            {.soname = "libc.so.6", .versions = {"GLIBC_2.2.5", "GLIBC_2.35", "GLIBC_2.4", "GLIBC_PRIVATE"}});
    library("/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
            {.soname = "libstdc++.so.6", .versions = {"GLIBCXX_3.4.9", "GLIBCXX_3.4.30", "CXXABI_1.3.13"}});
    write("/etc/os-release", "NAME=Ubuntu\nPRETTY_NAME=\"Ubuntu 22.04.4 LTS\"\n");
    write("/proc/sys/kernel/osrelease", "5.15.0-100-generic\n");
    write("/proc/meminfo",
          "MemTotal:       67108864 kB\nMemFree: 1 kB\nMemAvailable:   62914560 kB\nSwapTotal: 0 kB\n");
    write("/sys/devices/system/cpu/online", "0-15\n");
    write("/proc/self/status", "Name:\tmica\nCpus_allowed:\tffff\nCpus_allowed_list:\t0-15\n");
  }

  // A Python as a distribution or python.org builds it; returns its site-packages.
  std::string add_python(const std::string& prefix, const std::string& version, const std::string& letters = "") {
    const std::string minor = version.substr(0, version.find('.', 2)), name = "python" + minor + letters;
    std::string digits = minor;
    digits.erase(1, 1);
    library(prefix + "/bin/" + name, {});
    link(prefix + "/bin/python3", name);
    if (prefix != "/usr") link(prefix + "/bin/python", "python3");
    write(prefix + "/lib/" + name + "/os.py", "");
    write(prefix + "/include/" + name + "/patchlevel.h", "#define PY_VERSION      \"" + version + "\"\n");
    write(prefix + "/include/" + name + "/Python.h", "");
    write(prefix + "/lib/" + name + "/_sysconfigdata_" + letters + "_linux_x86_64-linux-gnu.py",
          "build_time_vars = {'ABIFLAGS': '" + letters + "',\n 'SOABI': 'cpython-" + digits + letters +
              "-x86_64-linux-gnu',\n 'Py_DEBUG': 0,\n 'Py_GIL_DISABLED': " + (letters == "t" ? "1" : "0") + "}\n");
    const std::string site = prefix + "/lib/" + name + "/site-packages";
    folder(site);
    return site;
  }

  std::string add_virtual_environment(const std::string& prefix, const std::string& base, const std::string& version) {
    const std::string minor = version.substr(0, version.find('.', 2));
    link(prefix + "/bin/python", base + "/bin/python" + minor);
    link(prefix + "/bin/python3", "python");
    write(prefix + "/pyvenv.cfg",
          "home = " + base + "/bin\ninclude-system-site-packages = false\nversion = " + version + "\n");
    const std::string site = prefix + "/lib/python" + minor + "/site-packages";
    folder(site);
    return site;
  }

  void add_package(const std::string& site, const std::string& name, const std::string& version,
                   const std::string& metadata = "", const std::string& record = "") {
    const std::string folder = site + "/" + name + "-" + version + ".dist-info";
    write(folder + "/METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n" + metadata);
    write(folder + "/RECORD", record);
  }

  void add_torch(const std::string& site, const std::string& version, const std::string& cuda, bool new_abi) {
    add_package(site, "torch", version);
    write(site + "/torch/version.py", "from typing import Optional\n__all__ = ['__version__']\n__version__ = '" +
                                          version + "'\ndebug = False\ncuda: Optional[str] = " +
                                          (cuda.empty() ? "None" : "'" + cuda + "'") + "\ngit_version = 'abc'\n");
    const std::string text = new_abi ? "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE" : "Ss";
    library(site + "/torch/lib/libc10.so",
            {.soname = "libc10.so",
             .exports = {"_ZN3c105ErrorC1ENS_14SourceLocationE" + text, "_ZN3c105ErrorC2ENS_14SourceLocationE" + text,
                         "_ZN3c106detail14torchCheckFailEPKcS2_jRK" + text}});
  }

  doctor::Outlook outlook() const {
    doctor::Outlook out;
    out.files = support::Files(root_);
    out.variables = variables_;
    out.folder = "/home/user";
    return out;
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
  std::map<std::string, std::string> variables_;
};
