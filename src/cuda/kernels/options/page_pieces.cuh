// SPDX-License-Identifier: Apache-2.0
// Key tiles in pages of multiples of 16 rows, as a warp fetches every step-th of them: each lane knows where a piece of
// a tile begins that lies in one page, 32 pieces at once, and holds the block table's entry of the piece 32 further on.
// When memory is busy an entry comes late, and a tile that waits for its page waits as long.
#pragma once

#include "core/sequence.h"
#include "device/panel_tile.cuh"
#include "kernels/params.h"

namespace mica {

template <int tile_k, int step>
struct PagePieces {
  static constexpr int kRows = 16;  // of one page, at least
  static_assert(tile_k % kRows == 0 && tile_k / kRows <= 32);
  const SequenceTable& t;
  const RowsArg& tensor;
  const i32* entries;  // of the sequence
  i32 len_k;
  i64 now;    // where the lane's piece of the tiles at hand begins, for head 0
  i32 next;   // the entry of its piece of as many tiles after them
  i32 used;   // lanes of `now`
  i32 shift;  // a piece has 1 << shift keys

  // The lines that begin() reads first are on their way into L2.
  MICA_DEVICE void call_in(const Sequence& s, i32 b, i32 first) {
    find_pieces(s, b);
    prefetch_l2(entry(first));
  }
  MICA_DEVICE void begin(const Sequence& s, i32 b, i32 first) {
    find_pieces(s, b);
    now = offset(*entry(first), first);
    next = *entry(first + tiles_at_once() * step);
    used = 0;
  }
  // Goes on to the tile after `tile`.
  MICA_DEVICE void advance(i32 tile) {
    used += pieces();
    if (used < 32) return;
    now = offset(next, tile + step);
    next = *entry(tile + (1 + tiles_at_once()) * step);
    used = 0;
  }

  // Sends for all panels of the tile at hand. Keys past valid_keys and columns past valid_dim arrive as zeros.
  template <int panels>
  MICA_DEVICE void fetch(u32 shared, const u16* head, i32 valid_keys, i32 valid_dim) const {
    using Panel = PanelTile<64, tile_k>;
    constexpr int kAtOnce = 4;  // keys, eight lanes each
    const i32 lane = threadIdx.x % 32, own = lane / 8, chunk = lane % 8;
    const u16* lane_column = head + own * tensor.stride_row + chunk * 8;
    i32 bytes[panels];
#pragma unroll
    for (int c = 0; c < panels; ++c) bytes[c] = c * 64 + chunk * 8 < valid_dim ? 16 : 0;
#pragma unroll 2
    for (i32 first = 0; first < tile_k; first += kRows) {
      const i64 piece = __shfl_sync(0xffffffffu, now, used + (first >> shift));
      const u16* row = lane_column + piece + (first & ((1 << shift) - 1)) * tensor.stride_row;
#pragma unroll
      for (i32 key = 0; key < kRows; key += kAtOnce) {
        const bool is_there = first + key + own < valid_keys;
#pragma unroll
        for (int c = 0; c < panels; ++c) {
          const i32 wanted = is_there ? bytes[c] : 0;
          cp_async_16(shared + c * Panel::kBytes + first * 128 + Panel::offset(key + own, chunk),
                      wanted ? row + key * tensor.stride_row + c * 64 : head, wanted);
        }
      }
    }
  }

 private:
  MICA_DEVICE void find_pieces(const Sequence& s, i32 b) {
    entries = t.block_table + b * t.block_table_stride_batch;
    len_k = s.len_k;
    shift = __ffs(t.page_size | tile_k) - 1;
  }
  MICA_DEVICE i32 pieces() const { return tile_k >> shift; }
  MICA_DEVICE i32 tiles_at_once() const { return 32 / pieces(); }
  // The first key of the lane's piece, the first of them being of tile `first`.
  MICA_DEVICE i32 first_key(i32 first) const {
    const i32 lane = threadIdx.x % 32, own = lane / pieces();
    return (first + own * step) * tile_k + ((lane - own * pieces()) << shift);
  }
  // Keys past the last one have its page.
  MICA_DEVICE const i32* entry(i32 first) const {
    return entries + min_of(first_key(first), len_k - 1) / t.page_size * t.block_table_stride_page;
  }
  MICA_DEVICE i64 offset(i32 entry, i32 first) const {
    return paged_row_offset(t, PagedRow{entry, first_key(first) % t.page_size}, tensor.stride_batch, tensor.stride_row);
  }
};

}  // namespace mica
