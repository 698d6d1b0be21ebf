// SPDX-License-Identifier: Apache-2.0
// dQ as sums of whole numbers, whose bits do not depend on the order in which blocks add. A row's parts are multiples
// of a power of two, small enough for what the sums need and large enough for them to stay within 32 bits: with the
// norms of rows and the largest element of K, and since a row's P sum up to 1 at most,
//   |dQ_ic| <= sum_j P_ij |dO_i V_j - delta_i| |K_jc| <= (|dO_i| max_j |V_j| + |delta_i|) max_jc |K_jc|.
#pragma once

#include "core/types.h"

namespace mica {

// The largest elements of rows of K and the norms of rows of V. Exponents as floats have them, summed over keys that are
// not zero.
struct alignas(16) KeyNorms {
  float largest_k, largest_v;
  i32 exponents_k, exponents_v, keys_k, keys_v;
  i32 unused[2];
};
// A head's keys are measured in chunks, each by a warp.
constexpr i32 kNormChunks = 256;
MICA_HD i32 keys_of_norm_chunk(i32 len_k) { return max_of(8, ceil_div(len_k, kNormChunks)); }

MICA_HD i32 exponent_of(float norm) { return i32(bits_of(norm) >> 23); }

// Whether all keys of a head can share a scale: beside keys of large norm the others would have few bits left. In whole
// numbers, so that all who ask have the same answer.
MICA_HD bool have_one_scale(const KeyNorms& norms) {
  constexpr i32 kMostSpread = 8, kLeast = 67, kMost = 187;  // 2^-60 to 2^60: their squares are neither 0 nor inf
  const i32 k = exponent_of(norms.largest_k), v = exponent_of(norms.largest_v);
  if (min_of(k, v) < kLeast || max_of(k, v) > kMost) return false;
  return k - norms.exponents_k / max_of(norms.keys_k, 1) + v - norms.exponents_v / max_of(norms.keys_v, 1) <=
         kMostSpread;
}

// The least power of two above a bound, as a float's exponent, but for bounds that are too small for their scale.
MICA_HD u32 dq_exponent(float bound) { return min_of(max_of(bits_of(bound) >> 23, 30u), 254u); }
// By what a row's part is multiplied before it is rounded: then it is 2^30 at most.
MICA_HD float dq_scale(float bound) { return float_of((283u - dq_exponent(bound)) << 23); }
// What 1 is worth; NaN where there is no bound.
MICA_HD float dq_unit(float bound) {
  return bits_of(bound) < 0x7f800000u ? float_of((dq_exponent(bound) - 29u) << 23) : float_of(0x7fc00000u);
}
}  // namespace mica
