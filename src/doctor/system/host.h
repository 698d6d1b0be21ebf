// SPDX-License-Identifier: Apache-2.0
// The machine: C library, memory, cores, disks. All of it read from files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "doctor/facts/environment.h"
#include "doctor/system/outlook.h"

namespace doctor {

struct DiskSpace {
  std::string folder;
  uint64_t free_bytes = 0, total_bytes = 0;
};

struct HostFacts {
  std::string machine;         // "x86_64"; empty if nothing tells
  std::string kernel, system;  // "6.1.0-18-amd64", "Debian GNU/Linux 12 (bookworm)"
  std::string libc = "glibc";  // or "musl"; empty if there is none
  Version libc_version;
  std::string libc_path, libstdcxx_path;
  Version glibcxx, cxxabi;
  LoaderFacts loader;
  int cores = 0;             // of the machine
  double cores_allowed = 0;  // by affinity and by the quota of the control group
  uint64_t memory_bytes = 0, memory_available_bytes = 0, swap_bytes = 0;
  int cgroup_version = 0;                      // 1 or 2; 0: none found
  std::optional<uint64_t> memory_limit_bytes;  // of the control group: a container or a job
  uint64_t memory_used_bytes = 0;              // in it
  std::vector<DiskSpace> disks;                // temporary, current and home folder
  std::vector<std::string> problems;

  // What a new process may take: the least of machine and control group.
  uint64_t memory_free_bytes() const;
};

HostFacts read_host(const Outlook& outlook);

}  // namespace doctor
