// SPDX-License-Identifier: Apache-2.0
// The GPU architectures that a build makes code for.
#pragma once

#include <string>
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

std::string dotted(const doctor::GpuArch& arch);  // "9.0a"

}  // namespace builder
