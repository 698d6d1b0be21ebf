// SPDX-License-Identifier: Apache-2.0
// Query tiles of packed sequences, numbered without a gap: section after section of a few sequences, whose K and V stay
// in L2; within a section from the last tile of its longest sequence down to the first tiles of all, so that under a
// causal mask the heaviest come first.
#pragma once

#include "core/schedule.h"
#include "device/ptx_sm90.cuh"
#include "kernels/params.h"

namespace mica {

// How far a warp has come through them: indices only grow.
template <int tile_q>
struct PackedTiles {
  static constexpr u32 kWarp = 0xffffffffu;
  i32 section;           // sequences
  i32 first = -section;  // the present section's first sequence; lane l has the l-th after it
  i32 of_lane = 0;       // tiles of the lane's sequence
  i32 tile = 0;          // those of the section that come next have this place in their sequences
  i32 before = 0;        // tiles that come before them

  // By a warp: the tile `index`; where there are not as many, the sequence is -1 and the place is how many there are.
  MICA_DEVICE QueryTile find(const SequenceTable& t, i32 batch, i32 index) {
#pragma unroll 1
    while (true) {
      const u32 there = __ballot_sync(kWarp, of_lane > tile);
      const i32 wanted = index - before, lane = threadIdx.x % 32;
      if (wanted < __popc(there)) {
        const bool is_it = of_lane > tile && __popc(there & ((1u << lane) - 1)) == wanted;
        return QueryTile{first + __ffs(i32(__ballot_sync(kWarp, is_it))) - 1, tile};
      }
      before += __popc(there);
      if (--tile >= 0) continue;
      first += section;
      if (first >= batch) return QueryTile{-1, before};
      begin(t, batch);
    }
  }

 private:
  // Whatever cu_seqlens holds, no sequence has fewer tiles than none, or more rows than it may have.
  MICA_DEVICE void begin(const SequenceTable& t, i32 batch) {
    const i32 lane = threadIdx.x % 32, sequence = first + lane;
    of_lane = 0;
    if (lane < section && sequence < batch) {
      const i32 rows = i32(min_of<i64>(t.total_q, 0x7fffffff));
      const i32 row = clamp_to(t.cu_seqlens_q[sequence], 0, rows);
      of_lane = ceil_div(min_of(clamp_to(t.cu_seqlens_q[sequence + 1], row, rows) - row, t.slot_len_q), tile_q);
    }
    tile = max_of(warp_max(of_lane) - 1, 0);
  }
};

}  // namespace mica
