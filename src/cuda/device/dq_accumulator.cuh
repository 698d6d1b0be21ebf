// SPDX-License-Identifier: Apache-2.0
// Where the fp32 accumulator of dQ keeps the elements of a (tile_q, dim) block: in the order of the fragments, so that
// a warp adds 512 neighbouring bytes at once.
#pragma once

#include "device/ptx.cuh"

namespace mica {

// A transposed block swaps rows and columns, and has tile_q for dim.

// The four elements of `lane` in the 16 x 8 block (row_block, column_block).
MICA_DEVICE i32 dq_accumulator_index(i32 dim, i32 row_block, i32 column_block, i32 lane) {
  return ((row_block * (dim / 8) + column_block) * 32 + lane) * 4;
}
// The same block where pairs are added (pair_sums.cuh): those of a row, lane by lane, kPairsApart before those of the
// eighth row after it.
constexpr i32 kPairsApart = 64;
MICA_DEVICE i32 dq_pair_index(i32 dim, i32 row_block, i32 column_block, i32 lane) {
  return dq_accumulator_index(dim, row_block, column_block, 0) + lane * 2;
}

// Lane t of each four has word t of four rows, and gets the four words of row t.
MICA_DEVICE void transpose_in_quad(u32 (&words)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = threadIdx.x & distance;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int low = distance == 1 ? 2 * i : i, high = low + distance;
      const u32 other = __shfl_xor_sync(0xffffffffu, upper ? words[low] : words[high], distance);
      (upper ? words[low] : words[high]) = other;
    }
  }
}

}  // namespace mica
