// SPDX-License-Identifier: Apache-2.0
// Who does which tile: split-KV ranges, the tiles of packed sequences, heavy-first order.
#pragma once

#include "core/mask.h"
#include "core/sequence.h"

namespace mica {

// Split-KV is a schedule: each split takes a range of key tiles and writes a partial result.
// length_tiles > 0 fixes the length of a split (batch-invariant); else the tiles found are dealt evenly to num_splits.
struct Splits {
  i32 num_splits;
  i32 length_tiles;
};

// A query tile of one sequence.
struct QueryTile {
  i32 batch;
  i32 tile;  // within the sequence
};

}  // namespace mica

namespace MICA_NS {

using mica::QueryTile;
using mica::Splits;

// The key tiles [begin, end) of one split of the tiles [0, num_tiles) of a sequence. The boundaries follow from the
// length found at run time, so that a long cache holding few keys still keeps every split busy.
MICA_HD Range split_tiles(const Splits& s, i32 num_tiles, i32 split) {
  if (s.length_tiles == 0)
    return Range{i32(i64(split) * num_tiles / s.num_splits), i32(i64(split + 1) * num_tiles / s.num_splits)};
  const i32 begin = i32(min_of<i64>(i64(split) * s.length_tiles, num_tiles));
  return Range{begin, i32(min_of<i64>(i64(begin) + s.length_tiles, num_tiles))};
}

// How many splits keep `workers` busy: none when there is work enough, else as many as fit into one wave, with at least
// min_tiles key tiles each.
MICA_HD i32 choose_splits(i64 work_items, i32 num_tiles, i32 workers, i32 min_tiles, i32 max_splits) {
  if (work_items >= workers || num_tiles <= min_tiles) return 1;
  const i64 wanted = workers / max_of<i64>(work_items, 1);
  const i64 possible = max_of(num_tiles / max_of(min_tiles, 1), 1);
  return i32(clamp_to<i64>(min_of(wanted, possible), 1, max_splits));
}

// How many splits let `workers`, which take one block after the other, end first. A block costs its key tiles and
// `overhead` more, and as much again where it leaves a part that must be joined; each part costs the join a tenth of a
// tile (docs/design/tuning.md). cost_of_best: what that takes, in tenths of a tile.
MICA_HD i32 choose_fastest_splits(i64 work_items, i32 num_tiles, i32 workers, i32 min_tiles, i32 max_splits,
                                  i32 overhead, i64* cost_of_best = nullptr) {
  const i32 most = clamp_to(num_tiles / max_of(min_tiles, 1), 1, max_splits);
  constexpr i32 kPartsOfTile = 10;
  i32 best = 1;
  i64 least = ceil_div<i64>(work_items, workers) * (num_tiles + overhead) * kPartsOfTile;
  for (i32 splits = 2; splits <= most; ++splits) {
    const i64 blocks = ceil_div<i64>(work_items * splits, workers);
    const i64 cost = blocks * (ceil_div(num_tiles, splits) + 2 * overhead) * kPartsOfTile + splits;
    if (cost >= least) continue;
    best = splits;
    least = cost;
  }
  if (cost_of_best) *cost_of_best = least;
  return best;
}

// Work items of equal size, the first of which are cut into fewer ranges than the rest, whose blocks come last: workers
// with nothing left to do share what would be a round of few. cost: as choose_fastest_splits counts it.
struct TwoCuts {
  i64 first_units;  // 0: there is no such cut
  i32 first_splits, splits;
  i64 cost;
};

// When `workers` are done with so many long blocks and then so many short ones, if whoever is free takes the next.
MICA_HD i64 time_of_two_sizes(i64 workers, i64 long_blocks, i64 long_time, i64 short_blocks, i64 short_time) {
  const i64 begin = long_blocks / workers * long_time, late = long_blocks % workers;  // workers with one more long one
  const i64 end = begin + (late > 0 ? long_time : 0);
  const i64 missed = late * ceil_div(end - begin, short_time);
  return max_of(end, begin + ceil_div(short_blocks + missed, workers) * short_time);
}

// Items come in units of `items_of_unit`, which are cut alike. Of the first ones there are as many as fill whole
// rounds.
MICA_HD TwoCuts choose_two_cuts(i64 units, i64 items_of_unit, i32 num_tiles, i64 workers, i32 min_tiles, i32 max_splits,
                                i32 overhead) {
  constexpr i32 kPartsOfTile = 10, kMostRounds = 4, kMostFirst = 4;
  const i32 most = clamp_to(num_tiles / max_of(min_tiles, 1), 1, max_splits);
  const auto time_of = [=](i32 splits) { return ceil_div(num_tiles, splits) + (splits > 1 ? 2 : 1) * overhead; };
  TwoCuts best = {0, 1, 1, 0};
  for (i32 few = 1; few < most && few <= kMostFirst; ++few)
    for (i64 round = 1; round <= kMostRounds; ++round) {
      const i64 first = round * workers / (items_of_unit * few), rest = (units - first) * items_of_unit;
      if (rest <= 0) break;
      for (i32 splits = few + 1; first > 0 && splits <= most; ++splits) {
        const i64 time =
            time_of_two_sizes(workers, first * items_of_unit * few, time_of(few), rest * splits, time_of(splits));
        const i64 cost = time * kPartsOfTile + splits;
        if (best.first_units == 0 || cost < best.cost) best = {first, few, splits, cost};
      }
    }
  return best;
}

// Packed sequences: sequence b owns tiles from tile_begin(b) on, which needs only cu_seqlens[b]; ceil(total / tile) +
// batch tiles serve any division of the rows, a few of them empty.
MICA_HD i32 packed_tile_begin(i32 rows_before, i32 b, i32 tile_q) { return rows_before / tile_q + b; }

MICA_HD i64 packed_tile_count(i64 total_q, i32 batch, i32 tile_q) {
  return batch == 0 ? 0 : ceil_div<i64>(total_q, tile_q) + batch;
}

// Whatever cu_seqlens holds, the batch is one that exists and the tile is not negative: where the sequence's first row
// lies past the tile, the tile is one past every row.
MICA_HD QueryTile find_packed_tile(const i32* cu_seqlens_q, i32 batch, i64 total_q, i32 tile_q, i32 index) {
  i32 low = 0, high = batch - 1;  // the last b whose tile_begin is at most index
  while (low < high) {
    const i32 middle = low + (high - low + 1) / 2;
    const i32 rows = i32(clamp_to<i64>(cu_seqlens_q[middle], 0, total_q));
    if (packed_tile_begin(rows, middle, tile_q) <= index)
      low = middle;
    else
      high = middle - 1;
  }
  const i32 rows = i32(clamp_to<i64>(cu_seqlens_q[low], 0, total_q));
  const i32 tile = index - packed_tile_begin(rows, low, tile_q);
  return QueryTile{low, tile >= 0 ? tile : i32(ceil_div<i64>(total_q, tile_q))};
}

// Causal tiles get heavier towards the end: deal them from the last to the first.
MICA_HD i32 heavy_first(i32 index, i32 count, bool last_is_heavy) { return last_is_heavy ? count - 1 - index : index; }

}  // namespace MICA_NS
