// SPDX-License-Identifier: Apache-2.0
// What the tests of the emulator share: how to run a kernel, and to look for a complaint.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "device/ptx_sm90.cuh"
#include "tests/cuda/emulation/emulator.h"

extern __shared__ mica::u8 smem[];

namespace mica {

inline float* shared_floats() { return reinterpret_cast<float*>(smem); }

// params: what the kernel takes.
template <auto kernel, class Params>
std::string run_with(u32 grid, u32 block, u32 shared_bytes, const Params& params,
                     const emulation::Schedule& schedule = {}) {
  return emulation::run({"test", grid, block, shared_bytes, &params}, emulation::Kernel<Params>::template call<kernel>,
                        schedule);
}
inline ::testing::AssertionResult says(const std::string& report, const std::string& text) {
  if (report.find(text) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "it says: \"" << report << "\", want: " << text;
}

}  // namespace mica
