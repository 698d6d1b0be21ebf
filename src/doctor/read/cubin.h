// SPDX-License-Identifier: Apache-2.0
// Cubins: ELF files for the GPU.
#pragma once

#include <string>
#include <vector>

#include "doctor/tables/gpu_arch.h"
#include "support/bytes.h"
#include "support/version.h"

namespace doctor {

using namespace support;

struct Cubin {
  GpuArch arch;
  GpuArch virtual_arch;  // compute_XY it was compiled through; sm 0 if not said
  int abi = 0;
  Version toolkit;
  std::string command_line;          // of ptxas, if noted
  std::vector<std::string> kernels;  // names of .text.* sections
};

// Throws ReadError if it is no cubin.
Cubin read_cubin(ByteSource& source);
// From the ELF header alone: architecture and, of the older generation, the toolkit.
Cubin read_cubin_header(ByteSource& source);

}  // namespace doctor
