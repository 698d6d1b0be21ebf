// SPDX-License-Identifier: Apache-2.0
// Cores and memory: what the machine has, and what this process may take of it.
#pragma once

#include <cstdint>
#include <optional>

#include "support/files.h"

namespace support {

struct Machine {
  int cores = 0;             // of the machine
  double cores_allowed = 0;  // by affinity and by the quota of the control group
  uint64_t memory_bytes = 0, memory_available_bytes = 0, swap_bytes = 0;
  int cgroup_version = 0;                      // 1 or 2; 0: none found
  std::optional<uint64_t> memory_limit_bytes;  // of the control group: a container or a job
  uint64_t memory_used_bytes = 0;              // in it

  // What a new process may take: the least of machine and control group.
  uint64_t memory_free_bytes() const;
};

Machine read_machine(const Files& files);

}  // namespace support
