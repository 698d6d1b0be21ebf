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

// Tiles of so many rows that share a key head, of decode.
constexpr i32 kMostTiles = 4;
i32 decode_tiles(i32 tile_q, const Problem& p) {
  return ceil_div(max_of(p.hint_len_q, 1), decode_queries(tile_q, p.group)) * decode_head_tiles(tile_q, p.group);
}

// Up to how many rows of a key head decode is not compared with joined heads: it was the faster one of nearly all that
// were timed, and of few keys none were.
i32 most_rows_of_decode(const Problem& p) {
  constexpr i32 kLeastKeys = 1024;
  if (p.dtype == MICA_FP8_E4M3) return 127;
  return seen_keys(p) < kLeastKeys ? kTile : p.group == 1 ? 2 * kDecodeRows : kDecodeRows;
}

// Whether decode's small blocks would be two on many SMs and one on others, for as long as their keys in L2 take, where
// a row of forward has room for three: all of them run at once so.
bool evens_out(const KernelRow& row, const Problem& p, const Device& device) {
  const i64 blocks = i64(p.batch) * p.heads_k;
  return row.blocks > 2 && p.max_len_q == kDecodeRows && 8 * blocks > 9 * device.num_sms &&
         blocks < 2 * device.num_sms && bytes_of_keys(p) <= device.l2_bytes;
}

// What a call of few rows takes, by a model that was fitted on an H200 (docs/design/tuning.md, "Costs of few rows"):
// the SM with most blocks makes one after the other, or as many at a time as it has room for, or all wait for memory.
struct CallCost {
  i32 call_ns, block_ns;
  i32 tile_ns, full_tile_ns;  // one warpgroup has rows, several; of decode's small blocks: one on an SM, two
  i32 busy_percent;           // more for a tile where all SMs work
  i32 memory_gbs;
  i32 cut_ns, range_ns, late_ns, part_ns;  // to join ranges: at all, each of them, begun late, each MB of parts
};
// Of up to 64, 128, 256 columns.
constexpr CallCost kJoinedCosts[] = {{2278, 1224, 900, 977, 14, 3885, 2484, 0, 300, 802},
                                     {2382, 2092, 971, 1134, 21, 3852, 2400, 14, 891, 520},
                                     {3178, 789, 733, 1021, 54, 4045, 1676, 18, 874, 638}};
constexpr CallCost kTallCosts[] = {{3071, 2120, 1218, 1218, 10, 3885, 2240, 2, 0, 668},
                                   {2100, 2922, 869, 869, 22, 3852, 2487, 4, 283, 464}};
constexpr CallCost kDecodeCosts[] = {{2795, 4864, 847, 847, 11, 4350, 134, 0, 1453, 387},
                                     {1410, 4734, 574, 574, 32, 4150, 704, 25, 653, 662},
                                     {4992, 739, 537, 537, 34, 4150, 67, 83, 1468, 862}};
constexpr CallCost kSmallCosts[] = {{1100, 1961, 178, 192, 0, 4350, 698, 14, 0, 2400},
                                    {2346, 2042, 178, 196, 0, 4350, 296, 13, 0, 2085},
                                    {1000, 5200, 552, 582, 0, 4350, 942, 21, 0, 645}};
i32 class_of(const Problem& p) { return columns_of(p) <= kNarrow ? 0 : columns_of(p) <= kWide ? 1 : 2; }

struct FewRows {
  i64 blocks, pairs;  // without ranges; sequences times key heads
  i64 bytes, units;   // of keys; what combine joins
  i32 tiles, at_once;
  bool has_rounds, is_full;  // blocks stay and take one item after the other; several warpgroups have rows
};

bool waits_beside(i64 units, i32 ranges, i64 free_sms, const Device& device) {
  const KernelTable& table = kernel_table();
  i32 index = 0;
  while (index + 1 < table.num_rows && table.rows[index].role != Role::COMBINE) ++index;
  const KernelRow& combine = table.rows[index];
  return team_of_combine(combine, units, ranges, free_sms, device) * units <= free_sms * combine.blocks * combine.warps;
}

i64 cost_ns(const CallCost& cost, const FewRows& few, i32 ranges, const Device& device) {
  const i64 sms = device.num_sms, all = few.blocks * ranges, tiles = ceil_div(few.tiles, ranges);
  i64 ns = 0;
  if (few.at_once == 1) {
    const i64 busy = min_of(all, sms) * cost.busy_percent, tile_ns = few.is_full ? cost.full_tile_ns : cost.tile_ns;
    ns = ceil_div(all, sms) * (cost.block_ns + tiles * (tile_ns + tile_ns * busy / (100 * sms)));
  } else {
    const i64 of_sm = ceil_div(all, sms);
    ns = of_sm / 2 * (cost.block_ns + tiles * cost.full_tile_ns) + of_sm % 2 * (cost.block_ns + tiles * cost.tile_ns);
  }
  if (few.at_once > 1 || 5 * few.bytes > 4 * i64(device.l2_bytes)) {
    // Two neighbouring SMs share what they get from memory, and forward's rounds begin with both.
    constexpr i64 kPairGbs = 75;
    const i64 of_pair = few.has_rounds && 2 * all > sms ? 2 * ceil_div(all, sms) : ceil_div(2 * all, sms);
    ns = max_of(ns, few.bytes / cost.memory_gbs);
    if (few.at_once == 1) ns = max_of(ns, of_pair * (few.bytes / max_of<i64>(few.pairs * ranges, 1)) / kPairGbs);
  }
  if (ranges == 1) return cost.call_ns + ns;
  const i64 free_sms = few.at_once > 1 ? 0 : max_of<i64>(sms - all, 0);
  // More tiles than SMs gain by ranges only what the last round leaves idle, and have more rows than combine's first
  // round of warps.
  constexpr i64 kWarpsOfSm = 32, kMoreRoundsNs = 8000, kMorePartNs = 500;
  const i64 more = few.has_rounds && few.blocks > sms ? few.units - kWarpsOfSm * sms : 0;
  if (more > 0) ns += kMoreRoundsNs + more * ranges * kMorePartNs * (4 * kCombineColumns) / 1000000;
  return cost.call_ns + ns + cost.cut_ns + cost.range_ns * ranges +
         (waits_beside(few.units, ranges, free_sms, device) ? 0 : cost.late_ns) +
         few.units * ranges * cost.part_ns * (4 * kCombineColumns) / 1000000;
}

struct Choice {
  i32 ranges;
  i64 ns;
};
Choice choose_ranges(const CallCost& cost, const FewRows& few, i32 least_tiles, const Device& device) {
  Choice best = {1, cost_ns(cost, few, 1, device)};
  for (i32 n = 2; n <= clamp_to(few.tiles / least_tiles, 1, kMostRanges); ++n) {
    const i64 ns = cost_ns(cost, few, n, device);
    if (ns < best.ns) best = {n, ns};
  }
  return best;
}

FewRows few_rows_of(const Problem& p, i64 blocks, i32 tile_k, i32 at_once) {
  const i64 pairs = i64(p.batch) * p.heads_k;
  const i64 units = i64(p.batch) * p.heads_q * p.max_len_q * ceil_div(p.dim_v, kCombineColumns);
  return {blocks, pairs, bytes_of_keys(p), units, ceil_div(max_of(seen_keys(p), 1), tile_k), at_once, false, false};
}
// Of joined heads by tiles of so many rows and keys.
Choice choose_joined(const CallCost& cost, const Problem& p, i32 tile_q, i32 tile_k, const Device& device) {
  constexpr i32 kLeastTiles = 2;
  const i64 rows = joined_tile(tile_q, p);
  FewRows few = few_rows_of(p, i64(p.batch) * p.heads_k * ceil_div<i64>(p.max_len_q, rows), tile_k, 1);
  few.has_rounds = true;
  few.is_full = p.max_len_q > joined_tile(kBoxRows, p);
  Choice best = choose_ranges(cost, few, kLeastTiles, device);
  // Idle SMs fetch nothing: with 104 of 132 at work 440 MB took 7 % longer than with 128.
  constexpr i64 kTilesOfRange = 16;
  const bool is_one_round = best.ranges > 1 && few.blocks * best.ranges <= device.num_sms;
  if (is_one_round && columns_of(p) <= kWide && 5 * few.bytes > 4 * i64(device.l2_bytes))
    best.ranges = max_of(best.ranges,
                         i32(min_of<i64>(min_of(device.num_sms / few.blocks, few.tiles / kTilesOfRange), kMostRanges)));
  return best;
}

// Long ranges of keys of 65 to 128 columns come from memory as fast by a few blocks less than there are SMs: 132 of 31
// tiles took 5 % longer than 128 of 32.
i32 without_the_last_sms(const KernelRow& row, const Problem& p, i64 blocks, i32 splits, i32 num_tiles, i32 num_sms) {
  constexpr i32 kPartFree = 32, kTilesOfOneMore = 24;
  const bool is_timed = row.role == Role::DECODE && row.tile_q == kTile && row.blocks == 1 && class_of(p) == 1 &&
                        dtype_bytes(p.k.dtype) == 2;
  const i64 enough = num_sms - num_sms / kPartFree;
  if (!is_timed || blocks * splits <= enough || blocks * splits > num_sms) return splits;
  const i32 fewer = i32(enough / blocks), tiles = ceil_div(num_tiles, splits);
  return fewer > 1 && kTilesOfOneMore * (ceil_div(num_tiles, fewer) - tiles) <= tiles ? fewer : splits;
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

// Of rounds of blocks that read so many tiles each, in tiles, if nothing is cut: with one block less on an SM a round
// takes less time.
static i64 cost_of_rounds(const KernelRow& row, i64 blocks, i64 tiles, const Device& device) {
  const auto cost = [&](i32 at_once) {
    return ceil_div<i64>(blocks, i64(at_once) * device.num_sms) * at_once * (tiles + row.traits.overhead_tiles);
  };
  return min_of(cost(row.blocks), cost(max_of(row.blocks - 1, 1)));
}

// Halves of lines cost time where they come from memory. Of heads that lie apart it goes by the rounds: blocks of two
// read twice as many keys in one go. (Batch-invariant: by what does not depend on the batch.)
i32 heads_of_block(const KernelRow& row, const Problem& p, const Device& device) {
  if (!row.traits.pairs_heads || p.heads_k % 2 != 0) return 1;
  const auto lie_together = [](const Tensor& t) { return t.stride[2] == t.shape[3]; };
  const bool are_halves = lie_together(p.k) && lie_together(p.v);
  if (p.batch_invariant) return are_halves ? 2 : 1;
  const i64 heads = i64(p.batch) * p.heads_k, tiles = ceil_div(max_of(p.hint_len_k, 1), row.tile_k);
  const bool saves_rounds =
      cost_of_rounds(row, heads / 2, 2 * tiles, device) < cost_of_rounds(row, heads, tiles, device);
  return (are_halves || saves_rounds) && bytes_of_keys(p) > device.l2_bytes ? 2 : 1;
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

bool prefers_tall_joined(const Problem& p, const Device& device) {
  const i32 columns = class_of(p);
  if (columns > 1) return false;
  return choose_joined(kTallCosts[columns], p, 192, columns == 0 ? 128 : 64, device).ns <
         choose_joined(kJoinedCosts[columns], p, 128, 128, device).ns;
}

i32 ranges_of_joined(const KernelRow& row, const Problem& p, const KernelChoice& choice, const KernelRow* decode) {
  const Device& device = choice.device;
  const i32 columns = class_of(p);
  const bool is_tall = row.served == serves::JOINED;
  const Choice joined =
      choose_joined(is_tall ? kTallCosts[columns] : kJoinedCosts[columns], p, row.tile_q, row.tile_k, device);
  if (!decode) return joined.ranges;
  const Problem& own = choice.problem;
  if (p.max_len_q <= most_rows_of_decode(own)) return evens_out(row, p, device) ? 1 : 0;
  const bool is_small = decode->tile_q <= kDecodeRows;
  const i64 blocks = i64(own.batch) * own.heads_k * decode_tiles(decode->tile_q, own);
  const FewRows few = few_rows_of(own, blocks, decode->tile_k, is_small ? 2 : 1);
  const i64 decode_ns = cost_ns(is_small ? kSmallCosts[columns] : kDecodeCosts[columns], few,
                                ranges_of(*decode, own, choice, blocks).num_splits, device);
  // What one tile of decode takes, too, was not timed in more ranges.
  constexpr i32 kMostTimed = 48;
  if (p.max_len_q <= kTile && joined.ranges > kMostTimed) return 0;
  // Rows that fill decode's own tile have half of forward's: wide keys from memory take up to a fifth longer so.
  const bool fills_tile = p.max_len_q <= kTile && 2 * p.max_len_q > kTile;
  if (fills_tile && columns_of(p) > kWide && bytes_of_keys(p) > device.l2_bytes) return 0;
  return joined.ns < decode_ns ? joined.ranges : 0;
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
  constexpr i32 kUnevenOverhead = 12, kFewOverhead = 8;
  const i32 num_sms = choice.device.num_sms;
  const bool in_memory = bytes_of_keys(p) > choice.device.l2_bytes;
  if (!overhead && blocks > num_sms && in_memory) {
    const bool is_one_round = blocks < workers;
    return Splits{choose_fastest_splits(blocks, hint_tiles, is_one_round ? num_sms : workers, kLeastTiles, kMostRanges,
                                        is_one_round ? kFewOverhead : kUnevenOverhead),
                  0};
  }
  // From L2 a second block on each SM may gain less than the join costs.
  if (!overhead && !in_memory && row.blocks == 2 && 2 * blocks > num_sms && blocks <= num_sms) {
    const FewRows few = few_rows_of(p, blocks, row.tile_k, row.blocks);
    const CallCost& cost = kSmallCosts[class_of(p)];
    if (cost_ns(cost, few, 1, choice.device) < cost_ns(cost, few, 2, choice.device)) return Splits{1, 0};
  }
  // Fewer blocks, whose ranges would leave as many SMs with one block: more of them, in rounds that are full.
  const i32 splits = choose_splits(blocks, hint_tiles, workers, kLeastTiles, kMostRanges);
  if (!overhead && in_memory && splits > 1 && blocks * splits > num_sms && 20 * blocks * splits < 19 * workers)
    return Splits{choose_fastest_splits(blocks, hint_tiles, workers, kLeastTiles, kMostRanges, kUnevenOverhead), 0};
  // More parts than combine fetches at once cost it a further wait; with as many from each of a few blocks SMs would
  // have two of them already.
  constexpr i32 kPartsAtOnce = 64;
  if (!overhead && !in_memory && blocks * kPartsAtOnce < num_sms)
    return Splits{choose_splits(blocks, hint_tiles, workers, kLeastTiles, kPartsAtOnce), 0};
  if (!overhead) return Splits{splits, 0};
  const i32 fastest = choose_fastest_splits(blocks, hint_tiles, workers, kLeastTiles, kMostRanges, overhead);
  return Splits{in_memory ? without_the_last_sms(row, p, blocks, fastest, hint_tiles, num_sms) : fastest, 0};
}

UnevenRanges uneven_ranges_of(const KernelRow& row, const Problem& p, const Device& device, i64 blocks, i32 most) {
  // Of many rounds the last is not waited for: some SMs are ahead by then.
  constexpr i32 kLeastTiles = 4, kUnevenOverhead = 12, kMostRounds = 4;
  const i32 overhead = row.traits.overhead_tiles > 0 ? row.traits.overhead_tiles : kUnevenOverhead;
  const i32 tiles = ceil_div(max_of(p.hint_len_k, 1), row.tile_k);
  // Of one block less an SM a round takes less time, so that rounds of both kinds are compared in blocks.
  const i32 fewest = row.traits.roomy_smem_bytes > 0 ? row.blocks - 1 : row.blocks;
  UnevenRanges best = {0, 1, 1, row.blocks};
  if (most < 2 || blocks > i64(kMostRounds) * fewest * device.num_sms || bytes_of_keys(p) <= device.l2_bytes)
    return best;
  i64 least = 0;
  for (i32 at_once = fewest; at_once <= row.blocks; ++at_once) {
    const i64 workers = i64(at_once) * device.num_sms;
    i64 alike = 0;
    choose_fastest_splits(blocks, tiles, workers, kLeastTiles, kMostRanges, overhead, &alike);
    alike -= alike / 32;  // what it should gain
    if (least == 0 || alike * at_once < least) {
      least = alike * at_once;
      best = {0, 1, 1, at_once};
    }
    const TwoCuts cuts = choose_two_cuts(p.batch, blocks / p.batch, tiles, workers, kLeastTiles, most, overhead);
    if (cuts.first_units == 0 || cuts.cost * at_once >= least) continue;
    least = cuts.cost * at_once;
    best = {i32(cuts.first_units), cuts.first_splits, cuts.splits, at_once};
  }
  return best;
}

}  // namespace mica
