// SPDX-License-Identifier: Apache-2.0
// The rows of a key tile as one warp fetches them, contiguous or in pages: each lane knows where some keys are, the
// others ask it by shuffle, and eight lanes copy 64 columns of a key into a panel as wgmma reads it.
#pragma once

#include "device/panel_tile.cuh"
#include "device/ptx_sm90.cuh"
#include "kernels/params.h"

namespace mica {

template <int tile_k>
struct KeyRows {
  static_assert(tile_k % 32 == 0);
  static constexpr int kPerLane = tile_k / 32;
  PagedRow at[kPerLane];  // the lane's keys, 32 apart; not paged: in the sequence's slot

  // Those of a tile; `rows` (PackedRows) knows the sequence. Keys past the last one repeat it.
  template <class Rows>
  static MICA_DEVICE KeyRows find(const Rows& rows, i32 tile) {
    const SequenceTable& t = rows.p.sequences;
    KeyRows keys;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const i32 key = min_of(tile * tile_k + i * 32 + i32(threadIdx.x % 32), rows.sequence.len_k - 1);
      keys.at[i] = t.page_size > 0 ? paged_row(t, rows.sequence, rows.batch_index, key)
                                   : PagedRow{rows.sequence.k_slot, i32(rows.sequence.k_begin) + key};
    }
    return keys;
  }

  // Where they begin in a tensor, for head 0.
  struct Offsets {
    i64 of[kPerLane];
  };
  MICA_DEVICE Offsets offsets(const SequenceTable& t, const RowsArg& tensor) const {
    Offsets offsets;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      offsets.of[i] = paged_row_offset(t, at[i], tensor.stride_batch, tensor.stride_row);
    return offsets;
  }

  // Sends for `count` panels, which begin in global memory at the columns `column`. Keys past valid_keys and columns
  // past valid_dim arrive as zeros. quick: whole tiles by code of their own, which takes registers.
  template <int count, bool quick = false>
  static MICA_DEVICE void fetch(u32 shared, const u16* head, const Offsets& offsets, const i32 (&column)[count],
                                i32 valid_keys, i32 valid_dim) {
    using Panel = PanelTile<64, tile_k>;
    const i32 lane = threadIdx.x % 32, chunk = lane % 8;
    bool is_whole = quick && valid_keys >= tile_k;
#pragma unroll
    for (int c = 0; c < count; ++c) is_whole = is_whole && column[c] + 64 <= valid_dim;
    if (is_whole) {
      fetch_whole<count>(shared, head + chunk * 8, offsets, column);
      return;
    }
    i32 bytes[count];
#pragma unroll
    for (int c = 0; c < count; ++c) bytes[c] = column[c] + chunk * 8 < valid_dim ? 16 : 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
#pragma unroll 2
      for (i32 j = 0; j < 8; ++j) {
        const i32 key = i * 32 + j * 4 + lane / 8;
        const u16* row = head + __shfl_sync(0xffffffffu, offsets.of[i], key % 32) + chunk * 8;
#pragma unroll
        for (int c = 0; c < count; ++c) {
          const i32 wanted = key < valid_keys ? bytes[c] : 0;
          cp_async_16(shared + c * Panel::kBytes + Panel::offset(key, chunk), wanted ? row + column[c] : head, wanted);
        }
      }
  }

 private:
  // The same of a tile without an end: four keys cost a shuffle, an addition and the copies. The swizzle comes again
  // after eight keys.
  template <int count>
  static MICA_DEVICE void fetch_whole(u32 shared, const u16* lane_column, const Offsets& offsets,
                                      const i32 (&column)[count]) {
    using Panel = PanelTile<64, tile_k>;
    const i32 lane = threadIdx.x % 32;
    const u32 to[2] = {shared + Panel::offset(lane / 8, lane % 8), shared + Panel::offset(4 + lane / 8, lane % 8)};
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const u16* row = lane_column + __shfl_sync(0xffffffffu, offsets.of[i], j * 4 + lane / 8);
#pragma unroll
        for (int c = 0; c < count; ++c)
          cp_async_16(to[j % 2] + c * Panel::kBytes + (i * 32 + j / 2 * 8) * 128, row + column[c]);
      }
  }
};

}  // namespace mica
