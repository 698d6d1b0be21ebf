// SPDX-License-Identifier: Apache-2.0
#include "support/machine/machine.h"

#include <algorithm>
#include <cstdlib>

#include "support/machine/cgroup.h"
#include "support/text.h"

namespace support {
namespace {

// Bytes of a line such as "MemTotal:       24590092 kB".
uint64_t meminfo(const std::string& text, const std::string& key) {
  const std::size_t at = text.find(key + ":");
  return at == text.npos ? 0 : std::strtoull(text.c_str() + at + key.size() + 1, nullptr, 10) * 1024;
}

// How many a list such as "0-3,8,10-11" names.
int count_list(const std::string& list) {
  int count = 0;
  for (const std::string& range : split(list, ',')) {
    const std::string text(trimmed(range));
    if (text.empty() || text[0] < '0' || text[0] > '9') continue;
    char* end = nullptr;
    const long first = std::strtol(text.c_str(), &end, 10);
    const long last = *end == '-' ? std::strtol(end + 1, nullptr, 10) : first;
    if (last >= first && last - first < 100'000) count += int(last - first + 1);
  }
  return std::min(count, 100'000);
}

void read_cores(const Files& files, Machine& machine) {
  machine.cores = count_list(files.read("/sys/devices/system/cpu/online", 4096).value_or(""));
  const std::string status = files.read("/proc/self/status", 1 << 16).value_or("");
  if (const std::size_t at = status.find("Cpus_allowed_list:"); at != status.npos)
    machine.cores_allowed = count_list(status.substr(at + 18, status.find('\n', at) - at - 18));
  if (machine.cores == 0) machine.cores = int(machine.cores_allowed);
}

}  // namespace

uint64_t Machine::memory_free_bytes() const {
  uint64_t free = memory_available_bytes ? memory_available_bytes : memory_bytes;
  if (memory_limit_bytes) free = std::min(free, *memory_limit_bytes - std::min(*memory_limit_bytes, memory_used_bytes));
  return free;
}

Machine read_machine(const Files& files) {
  Machine machine;
  const std::string memory = files.read("/proc/meminfo", 1 << 16).value_or("");
  machine.memory_bytes = meminfo(memory, "MemTotal");
  machine.memory_available_bytes = meminfo(memory, "MemAvailable");
  machine.swap_bytes = meminfo(memory, "SwapTotal");
  read_cores(files, machine);
  read_cgroup(files, machine);
  return machine;
}

}  // namespace support
