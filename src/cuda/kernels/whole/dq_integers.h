// SPDX-License-Identifier: Apache-2.0
// dQ as sums of whole numbers, whose bits do not depend on the order in which blocks add. A row's parts are multiples
// of a power of two, small enough for what the sums need and large enough for them to stay within 32 bits: with the
// norms of rows and the largest element of K, and since a row's P sum up to 1 at most,
//   |dQ_ic| <= sum_j P_ij |dO_i V_j - delta_i| |K_jc| <= (|dO_i| max_j |V_j| + |delta_i|) max_jc |K_jc|.
#pragma once

#include "core/types.h"

namespace mica {

// The largest elements of rows of K and the norms of rows of V. Exponents as floats have them, summed over keys that
// are not zero.
struct alignas(16) KeyNorms {
  float largest_k, largest_v;
  i32 exponents_k, exponents_v, keys_k, keys_v;
  i32 unused[2];
};
// A head's keys are measured in chunks, each by a block: who asks for the head's has one a lane.
constexpr i32 kNormChunks = 32;
MICA_HD i32 keys_of_norm_chunk(i32 len_k) { return max_of(64, ceil_div(len_k, kNormChunks)); }

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

MICA_HD bool is_finite_bound(float bound) { return bits_of(bound) < 0x7f800000u; }
// The least power of two above a bound, as a float's exponent, but for bounds that are too small for their scale.
MICA_HD u32 exponent_above(float bound) { return min_of(max_of(bits_of(bound) >> 23, 30u), 254u); }
// By what numbers are multiplied before they are rounded, so that they are 2^(30 - spare_bits) at most.
MICA_HD float integers_scale(float bound, i32 spare_bits = 0) {
  return float_of((283u - u32(spare_bits) - exponent_above(bound)) << 23);
}
// The part of integers_scale(dq_bound) that does not depend on the row: 2^16 over K's largest, of a head with one
// scale.
MICA_HD float head_scale(const KeyNorms& norms) { return float_of((270u - u32(exponent_of(norms.largest_k))) << 23); }
// What 1 is worth.
MICA_HD float integers_unit(float bound, i32 spare_bits = 0) {
  return float_of((exponent_above(bound) + u32(spare_bits) - 29u) << 23);
}
// NaN where there is no bound.
MICA_HD float dq_unit(float bound) { return is_finite_bound(bound) ? integers_unit(bound) : float_of(0x7fc00000u); }

// A float to which this is added has its number in its low bits, while that has 23 of them; so has each part of dQ, and
// their sum as many times the bits of this.
constexpr float kOffset = 12582912.0f;  // 1.5 * 2^23
constexpr u32 kOffsetBits = 0x4b400000u, kOffsetExponent = 0x4b000000u, kExponentMask = 0xff800000u;

// dK and dV where several blocks share a key tile: the largest magnitudes that they have in 16 of its rows, which they
// tell one another before they add. Those of no number are the largest: then floats are added.
struct KeyPeers {
  i32 largest_k, largest_v;  // bits of floats
  i32 blocks;                // that have told
  i32 unused;
};
MICA_HD i32 spare_bits_of(i32 parts) {
  i32 bits = 0;
  while (1 << bits < parts) ++bits;
  return bits;
}
}  // namespace mica
