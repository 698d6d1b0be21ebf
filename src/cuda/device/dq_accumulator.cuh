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

}  // namespace mica
