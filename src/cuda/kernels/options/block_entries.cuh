// SPDX-License-Identifier: Apache-2.0
// Entries of the block table as a warp needs them that takes every step-th key tile. When memory is busy an entry comes
// late, and a tile that waits for its page waits as long: hence entries are fetched many tiles ahead, one a lane, each
// for a piece of a tile that lies in one page.
#pragma once

#include "core/sequence.h"
#include "device/ptx.cuh"

namespace mica {

template <int tile_k, int step>
struct BlockEntries {
  static_assert(tile_k <= 32);  // a lane for each piece, however small
  i32 now, next;                // of the tiles at hand, and of as many after them
  i32 used;                     // lanes of `now`
  i32 shift;                    // a piece has 1 << shift keys

  // The largest pieces of which none lies in two pages.
  MICA_DEVICE void find_pieces(const SequenceTable& t, const Sequence& s) {
    const i32 most = min_of(t.page_size, tile_k);
    const bool is_whole = max_of(t.page_size, tile_k) % most == 0 && s.leftpad % most == 0;
    shift = is_whole ? __ffs(most) - 1 : 0;
  }
  MICA_DEVICE i32 pieces() const { return tile_k >> shift; }

  MICA_DEVICE void begin(const SequenceTable& t, const Sequence& s, i32 b, i32 first) {
    now = *address(t, s, b, first);
    next = *address(t, s, b, first + tiles_at_once() * step);
    used = 0;
  }
  // The lines that begin() reads first are on their way into L2.
  MICA_DEVICE void call_in(const SequenceTable& t, const Sequence& s, i32 b, i32 first) const {
    prefetch_l2(address(t, s, b, first));
  }
  // Where a key of the tile at hand is; all lanes ask, for one each.
  MICA_DEVICE PagedRow row(const SequenceTable& t, const Sequence& s, i32 tile, i32 key) const {
    return PagedRow{__shfl_sync(0xffffffffu, now, used + (key >> shift)),
                    (s.leftpad + tile * tile_k + key) % t.page_size};
  }
  // Goes on to the tile after `tile`.
  MICA_DEVICE void advance(const SequenceTable& t, const Sequence& s, i32 b, i32 tile) {
    used += pieces();
    if (used < 32) return;
    now = next;
    next = *address(t, s, b, tile + (1 + tiles_at_once()) * step);
    used = 0;
  }

 private:
  MICA_DEVICE i32 tiles_at_once() const { return 32 / pieces(); }
  // The lane's entry, the first of them being of tile `first`. Keys past the last one repeat it.
  MICA_DEVICE const i32* address(const SequenceTable& t, const Sequence& s, i32 b, i32 first) const {
    const i32 lane = threadIdx.x % 32, own = lane / pieces();
    const i32 key = (first + own * step) * tile_k + ((lane - own * pieces()) << shift);
    const i32 page = (s.leftpad + min_of(key, s.len_k - 1)) / t.page_size;
    return t.block_table + b * t.block_table_stride_batch + page * t.block_table_stride_page;
  }
};

}  // namespace mica
