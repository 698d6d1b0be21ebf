// SPDX-License-Identifier: Apache-2.0
// The pages of the key tiles that a warp takes one after the other, where no piece of 16 keys lies in two of them: what
// every lane needs to know is the same, and there is nothing to divide. Entries of the block table are fetched a tile
// ahead.
#pragma once

#include "core/sequence.h"
#include "device/ptx.cuh"
#include "kernels/params.h"

namespace mica {

constexpr int kPieceRows = 16;

template <int tile_k>
struct PageWalk {
  static constexpr int kPieces = tile_k / kPieceRows;
  i32 page, row;         // of the first piece of the tile to load
  i32 last_page;         // of the sequence
  i32 entries[kPieces];  // of the block table

  MICA_DEVICE void begin(const SequenceTable& t, const Sequence& s, i32 b, i32 tile) {
    last_page = (s.len_k - 1) / t.page_size;
    page = tile * tile_k / t.page_size;
    row = tile * tile_k - page * t.page_size;
    fetch(t, b);
  }
  // Goes on by `step` tiles.
  MICA_DEVICE void advance(const SequenceTable& t, i32 b, i32 step) {
    row += step * tile_k;
    while (row >= t.page_size) {
      row -= t.page_size;
      ++page;
    }
    fetch(t, b);
  }
  // Where a piece of the tile begins.
  MICA_DEVICE i64 offset(const SequenceTable& t, int piece, const RowsArg& tensor) const {
    const i32 own_row = row + piece * kPieceRows;
    const PagedRow first = {entries[piece], own_row < t.page_size ? own_row : own_row - t.page_size};
    return paged_row_offset(t, first, tensor.stride_batch, tensor.stride_row);
  }

 private:
  MICA_DEVICE void fetch(const SequenceTable& t, i32 b) {
    const i32* own = t.block_table + b * t.block_table_stride_batch;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const i32 at = row + piece * kPieceRows < t.page_size ? page : page + 1;
      entries[piece] = own[min_of(at, last_page) * t.block_table_stride_page];
    }
  }
};

}  // namespace mica
