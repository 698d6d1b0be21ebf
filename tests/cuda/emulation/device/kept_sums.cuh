// SPDX-License-Identifier: Apache-2.0
// Stands in for src/cuda/device/kept_sums.cuh when a kernel runs on the host.
#pragma once

#include "device/ptx_sm90.cuh"

namespace mica {

inline void bulk_store_kept(float* global, u32 shared, u32 bytes) { bulk_store(global, shared, bytes); }
inline void bulk_reduce_add_kept(float* global, u32 shared, u32 bytes) { bulk_reduce_add(global, shared, bytes); }
inline void reduce_add_halves(u16* address, const u32 (&pairs)[2]) {
  for (int e = 0; e < 4; ++e) {
    const u16 x = u16(pairs[e / 2] >> (e % 2 * 16));
    address[e] = float_to_fp16(fp16_to_float(address[e]) + fp16_to_float(x));
  }
}

}  // namespace mica
