// SPDX-License-Identifier: Apache-2.0
// dQ as sums of whole numbers, whose bits do not depend on the order in which blocks add. A row's parts are multiples of
// a power of two, small enough for what the sums need and large enough for them to stay within 32 bits: with the norms
// of rows and the sum of a row's P at most 1,
//   |dQ_i| <= sum_j P_ij |dO_i V_j - delta_i| |K_j| <= (|dO_i| max_j |V_j| + |delta_i|) max_j |K_j|.
#pragma once

#include "core/types.h"

namespace mica {

// Of keys: the largest norms of rows of K and V, and their sums.
struct KeyNorms {
  float largest_k, largest_v, sum_k, sum_v;
};
// A head's keys are measured in chunks, each by a warp.
constexpr i32 kNormChunks = 256;
MICA_HD i32 keys_of_norm_chunk(i32 len_k) { return max_of(8, ceil_div(len_k, kNormChunks)); }

// Whether all keys of a head can share a scale: beside few keys of large norm the others would have few bits left.
MICA_HD bool have_one_scale(const KeyNorms& norms, i32 len_k) {
  constexpr float kMostSpread = 128.0f, kLeastNorm = 1e-18f, kMostNorm = 1e18f;  // whose squares are neither 0 nor inf
  const auto is_usual = [](float largest) { return largest >= kLeastNorm && largest <= kMostNorm; };
  const float keys = float(len_k), largest = norms.largest_k * norms.largest_v,
              means = norms.sum_k / keys * (norms.sum_v / keys);
  return is_usual(norms.largest_k) && is_usual(norms.largest_v) && largest <= kMostSpread * means;
}

// What no sum of a row of dQ exceeds. norm: of the row of dO.
MICA_HD float dq_bound(const KeyNorms& norms, float norm, float delta) {
  constexpr float kLeastNorm = 1e-18f;  // a square may have become 0
  return (max_of(norm, kLeastNorm) * norms.largest_v + max_of(delta, -delta)) * norms.largest_k;
}
// As the exponent of a power of two: the smallest one above it, but for numbers that are too small for their scale.
MICA_HD u32 dq_exponent(float bound) { return min_of(max_of(bits_of(bound) >> 23, 30u), 254u); }
// By what a row's part is multiplied before it is rounded: then it is 2^30 at most.
MICA_HD float dq_scale(float bound) { return float_of((283u - dq_exponent(bound)) << 23); }
// What 1 is worth; NaN where there is no bound.
MICA_HD float dq_unit(float bound) {
  return bits_of(bound) < 0x7f800000u ? float_of((dq_exponent(bound) - 29u) << 23) : float_of(0x7fc00000u);
}
// Parts beyond it are wrong: P was no probability, or no number.
MICA_HD constexpr float dq_most() { return 1.5f * (1 << 30); }

}  // namespace mica
