// SPDX-License-Identifier: Apache-2.0
// dQ in sums that are exact, whose bits therefore do not depend on the order in which blocks add. Each row has a unit,
// a power of two, of which all parts are multiples. No sum leaves 24 bits of it: what a part has beyond some multiple
// of a larger unit, which most parts have nothing of, is added in fp32, and the multiple in fp16, where it has 11 bits.
// With the largest elements and norms of rows, and since a row's P sum up to 1 at most, no sum of a row exceeds
//   |dQ_i| <= sum_j P_ij |dO_i V_j - delta_i| |K_j| <= (|dO_i| max_j |V_j| + |delta_i|) max_j |K_j|.
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
// A head's keys are measured in chunks, each by a warp.
constexpr i32 kNormChunks = 256;
MICA_HD i32 keys_of_norm_chunk(i32 len_k) { return max_of(8, ceil_div(len_k, kNormChunks)); }

MICA_HD i32 exponent_of(float norm) { return i32(bits_of(norm) >> 23); }

// Whether the rows of a head can have units: beside keys of large norm the others would have few bits left. In whole
// numbers, so that all who ask have the same answer.
MICA_HD bool have_units(const KeyNorms& norms) {
  constexpr i32 kMostSpread = 8, kLeast = 67, kMost = 187;  // 2^-60 to 2^60: their squares are neither 0 nor inf
  const i32 k = exponent_of(norms.largest_k), v = exponent_of(norms.largest_v);
  if (min_of(k, v) < kLeast || max_of(k, v) > kMost) return false;
  return k - norms.exponents_k / max_of(norms.keys_k, 1) + v - norms.exponents_v / max_of(norms.keys_v, 1) <=
         kMostSpread;
}

constexpr i32 kLargeBits = 10;  // of the bound, in large units
// Of a large unit, in units: as many halves of it as a sum has parts are 24 bits of them.
MICA_HD constexpr i32 bits_of_large_unit(i32 most_parts) {
  i32 bits = 22;
  while (bits > 0 && i64(most_parts) << bits > 1 << 25) --bits;
  return bits;
}

// The large unit of a row: 2^-10 of the least power of two above its bound, which has to be large enough for its unit.
// No number where there is no bound.
MICA_HD float large_unit(float bound) {
  constexpr u32 kLeast = 40, kInfinite = 0x7f800000u;
  const u32 bits = bits_of(bound);
  return bits < kInfinite ? float_of((max_of(bits >> 23, kLeast) + 1 - kLargeBits) << 23) : float_of(0x7fc00000u);
}
// What is added to a float and taken off again, so that it is rounded to a multiple of `unit`.
MICA_HD float rounder(float unit) { return unit * 12582912.0f; }  // 1.5 * 2^23
// A power of two.
MICA_HD float inverse_of_power(float power) { return float_of((254u << 23) - bits_of(power)); }

}  // namespace mica
