// SPDX-License-Identifier: Apache-2.0
// The GPU architectures that a build makes code for.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "doctor/tables/gpu_arch.h"
#include "support/version.h"

namespace builder {

using namespace support;

struct Architecture {
  doctor::GpuArch arch;
  bool ptx = false;  // also as PTX, for later GPUs
};

// "8.0,9.0a,12.0+PTX" (commas, semicolons or blanks between). Throws std::runtime_error with one line.
std::vector<Architecture> parse_architectures(const std::string& text);

// One wheel for several kinds of GPU: as few architectures as have code that runs on each of them. Code of x.y runs on
// x.z with z >= y; those of boards with a processor of their own (Tegra) run nowhere else, and nothing else there.
struct FleetArchitectures {
  std::vector<Architecture> needed;
  std::vector<doctor::ComputeCapability> exact;                                             // have code of their own
  std::vector<std::pair<doctor::ComputeCapability, doctor::ComputeCapability>> compatible;  // a GPU, and whose code
};
FleetArchitectures smallest_set(std::vector<doctor::ComputeCapability> gpus);

std::string dotted(const doctor::GpuArch& arch);  // "9.0a"

}  // namespace builder
