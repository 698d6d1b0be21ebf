// SPDX-License-Identifier: Apache-2.0
// Stands in for src/cuda/device/pair_sums.cuh when a kernel runs on the host.
#pragma once

#include "device/ptx.cuh"

namespace mica {

inline void reduce_add_pair(float* address, float first, float second) {
  address[0] += first;
  address[1] += second;
}
inline void reduce_add_pair(float* address, u32 first, u32 second) {
  *reinterpret_cast<u64*>(address) += u64(second) << 32 | first;
}

}  // namespace mica
