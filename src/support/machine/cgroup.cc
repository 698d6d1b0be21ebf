// SPDX-License-Identifier: Apache-2.0
#include "support/machine/cgroup.h"

#include <algorithm>
#include <cstdlib>

#include "support/text.h"

namespace support {
namespace {

// "max" and version 1's huge number mean no limit.
std::optional<uint64_t> number_in(const Files& files, const std::string& path) {
  const auto text = files.read(path, 4096);
  if (!text || text->empty() || (*text)[0] < '0' || (*text)[0] > '9') return std::nullopt;
  return std::strtoull(text->c_str(), nullptr, 10);
}

// The group's folder and those around it, up to the mount point: each may set a limit.
std::vector<std::string> folders_of(const std::string& mount, std::string group) {
  std::vector<std::string> folders;
  for (int depth = 0; depth < 64; ++depth) {
    while (!group.empty() && group.back() == '/') group.pop_back();
    folders.push_back(mount + group);
    const std::size_t slash = group.rfind('/');
    if (group.empty() || slash == group.npos) break;
    group.resize(slash);
  }
  return folders;
}

struct Groups {
  std::string unified, memory, cpu;  // paths in their hierarchies
  bool has_memory = false, has_cpu = false;
};

Groups groups_of(const Files& files) {
  Groups groups;
  for (const std::string& line : split(files.read("/proc/self/cgroup", 1 << 16).value_or(""), '\n')) {
    const std::vector<std::string> parts = split(line, ':');
    if (parts.size() < 3) continue;
    if (parts[0] == "0" && parts[1].empty()) groups.unified = parts[2];
    for (const std::string& controller : split(parts[1], ',')) {
      if (controller == "memory") groups.memory = parts[2], groups.has_memory = true;
      if (controller == "cpu") groups.cpu = parts[2], groups.has_cpu = true;
    }
  }
  return groups;
}

void limit_memory(Machine& machine, const std::optional<uint64_t>& limit, const std::optional<uint64_t>& used) {
  const bool is_limit =
      limit && (machine.memory_bytes == 0 ? *limit < (uint64_t(1) << 60) : *limit < machine.memory_bytes);
  if (!is_limit || (machine.memory_limit_bytes && *machine.memory_limit_bytes <= *limit)) return;
  machine.memory_limit_bytes = limit;
  machine.memory_used_bytes = used.value_or(0);
}

void limit_cores(Machine& machine, double cores) {
  if (cores > 0 && (machine.cores_allowed == 0 || cores < machine.cores_allowed)) machine.cores_allowed = cores;
}

// Page cache counts as used but is given back when memory is short.
uint64_t used_without_cache(const Files& files, const std::string& folder, uint64_t used) {
  for (const std::string& line : split(files.read(folder + "/memory.stat", 1 << 16).value_or(""), '\n')) {
    const std::vector<std::string> words = split(line, ' ');
    if (words.size() == 2 && (words[0] == "inactive_file" || words[0] == "total_inactive_file"))
      return used - std::min<uint64_t>(used, std::strtoull(words[1].c_str(), nullptr, 10));
  }
  return used;
}

void read_version_2(const Files& files, const std::string& group, Machine& machine) {
  for (const std::string& folder : folders_of("/sys/fs/cgroup", group)) {
    const auto used = number_in(files, folder + "/memory.current");
    limit_memory(machine, number_in(files, folder + "/memory.max"),
                 used ? std::optional(used_without_cache(files, folder, *used)) : std::nullopt);
    const std::vector<std::string> quota = split(files.read(folder + "/cpu.max", 4096).value_or(""), ' ');
    if (quota.size() == 2 && std::atof(quota[0].c_str()) > 0 && std::atof(quota[1].c_str()) > 0)
      limit_cores(machine, std::atof(quota[0].c_str()) / std::atof(quota[1].c_str()));
  }
}

void read_version_1(const Files& files, const Groups& groups, Machine& machine) {
  for (const std::string& folder : folders_of("/sys/fs/cgroup/memory", groups.memory)) {
    const auto used = number_in(files, folder + "/memory.usage_in_bytes");
    limit_memory(machine, number_in(files, folder + "/memory.limit_in_bytes"),
                 used ? std::optional(used_without_cache(files, folder, *used)) : std::nullopt);
  }
  for (const char* mount : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"})
    for (const std::string& folder : folders_of(mount, groups.cpu)) {
      const auto quota = number_in(files, folder + "/cpu.cfs_quota_us");
      const auto period = number_in(files, folder + "/cpu.cfs_period_us");
      if (quota && period && *period) limit_cores(machine, double(*quota) / double(*period));
    }
}

}  // namespace

void read_cgroup(const Files& files, Machine& machine) {
  const Groups groups = groups_of(files);
  if (files.is_file("/sys/fs/cgroup/cgroup.controllers")) {
    machine.cgroup_version = 2;
    read_version_2(files, groups.unified, machine);
  } else if (groups.has_memory || groups.has_cpu || files.is_folder("/sys/fs/cgroup/memory")) {
    machine.cgroup_version = 1;
    read_version_1(files, groups, machine);
  }
}

}  // namespace support
