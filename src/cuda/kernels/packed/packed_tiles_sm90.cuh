// SPDX-License-Identifier: Apache-2.0
// Query tiles of packed sequences, numbered without a gap, in one of two orders. Under a mask section after section of
// a few sequences, whose K and V stay in L2; within a section from the last tile of its longest sequence down to the
// first tiles of all, so that the heaviest come first; of each tile all heads. Where all keys are seen: sequence after
// sequence as they lie, of each one head after the other, so that whoever reads the same keys does so at the same time.
#pragma once

#include "device/ptx_sm90.cuh"
#include "kernels/params.h"

namespace mica {

struct PackedTile {
  i32 batch, tile, head;
};

// How far a warp has come through them: numbers only grow.
template <int tile_q>
struct PackedTiles {
  static constexpr u32 kWarp = 0xffffffffu;
  i32 section;             // sequences; 0: as they lie, 32 at a time
  i32 first = -at_once();  // of the sequences at hand; lane l has the l-th after it
  i32 of_lane = 0;         // tiles of the lane's sequence
  i32 place = 0;           // in a section: those that come next have this place in their sequences; else up_to_lane()
  i32 before = 0;          // tiles that come before those

  // By a warp: the tile and head that have the number `work`; where there are not as many, the sequence is -1 and the
  // tile is how many tiles there are.
  MICA_DEVICE PackedTile find(const SequenceTable& t, i32 batch, i32 heads, i32 work) {
    const i32 index = warp_max(work) / heads;
#pragma unroll 1
    while (true) {
      const i32 wanted = index - before;
      i32 here;
      if (section > 0) {
        const u32 there = __ballot_sync(kWarp, of_lane > place);
        here = __popc(there);
        if (wanted < here) {
          const bool is_it = of_lane > place && __popc(there & ((1u << threadIdx.x % 32) - 1)) == wanted;
          return {first + __ffs(i32(__ballot_sync(kWarp, is_it))) - 1, place, work - index * heads};
        }
      } else {
        here = __shfl_sync(kWarp, place, 31);
        if (wanted < here) {
          const i32 lane = __ffs(i32(__ballot_sync(kWarp, place > wanted))) - 1;
          const i32 tiles = __shfl_sync(kWarp, of_lane, lane);
          const i32 of_sequence = work - (before + __shfl_sync(kWarp, place, lane) - tiles) * heads;
          const i32 head = of_sequence / tiles;
          return {first + lane, of_sequence - head * tiles, head};
        }
      }
      before += here;
      if (section > 0 && --place >= 0) continue;
      first += at_once();
      if (first >= batch) return {-1, before, 0};
      begin(t, batch);
    }
  }

  // Sequences at hand.
  MICA_DEVICE i32 at_once() const { return section > 0 ? section : 32; }

 private:
  // Whatever cu_seqlens holds, no sequence has fewer tiles than none, or more rows than it may have.
  MICA_DEVICE void begin(const SequenceTable& t, i32 batch) {
    const i32 lane = threadIdx.x % 32, sequence = first + lane;
    of_lane = 0;
    if (lane < at_once() && sequence < batch) {
      const i32 rows = i32(min_of<i64>(t.total_q, 0x7fffffff));
      const i32 row = clamp_to(t.cu_seqlens_q[sequence], 0, rows);
      of_lane = ceil_div(min_of(clamp_to(t.cu_seqlens_q[sequence + 1], row, rows) - row, t.slot_len_q), tile_q);
    }
    place = section > 0 ? max_of(warp_max(of_lane) - 1, 0) : up_to_lane();
  }
  // Tiles of the lane's sequence and those before it at hand.
  MICA_DEVICE i32 up_to_lane() const {
    const i32 lane = threadIdx.x % 32;
    i32 sum = of_lane;
#pragma unroll 1
    for (i32 distance = 1; distance < 32; distance *= 2) {
      const i32 other = __shfl_sync(kWarp, sum, max_of(lane - distance, 0));
      if (lane >= distance) sum += other;
    }
    return sum;
  }
};

}  // namespace mica
