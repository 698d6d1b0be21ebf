// SPDX-License-Identifier: Apache-2.0
#include "doctor/system/host.h"

#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "doctor/load/hwcaps.h"
#include "doctor/load/loader_cache.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

std::string system_name(const Files& files) {
  for (const std::string& line : split(files.read("/etc/os-release", 1 << 16).value_or(""), '\n'))
    if (line.rfind("PRETTY_NAME=", 0) == 0) {
      std::string name = line.substr(12);
      std::erase(name, '"');
      return name;
    }
  return "";
}

// Debian's folder for a machine, as in /lib/x86_64-linux-gnu.
std::string triplet(const std::string& machine) {
  if (machine == "ppc64le") return "powerpc64le-linux-gnu";
  if (machine == "i686") return "i386-linux-gnu";
  if (machine == "armv7l") return "arm-linux-gnueabihf";
  return machine + "-linux-gnu";
}

std::optional<ElfFile> elf_at(const Files& files, const std::string& path) {
  const auto resolved = files.resolve(path);
  if (!resolved) return std::nullopt;
  try {
    return read_elf_file(files.on_disk(*resolved));
  } catch (const ReadError&) {
    return std::nullopt;
  }
}

// What this system's programs are made for, shown by one of them.
std::string machine_of(const Outlook& outlook) {
  for (const char* path : {"/bin/sh", "/usr/bin/env", "/bin/busybox", "/sbin/ldconfig", "/usr/bin/python3"})
    if (const auto elf = elf_at(outlook.files, path)) return machine_name(*elf);
  utsname system;
  return outlook.files.root().empty() && uname(&system) == 0 ? system.machine : "";
}

void read_loader(const Outlook& outlook, HostFacts& host) {
  const Files& files = outlook.files;
  std::string libraries = outlook.variable("LD_LIBRARY_PATH");
  std::replace(libraries.begin(), libraries.end(), ';', ':');
  // An empty entry is the current folder, and so begins a relative one; an empty variable is none.
  if (!libraries.empty())
    for (const std::string& folder : split(libraries, ':'))
      host.loader.library_path.push_back(join_path(outlook.folder, folder.empty() ? "." : folder));
  std::string preload = outlook.variable("LD_PRELOAD");
  std::replace(preload.begin(), preload.end(), ':', ' ');
  for (const std::string& name : split(preload, ' '))
    if (!name.empty())
      host.loader.preload.push_back(name.find('/') == name.npos ? name : join_path(outlook.folder, name));
  host.loader.tunables = outlook.variable("GLIBC_TUNABLES");
  host.loader.hwcaps = hwcaps_of(host.machine, files.read("/proc/cpuinfo", 16 << 20).value_or(""));
  if (const auto cache = files.resolve("/etc/ld.so.cache")) {
    try {
      FileSource source(files.on_disk(*cache));
      host.loader.cache = read_loader_cache(source, host.machine, &host.problems);
    } catch (const ReadError& e) {
      host.problems.push_back(e.what());
    }
  }
  // NOTE: the loader has these built in, and each distribution its own; where a folder is missing it does not matter.
  const std::string debian = triplet(host.machine);
  const bool has_multiarch = files.is_folder("/lib/" + debian) || files.is_folder("/usr/lib/" + debian);
  if (has_multiarch) {
    host.loader.default_folders = {"/lib/" + debian, "/usr/lib/" + debian, "/lib", "/usr/lib"};
  } else {
    host.loader.default_folders = {"/lib64", "/usr/lib64", "/lib", "/usr/lib"};
  }
}

std::string find_library(const Files& files, const LoaderFacts& loader, const std::string& name) {
  for (const auto& [soname, path] : loader.cache)
    if (soname == name && files.is_file(path)) return path;
  for (const std::string& folder : loader.default_folders)
    if (files.is_file(folder + "/" + name)) return folder + "/" + name;
  return "";
}

Version highest(const ElfFile& elf, std::string_view prefix) {
  Version best;
  for (const std::string_view name : elf.version_definitions)
    if (const auto version = version_after(prefix, name); version && (!best.known() || best < *version))
      best = *version;
  return best;
}

void read_libraries(const Files& files, HostFacts& host) {
  host.libc_path = find_library(files, host.loader, "libc.so.6");
  if (const auto libc = host.libc_path.empty() ? std::nullopt : elf_at(files, host.libc_path)) {
    host.libc_version = highest(*libc, "GLIBC_");
  } else {
    host.libc = files.match("/lib/ld-musl-*.so.1").empty() ? "" : "musl";
  }
  host.libstdcxx_path = find_library(files, host.loader, "libstdc++.so.6");
  if (const auto cxx = host.libstdcxx_path.empty() ? std::nullopt : elf_at(files, host.libstdcxx_path)) {
    host.glibcxx = highest(*cxx, "GLIBCXX_");
    host.cxxabi = highest(*cxx, "CXXABI_");
  }
}

void read_disks(const Outlook& outlook, HostFacts& host) {
  const std::string temporary = outlook.variable("TMPDIR").empty() ? "/tmp" : outlook.variable("TMPDIR");
  for (const std::string& folder : {temporary, outlook.folder, outlook.home()}) {
    struct statvfs facts;
    bool is_known = false;
    for (const DiskSpace& disk : host.disks) is_known |= disk.folder == folder;
    if (is_known) continue;
    const auto resolved = folder.empty() ? std::nullopt : outlook.files.resolve(folder);
    if (!resolved || statvfs(outlook.files.on_disk(*resolved).c_str(), &facts) != 0) continue;
    host.disks.push_back(
        {folder, uint64_t(facts.f_bavail) * facts.f_frsize, uint64_t(facts.f_blocks) * facts.f_frsize});
  }
}

}  // namespace

HostFacts read_host(const Outlook& outlook) {
  HostFacts host;
  const Files& files = outlook.files;
  host.machine = machine_of(outlook);
  if (const long bytes = sysconf(_SC_PAGESIZE); files.root().empty() && bytes > 0) host.page_bytes = uint64_t(bytes);
  host.kernel = trimmed(files.read("/proc/sys/kernel/osrelease", 4096).value_or(""));
  host.system = system_name(files);
  static_cast<Machine&>(host) = read_machine(files);
  read_loader(outlook, host);
  read_libraries(files, host);
  read_disks(outlook, host);
  return host;
}

}  // namespace doctor
