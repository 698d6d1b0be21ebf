// SPDX-License-Identifier: Apache-2.0
// How GPUs and code for them are counted.
#pragma once

#include <compare>
#include <string>

namespace doctor {

struct ComputeCapability {
  int major = 0, minor = 0;
  auto operator<=>(const ComputeCapability&) const = default;
  std::string text() const { return std::to_string(major) + "." + std::to_string(minor); }
};

// 90 with suffix 'a': sm_90a or compute_90a. Suffix 0: runs on later minors too; 'f': within its family.
struct GpuArch {
  int sm = 0;
  char suffix = 0;
  auto operator<=>(const GpuArch&) const = default;
  std::string text(const char* prefix = "sm_") const;
  ComputeCapability capability() const { return {sm / 10, sm % 10}; }
};

}  // namespace doctor
