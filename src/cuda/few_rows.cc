// SPDX-License-Identifier: Apache-2.0
#include "cuda/few_rows.h"

#include "core/heads_as_rows.h"
#include "cuda/argument_parts.h"

namespace mica {
namespace {

constexpr i32 kDecodeRows = 16, kTile = 64;  // of decode's small tiles, and of its larger ones
constexpr i32 kNarrow = 64, kWide = 128;     // columns of a head
constexpr i32 kMostRanges = 128;

i32 columns_of(const Problem& p) { return max_of(p.dim_qk, p.dim_v); }
i64 heads_of(const Problem& p) { return i64(p.batch) * p.heads_q; }

// is_better_in_one_tile for GPUs without wgmma, whose forward kernels gain less: more heads than SMs, and few keys.
bool is_better_in_portable_tile(const KernelRow& decode, const Problem& p, i32 num_sms) {
  constexpr i32 kMostKeys = 256;
  return !p.batch_invariant && p.group == 1 && p.hint_len_q > decode.tile_q && p.hint_len_k <= kMostKeys &&
         columns_of(p) <= kWide && decode.keys == MICA_NONE && heads_of(p) >= num_sms;
}

// Keys that a row sees at most.
i32 seen_keys(const Problem& p) {
  const i64 window = i64(p.window_left) + p.window_right + 1;
  return p.window_left >= kUnlimited ? p.hint_len_k : i32(min_of<i64>(p.hint_len_k, window));
}

// Of all of them, K and V.
i64 bytes_of_keys(const Problem& p) {
  return i64(p.batch) * p.heads_k * seen_keys(p) * (p.dim_qk + p.dim_v) * dtype_bytes(p.k.dtype);
}

// Several queries of wide heads, in boxes.
bool is_wide_joined(const Problem& p) { return p.joined_heads > 0 && columns_of(p) > kWide; }

// Up to how many rows of a key head decode reads keys about as often as a tile of joined heads would, whose blocks do
// more at once: that matters where the keys come from L2.
i32 most_rows_of_decode(const Problem& p, const Device& device) {
  if (p.dtype == MICA_FP8_E4M3) return 127;
  if (is_wide_joined(p) && 2 * bytes_of_keys(p) <= 5 * i64(device.l2_bytes)) return kDecodeRows;
  return 9 * bytes_of_keys(p) <= 4 * i64(device.l2_bytes) ? 32 : 64;
}

// Tiles of so many rows that share a key head, of decode.
constexpr i32 kMostTiles = 4;
i32 decode_tiles(i32 tile_q, const Problem& p) {
  return ceil_div(max_of(p.hint_len_q, 1), decode_queries(tile_q, p.group)) * decode_head_tiles(tile_q, p.group);
}

}  // namespace

bool is_decode(const KernelRow& row, const Problem& p, i32 num_sms) {
  constexpr i32 kKeysOfQuery = 8;
  if (is_better_in_portable_tile(row, p, num_sms)) return false;
  // Tiles of 64 rows have as many products to make as forward has, unless the keys are many more than the queries.
  const bool is_long = row.tile_q <= kDecodeRows || p.hint_len_k >= i64(kKeysOfQuery) * p.hint_len_q;
  return p.hint_len_q <= 1 || (decode_tiles(row.tile_q, p) <= kMostTiles && is_long);
}

// Tiles of 128 rows take twice the time of those of 64, but read keys half as often, which tells where L2 does not hold
// them. What can be joined heads does better so, single heads by forward.
bool is_worth_its_height(const KernelRow& row, const Problem& p, const Device& device) {
  if (row.role != Role::DECODE || row.tile_q <= kTile) return true;
  Problem joined;
  if (joined_boxes(p.group).rows_of_box == kBoxRows || heads_in_boxes(p, joined)) return false;
  const i32 tiles = decode_tiles(row.tile_q, p), more_tiles = decode_tiles(row.tile_q / 2, p);
  if (more_tiles > kMostTiles) return true;
  if (p.batch_invariant || p.softcap > 0) return false;
  const i64 pairs = i64(p.batch) * p.heads_k;
  return bytes_of_keys(p) >= 2 * i64(device.l2_bytes) ||
         (pairs * tiles <= device.num_sms && pairs * more_tiles > device.num_sms);
}

// Up to 32 rows twice as few read the same keys. What a row of half its width would not take is not for a wider one
// either.
bool has_enough_tiles(const KernelRow& row, const Problem& p, i32 num_sms) {
  const i64 tiles = i64(p.batch) * p.heads_k * ceil_div(p.hint_len_k, max_of(row.tile_k, 1));
  const i64 rows = i64(p.hint_len_q) * p.group;
  const bool is_too_wide = row.traits.least_queries > 0 && 2 * columns_of(p) <= row.dim_qk;
  // Softcap takes longer than narrow keys do to come, also of rows that are not there.
  if (row.traits.least_queries > 0 && p.softcap > 0 && columns_of(p) <= kNarrow && 2 * rows <= row.tile_q) return false;
  const i32 least = 2 * rows <= row.tile_q ? row.traits.least_tiles_of_few_rows : row.traits.least_tiles_of_sm;
  return p.batch_invariant || rows > row.tile_q || (!is_too_wide && tiles >= i64(least) * num_sms);
}

bool is_better_in_one_tile(const Problem& p, i32 num_sms) {
  const i32 columns = columns_of(p), most_keys = columns <= kNarrow ? 4096 : 2048;
  if (p.dtype == MICA_FP8_E4M3 || p.hint_len_q <= kDecodeRows || p.hint_len_k > most_keys) return false;
  const i64 tiles = heads_of(p);
  if (4 * tiles >= 3 * num_sms) return true;
  // With fewer, decode begins sooner where keys are few, unless it has to look up where they are, and cuts them into
  // ranges where they are many.
  const i32 few_keys = is_packed_q(p) ? 0 : columns <= kNarrow ? 128 : columns <= kWide ? 64 : 0;
  return 8 * tiles >= 3 * num_sms && p.hint_len_k > few_keys && p.hint_len_k < 2048;
}

bool wastes_tiles(const KernelRow& row, const Problem& p) {
  constexpr i32 kMostRows = 64;
  if (!row.traits.persistent || p.dtype == MICA_FP8_E4M3 || p.group <= 1 || p.hint_len_q > kMostRows) return false;
  const i32 joined_rows = max_of(row.tile_q / kBoxRows * joined_boxes(p.group).rows, 1);
  return 3 * ceil_div(p.hint_len_q * p.group, joined_rows) <= 2 * ceil_div(p.hint_len_q, row.tile_q) * p.group;
}

// Halves of lines cost time where they come from memory. (Batch-invariant: by what does not depend on the batch.)
i32 heads_of_block(const KernelRow& row, const Problem& p, const Device& device) {
  const auto lie_together = [](const Tensor& t) { return t.stride[2] == t.shape[3]; };
  const bool can = row.traits.pairs_heads && p.heads_k % 2 == 0 && lie_together(p.k) && lie_together(p.v);
  return can && (p.batch_invariant || bytes_of_keys(p) > device.l2_bytes) ? 2 : 1;
}

// They share its bandwidth as well: a round of one block less takes less time, and the last round is the fuller one.
// Of many rounds that hardly matters, and their beginnings and ends are hidden best by as many blocks as fit.
i32 blocks_of_sm(const KernelRow& row, i64 blocks, const Device& device) {
  constexpr i64 kFewRounds = 4;
  const i32 fewer = row.blocks - 1;
  if (row.traits.roomy_smem_bytes == 0 || blocks > kFewRounds * fewer * device.num_sms) return row.blocks;
  const auto cost = [&](i32 at_once) { return ceil_div<i64>(blocks, i64(at_once) * device.num_sms) * at_once; };
  return cost(fewer) < cost(row.blocks) ? fewer : row.blocks;
}

i32 team_of_combine(const KernelRow& combine, i64 units, i32 num_splits, i64 free_sms, const Device& device) {
  constexpr i32 kMostSplitsOfWarp = 8;
  const i64 warps_of_sm = i64(combine.blocks) * combine.warps;
  i32 team = combine_team_warps(num_splits, combine.warps);
  while (team > 1 && team * units > device.num_sms * warps_of_sm) team /= 2;
  for (i32 fewer = team; fewer > 0 && fewer * kMostSplitsOfWarp >= num_splits; fewer /= 2)
    if (fewer * units <= free_sms * warps_of_sm) return fewer;
  return team;
}

i32 ranges_of_joined(const KernelRow& row, const Problem& p, const KernelChoice& choice, bool is_decode) {
  constexpr i32 kLeastTiles = 2, kPartsOfTile = 10;
  const Device& device = choice.device;
  if (is_decode && p.max_len_q <= most_rows_of_decode(p, device)) return 0;
  const i64 blocks = i64(p.batch) * p.heads_k * ceil_div(p.max_len_q, joined_tile(row.tile_q, p));
  const i32 num_tiles = ceil_div(max_of(seen_keys(p), 1), row.tile_k), num_sms = device.num_sms;
  const bool is_narrow = columns_of(p) <= kNarrow, is_wide = columns_of(p) > kWide;
  const i32 most = clamp_to(num_tiles / kLeastTiles, 1, kMostRanges);
  const bool has_short_tiles = !is_wide && row.tile_k < kWide;
  const i32 overhead = is_narrow ? 8 : has_short_tiles ? 5 : 4;  // tiles of narrow heads are soon done
  // Combine's blocks wait on SMs that have no block of forward. Where there are too few it begins later, by so many
  // tenths of a tile.
  const i32 late = is_narrow ? 30 : is_wide ? 50 : has_short_tiles ? 32 : 25;
  const KernelRow& combine = kernel_table().rows[find_kernel(Role::COMBINE, choice)];
  const i64 units = i64(p.batch) * p.heads_q * p.max_len_q * ceil_div(p.dim_v, kCombineColumns);
  const auto waits_beside = [&](i32 ranges) {
    const i64 free_sms = max_of<i64>(num_sms - blocks * ranges, 0);
    return team_of_combine(combine, units, ranges, free_sms, device) * units <=
           free_sms * combine.blocks * combine.warps;
  };
  // Wide keys from memory, for one warpgroup: half of the SMs ask for all that memory has, and two neighbours for no
  // more than one SM alone.
  const bool is_fed = is_wide && p.max_len_q <= kTile && bytes_of_keys(p) > device.l2_bytes;
  const auto cost = [&](i32 ranges) {
    const i64 all = blocks * ranges, rounds = ceil_div<i64>(all, num_sms);
    i64 tiles = rounds * ceil_div(num_tiles, ranges);
    if (is_fed)
      tiles = max_of((11 * all > 6 * num_sms ? 2 : 1) * tiles, ceil_div<i64>(2 * blocks * num_tiles, num_sms));
    if (ranges == 1) return (tiles + rounds * overhead) * kPartsOfTile;
    const i64 ends = (is_fed ? 1 : rounds) * 2 * overhead;
    return (tiles + ends) * kPartsOfTile + ranges + (waits_beside(ranges) ? 0 : late);
  };
  i32 ranges = 1;
  i64 least = cost(1);
  for (i32 n = 2; n <= most; ++n) {
    const i64 next = cost(n);
    if (next >= least) continue;
    least = next;
    ranges = n;
  }
  // Decode's tiles are half as large: of little work it makes more blocks.
  const i64 wanted = p.max_len_q > kTile || is_wide ? 2 * num_sms / 5 : num_sms / 2;
  return is_decode && blocks * (is_wide ? most : ranges) < wanted ? 0 : ranges;
}

Splits ranges_of(const KernelRow& row, const Problem& p, const KernelChoice& choice, i64 blocks) {
  constexpr i32 kLeastTiles = 4;
  constexpr i32 kInvariantKeys = 2048;  // batch-invariant: a range's length follows from the capacity alone
  const i32 num_tiles = ceil_div(max_of(p.max_len_k, 1), row.tile_k), overhead = row.traits.overhead_tiles;
  if (p.num_splits > 0) return Splits{min_of(p.num_splits, num_tiles), 0};
  const i32 workers = choice.device.num_sms * row.blocks;
  // A persistent kernel is cut where its query tiles are too few for the SMs: a chunk of a prompt on a long cache. Two
  // blocks that share an SM take hardly longer than one, so that further ones gain nothing.
  // Batch-invariant: never, since that goes by the batch.
  const bool gains = row.traits.packs_heads ||
                     (row.traits.persistent && overhead && !p.batch_invariant && blocks < choice.device.num_sms);
  if (!gains || p.probs.dtype != MICA_NONE || find_kernel(Role::COMBINE, choice) < 0) return Splits{1, 0};
  if (p.batch_invariant) {
    const i32 length = max_of(ceil_div(kInvariantKeys, row.tile_k), ceil_div(num_tiles, kMostRanges));
    return Splits{ceil_div(num_tiles, length), length};
  }
  const i32 hint_tiles = ceil_div(max_of(row.traits.persistent ? seen_keys(p) : p.hint_len_k, 1), row.tile_k);
  if (row.traits.pairs_heads && row.traits.roomy_smem_bytes > 0) {
    // Of one block less an SM a round takes less time, so that the rounds of both kinds are compared in blocks.
    i32 best[2] = {};
    i64 cost[2] = {};
    for (i32 fewer = 0; fewer < 2; ++fewer) {
      const i32 at_once = row.blocks - fewer;
      best[fewer] = choose_fastest_splits(blocks, hint_tiles, at_once * choice.device.num_sms, kLeastTiles, kMostRanges,
                                          overhead, &cost[fewer]);
      cost[fewer] *= at_once;
    }
    return Splits{best[cost[1] < cost[0]], 0};
  }
  // More blocks than SMs, but not as many as fit on each: some SMs would have one more than others for as long as
  // memory takes.
  constexpr i32 kUnevenOverhead = 12;
  const i32 num_sms = choice.device.num_sms;
  const bool in_memory = bytes_of_keys(p) > choice.device.l2_bytes;
  if (!overhead && blocks > num_sms && in_memory) {
    const i32 at_once = blocks < workers ? num_sms : workers;
    return Splits{choose_fastest_splits(blocks, hint_tiles, at_once, kLeastTiles, kMostRanges, kUnevenOverhead), 0};
  }
  // Fewer blocks, whose ranges would leave as many SMs with one block: more of them, in rounds that are full.
  const i32 splits = choose_splits(blocks, hint_tiles, workers, kLeastTiles, kMostRanges);
  if (!overhead && in_memory && splits > 1 && blocks * splits > num_sms && 5 * blocks * splits < 4 * workers)
    return Splits{choose_fastest_splits(blocks, hint_tiles, workers, kLeastTiles, kMostRanges, kUnevenOverhead), 0};
  // More parts than combine fetches at once cost it a further wait; with as many from each of a few blocks SMs would
  // have two of them already.
  constexpr i32 kPartsAtOnce = 64;
  if (!overhead && !in_memory && blocks * kPartsAtOnce < num_sms)
    return Splits{choose_splits(blocks, hint_tiles, workers, kLeastTiles, kPartsAtOnce), 0};
  return Splits{
      overhead ? choose_fastest_splits(blocks, hint_tiles, workers, kLeastTiles, kMostRanges, overhead) : splits, 0};
}

}  // namespace mica
