// SPDX-License-Identifier: Apache-2.0
// The machine: C library, memory, cores, disks. All of it read from files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "doctor/facts/environment.h"
#include "doctor/system/outlook.h"
#include "support/machine/machine.h"

namespace doctor {

struct DiskSpace {
  std::string folder;
  uint64_t free_bytes = 0, total_bytes = 0;
};

struct HostFacts : Machine {
  std::string machine;         // "x86_64"; empty if nothing tells
  uint64_t page_bytes = 0;     // of memory; not known of a file tree that stands for another machine
  std::string kernel, system;  // "6.1.0-18-amd64", "Debian GNU/Linux 12 (bookworm)"
  std::string libc = "glibc";  // or "musl"; empty if there is none
  Version libc_version;
  std::string libc_path, libstdcxx_path;
  Version glibcxx, cxxabi;
  LoaderFacts loader;
  std::vector<DiskSpace> disks;  // temporary, current and home folder
  std::vector<std::string> problems;
};

HostFacts read_host(const Outlook& outlook);

}  // namespace doctor
