// SPDX-License-Identifier: Apache-2.0
// The norms of a head's keys from those of its chunks, and what they say about a row of dQ (dq_integers.h).
#pragma once

#include "cuda/kernels/whole/dq_integers.h"
#include "device/ptx.cuh"

namespace mica {

// Of two floats that are not negative; NaN is the largest.
MICA_DEVICE float larger(float a, float b) { return float_of(max_of(bits_of(a), bits_of(b))); }

MICA_DEVICE void add_norms(KeyNorms& to, const KeyNorms& norms) {
  to.largest_k = larger(to.largest_k, norms.largest_k);
  to.largest_v = larger(to.largest_v, norms.largest_v);
  to.exponents_k += norms.exponents_k;
  to.exponents_v += norms.exponents_v;
  to.keys_k += norms.keys_k;
  to.keys_v += norms.keys_v;
}
// By a warp: all lanes have the sum of all.
MICA_DEVICE KeyNorms join_norms(KeyNorms norms) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const auto other = [=](auto x) { return __shfl_xor_sync(0xffffffffu, x, distance); };
    add_norms(norms, KeyNorms{other(norms.largest_k), other(norms.largest_v), other(norms.exponents_k),
                              other(norms.exponents_v), other(norms.keys_k), other(norms.keys_v)});
  }
  return norms;
}
MICA_DEVICE KeyNorms norms_of_head(const KeyNorms* chunks, i32 len_k) {
  static_assert(kNormChunks == 32);
  const i32 count = ceil_div(len_k, keys_of_norm_chunk(len_k)), lane = threadIdx.x % 32;
  return join_norms(lane < count ? chunks[lane] : KeyNorms{});
}

// What no sum of a row of dQ exceeds. norm: of the row of dO. Rounded step by step: whoever asks has the same bits.
MICA_DEVICE float dq_bound(const KeyNorms& norms, float norm, float delta) {
  constexpr u32 kLeast = 27u << 23;  // 2^-100: a row of dS times what makes it whole stays finite
  const float of_dp = larger(__fadd_rn(__fmul_rn(norm, norms.largest_v), fabsf(delta)), float_of(kLeast));
  return __fmul_rn(of_dp, norms.largest_k);
}

}  // namespace mica
