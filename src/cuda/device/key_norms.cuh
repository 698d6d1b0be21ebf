// SPDX-License-Identifier: Apache-2.0
// The norms of a head's keys from those of its chunks (dq_integers.h).
#pragma once

#include "cuda/kernels/parts/dq_integers.h"
#include "device/ptx.cuh"

namespace mica {

// By a warp: every lane has the same bits.
MICA_DEVICE KeyNorms join_norms(KeyNorms norms) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    norms.largest_k = fmaxf(norms.largest_k, __shfl_xor_sync(0xffffffffu, norms.largest_k, distance));
    norms.largest_v = fmaxf(norms.largest_v, __shfl_xor_sync(0xffffffffu, norms.largest_v, distance));
    norms.sum_k += __shfl_xor_sync(0xffffffffu, norms.sum_k, distance);
    norms.sum_v += __shfl_xor_sync(0xffffffffu, norms.sum_v, distance);
  }
  return norms;
}
MICA_DEVICE void add_norms(KeyNorms& to, const KeyNorms& norms) {
  to.largest_k = fmaxf(to.largest_k, norms.largest_k);
  to.largest_v = fmaxf(to.largest_v, norms.largest_v);
  to.sum_k += norms.sum_k;
  to.sum_v += norms.sum_v;
}
MICA_DEVICE KeyNorms norms_of_head(const KeyNorms* chunks, i32 len_k) {
  const i32 count = ceil_div(len_k, keys_of_norm_chunk(len_k));
  KeyNorms norms = {};
#pragma unroll 4
  for (i32 chunk = threadIdx.x % 32; chunk < count; chunk += 32) {
    const float4 x = reinterpret_cast<const float4*>(chunks)[chunk];
    add_norms(norms, KeyNorms{x.x, x.y, x.z, x.w});
  }
  return join_norms(norms);
}

}  // namespace mica
