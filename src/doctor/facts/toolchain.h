// SPDX-License-Identifier: Apache-2.0
// What must fit together for an extension of torch to be compiled: nvcc, g++, the architectures and torch's CUDA.
#pragma once

#include <string>

#include "doctor/tables/gpu_arch.h"
#include "support/version.h"

namespace doctor {

using namespace support;

// Each: empty where they fit, else why not.
std::string why_nvcc_cannot(const Version& nvcc, const GpuArch& arch);
std::string why_cuda_differs(const Version& nvcc, const Version& cuda_of_torch);

// Torch's headers are C++17 and refuse an older g++.
constexpr int kLeastGcc = 9;
bool is_gcc_too_old(const Version& gcc);
// `most_gcc`: the newest major version that the nvcc takes; 0: not known, or no nvcc takes part.
bool is_gcc_too_new(const Version& gcc, int most_gcc);

}  // namespace doctor
