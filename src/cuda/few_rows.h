// SPDX-License-Identifier: Apache-2.0
// Forward of few query rows: whether decode takes it or a tile of forward, and into how many ranges its keys are cut.
//
// Decode's tiles of 16 or 64 rows have all query heads of a key head and begin soon, but each reads the keys for
// itself. A tile of forward reads them once, for one head or, with heads as rows, for several. Either can cut the keys
// into ranges, which are joined at the end. What each costs was measured (docs/design/tuning.md: "Few rows", "Heads as
// rows", "Chunks on long caches"); the figures stand here and nowhere else.
#pragma once

#include "core/schedule.h"
#include "cuda/registry.h"

namespace mica {

// Whether a row of decode is for so few query rows of a key head: the time goes into reading keys and values.
bool is_decode(const KernelRow& row, const Problem& p, i32 num_sms);
// Whether a row of decode with tiles of 64 has enough of them; decode's small blocks begin sooner.
bool has_enough_tiles(const KernelRow& row, const Problem& p, i32 num_sms);
// Whether a row of decode with tiles of 128 does better than one with twice as many of 64.
bool is_worth_its_height(const KernelRow& row, const Problem& p, const Device& device);

// Whether a Hopper kernel's tile for each head does better than decode.
bool is_better_in_one_tile(const Problem& p, i32 num_sms);
// Whether heads whose few rows fill little of a forward kernel's tile would fill it together.
bool wastes_tiles(const KernelRow& row, const Problem& p);

// How many key heads a block of the row takes.
i32 heads_of_block(const KernelRow& row, const Problem& p, const Device& device);
// How many of so many blocks share an SM.
i32 blocks_of_sm(const KernelRow& row, i64 blocks, const Device& device);

// Warps of combine that share out the splits of one of so many units: as many as have something to do, unless the
// blocks would not run at once, since a second round takes longer than a further part; fewer where all of them can wait
// on free_sms so.
i32 team_of_combine(const KernelRow& combine, i64 units, i32 num_splits, i64 free_sms, const Device& device);

// Into how many ranges the keys of heads as rows are cut by a forward kernel; 0: the row of decode that could take the
// problem does better.
i32 ranges_of_joined(const KernelRow& row, const Problem& p, const KernelChoice& choice, const KernelRow* decode);
// Whether tiles of 192 joined rows do better than those of 128.
bool prefers_tall_joined(const Problem& p, const Device& device);
// The same of all problems that are not heads as rows; `blocks` without ranges.
Splits ranges_of(const KernelRow& row, const Problem& p, const KernelChoice& choice, i64 blocks);

// Where sequences are not cut alike: the first ones, whose blocks of decode's small tiles come first, into fewer
// ranges.
struct UnevenRanges {
  i32 first_sequences;  // 0: all are cut alike, as ranges_of says
  i32 first_splits, num_splits;
  i32 blocks_of_sm;
};
// most: as many ranges as the last block of a tile can join.
UnevenRanges uneven_ranges_of(const KernelRow& row, const Problem& p, const Device& device, i64 blocks, i32 most);

}  // namespace mica
