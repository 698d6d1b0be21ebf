// SPDX-License-Identifier: Apache-2.0
#include "cuda/backward_share.h"

#include "cuda/argument_parts.h"
#include "cuda/kernels/packed/packed_order.h"
#include "cuda/kernels/parts/backward_drawn_sm90.h"
#include "cuda/kernels/parts/backward_order.h"

namespace mica {
namespace {

// Sums of dK and dV that blocks share: not where keys begin elsewhere than at the row of their tile, nor
// batch-invariant, since the batch decides how many share them.
bool can_share_keys(const KernelRow& row, const Problem& p) {
  constexpr u32 kElsewhere = MICA_CACHE_BATCH_IDX | MICA_CACHE_LEFTPAD;
  return row.traits.shares_groups && !p.batch_invariant && !is_packed_k(p) && !(p.vectors & kElsewhere);
}

// Tiles of a sequence: of packed ones, of the mean, and of the longest by the caller's hint.
struct TileCounts {
  i64 q, k;
};
TileCounts mean_tiles(const KernelRow& row, const Problem& p) {
  const i64 sequences = max_of(p.batch, 1);
  return {is_packed_q(p) ? ceil_div<i64>(p.total_q, sequences * row.tile_q) : ceil_div(p.max_len_q, row.tile_q),
          is_packed_k(p) ? ceil_div<i64>(p.total_k, sequences * row.tile_k) : ceil_div(p.max_len_k, row.tile_k)};
}
TileCounts most_tiles(const KernelRow& row, const Problem& p) {
  return {ceil_div(p.hint_len_q, row.tile_q), ceil_div(p.hint_len_k, row.tile_k)};
}

// Times are counted in products of a query tile and a key tile. A key tile costs some beside them, and more where its
// gradients are added to those of other blocks.
constexpr i64 kStepsOfTile = 2, kStepsOfSharedTile = 5;
constexpr i64 kUnit = 16;  // parts of a step, where less than one counts
// Where whole heads and single key tiles are compared, twice as finely: a key tile of a head costs less than one alone.
constexpr i64 kHalfStepsOfHeadTile = 6, kHalfStepsOfSingleTile = 8, kHalfStepsOfSharing = 6;
constexpr i32 kShortKeys = 1024;

bool is_causal(const Problem& p) { return p.window_right < kUnlimited && p.window_left == kUnlimited; }

// Half steps of one key tile with `tiles_q` query tiles of each of `heads`: under a causal mask the mean of all.
i64 half_steps(const Problem& p, i64 heads, i64 tiles_q) { return heads * (is_causal(p) ? tiles_q + 1 : 2 * tiles_q); }

// How long whole heads take, in half steps.
i64 half_steps_of_heads(const KernelRow& row, const Problem& p, const Device& device, i32 query_parts) {
  const TileCounts tiles = mean_tiles(row, p);
  const i64 rounds = ceil_div<i64>(i64(p.batch) * p.heads_k * query_parts, device.num_sms);
  return rounds * tiles.k *
         (half_steps(p, p.group, ceil_div<i64>(tiles.q, query_parts)) + kHalfStepsOfHeadTile +
          (query_parts > 1 ? kHalfStepsOfSharing : 0));
}

// What a key tile reads and adds to of a query: Q, dO and the sums of dQ.
i64 bytes_of_query_row(const KernelRow& row, const Problem& p) {
  return row.dim_qk * i64(sizeof(float)) + i64(p.dim_qk + p.dim_v) * dtype_bytes(p.dtype);
}

// Whether a block takes keys of one head, and every head has the same number of blocks. Packed sequences differ, and a
// left padding leaves key tiles out.
bool has_items_of_heads(const KernelRow& row, const Problem& p) {
  return row.course != Course::HEADS && !is_packed_q(p) && !is_packed_k(p) && !(p.vectors & MICA_CACHE_LEFTPAD);
}

// By the number of blocks alone.
BackwardShare share_by_waves(const KernelRow& row, const Problem& p, const Device& device, i64 key_blocks) {
  // With few key heads a block for each key tile would leave SMs without work. Short sequences are cheap to begin with:
  // to share one costs more there than an uneven last wave.
  // Wide heads have more products to make for each sum.
  constexpr i32 kWideHeads = 129;
  const i64 waves = row.dim_qk >= kWideHeads ? 10 : p.hint_len_k <= kShortKeys ? 3 : 8;
  const i64 wanted = waves * device.num_sms;
  BackwardShare share = {p.group, 1, 1};
  if (!can_share_keys(row, p) || p.max_len_q == 0 || key_blocks == 0 || key_blocks >= wanted) return share;
  share.part_heads = i32(ceil_div<i64>(p.group, min_of<i64>(p.group, ceil_div<i64>(wanted, key_blocks))));
  share.head_parts = ceil_div(p.group, max_of(share.part_heads, 1));
  return share;
}

}  // namespace

bool sums_integers(const KernelRow& row, const Problem& p) {
  return p.deterministic && p.dq.dtype && row.course != Course::HEADS && (row.variant & kIntegersVariant);
}
Problem without_order(const KernelRow& row, const Problem& p) {
  Problem free = p;
  if (sums_integers(row, p)) free.deterministic = 0;
  return free;
}

bool takes_parts_apart(const KernelRow& row, const Problem& p) {
  return p.deterministic && backward_takes_parts_apart(row.dim_qk);
}

// Key tiles of all heads of a key head: how many, of how many query tiles a head, and steps of all of them.
struct KeyTiles {
  i64 blocks, tiles_q, steps;
};
static KeyTiles key_tiles_of(const KernelRow& row, const Problem& p, i64 key_blocks) {
  const TileCounts tiles = mean_tiles(row, p);
  i64 of_head = tiles.q * tiles.k;
  if (is_causal(p) && (is_packed_q(p) || is_packed_k(p))) {
    of_head = tiles.k * (tiles.q + 1) / 2;
  } else if (is_causal(p)) {
    const i64 shift = i64(p.bottom_right ? p.max_len_k - p.max_len_q : 0) + p.shift + p.window_right;
    of_head = 0;
    for (i64 tile = 0; tile < tiles.k; ++tile)
      of_head += max_of<i64>(tiles.q - max_of<i64>(tile * row.tile_k - shift, 0) / row.tile_q, 0);
  }
  return {key_blocks, tiles.q, key_blocks * p.group * of_head / max_of<i64>(tiles.k, 1)};
}

// Whether blocks that share key tiles add to them in whole numbers (`p` is without its order), and how many waves of
// them there are at most.
static bool adds_integers(const KernelRow& row, const Problem& p) {
  return (row.variant & kIntegersVariant) && row.course != Course::ORDERED && !p.deterministic;
}
constexpr i64 kMostWavesOfWhole = 4;

// How long they take if each block has `share` of one, in sixteenths of a step.
static i64 sixteenths_of_share(const KernelRow& row, const Problem& p, const Device& device, const KeyTiles& tiles,
                               const BackwardShare& share) {
  constexpr i64 kBytesOfUnit = 1 << 18, kPartsOfStep = 4;
  constexpr i32 kNarrower = 96;  // columns of narrow heads, whose blocks end the more apart
  const i64 parts = share.parts(), sms = device.num_sms, items = tiles.blocks * parts;
  const i64 beside = parts > 1 ? kStepsOfSharedTile : kStepsOfTile;
  const i64 longest = share.part_heads * ceil_div<i64>(tiles.tiles_q, share.query_parts);
  // Without a mask by waves. Under a causal one the longest come first: until the longest is done, or all are, where an
  // eighth of a long one is left at the end. Of blocks of several heads, which are long, more is left, but for two full
  // waves, where the second one's long key tiles follow short ones, and for many.
  i64 time = kUnit * ceil_div(items, sms) * (longest + beside);
  if (is_causal(p)) {
    const bool is_even = (items * 10 >= sms * 19 && items <= sms * 2) || items * 2 >= sms * 7;
    const bool has_whole_heads = share.part_heads > 1 && share.query_parts == 1;
    const i64 more = !has_whole_heads || is_even ? 0 : row.dim_qk <= kNarrower ? kUnit / 8 : kUnit / 16;
    const i64 left = (kUnit / 8 + more) * longest;
    time = max_of(kUnit * (longest + beside), kUnit * (items * beside + tiles.steps) / sms + left);
  }
  // Sums of dK and dV are set to zero before, added to, and read once more; of whole numbers blocks tell one another
  // the units, which takes the longer the more they are.
  const i64 sum_bytes = tiles.blocks * row.tile_k * i64(row.dim_qk + row.dim_v) * i64(sizeof(float));
  if (parts > 1) time += kUnit + sum_bytes / kBytesOfUnit;
  if (parts > kEitherOrder && adds_integers(row, p)) time += kUnit + kUnit / kPartsOfStep * parts;
  return time;
}

// What parts of the queries have to gain beyond what was counted: a twentieth; under a mask, where the steps of such
// blocks differ more than that, a sixteenth, or with several heads each an eighth.
static i64 least_gain(const Problem& p, const BackwardShare& share, i64 time) {
  if (share.query_parts == 1) return 0;
  return time / (!is_causal(p) ? 20 : share.part_heads == 1 ? 16 : 8);
}

// Whether a fixed order may have sums of dK and dV: for groups of less than four heads they are more than half of what
// any other workspace is, so that any order's kernels have to have them as well.
static bool may_have_sums(const KernelRow& row, const Problem& p, const Device& device) {
  constexpr i32 kManyHeads = 4;
  if (p.group >= kManyHeads) return true;
  Problem free = p;
  free.deterministic = 0;
  const KernelTable& table = kernel_table();
  for (i32 index = 0; index < table.num_rows; ++index) {
    const KernelRow& other = table.rows[index];
    const bool may_be_free = other.role == Role::BACKWARD && other.dtype == row.dtype && other.dim_qk == row.dim_qk &&
                             other.dim_v == row.dim_v && other.served == row.served && other.traits.uses_maps &&
                             other.course != Course::HEADS && !(other.variant & kIntegersVariant) &&
                             p.hint_len_k >= least_keys(other, p);
    if (!may_be_free) continue;
    const i64 key_blocks = i64(p.batch) * p.heads_k * ceil_div(p.max_len_k, other.tile_k);
    if (share_key_tiles(other, free, device, key_blocks).parts() == 1) return false;
  }
  return true;
}

BackwardShare share_key_tiles(const KernelRow& row, const Problem& p, const Device& device, i64 key_blocks,
                              i32 most_query_parts) {
  constexpr i32 kWideHeads = 129;
  const BackwardShare by_waves = share_by_waves(row, p, device, key_blocks);
  if (!can_share_keys(row, p) || p.max_len_q == 0 || key_blocks == 0) return by_waves;
  // Parts of the queries would add in any order. Of lengths that differ, or in a window, key tiles have other numbers
  // of steps.
  const bool is_even = !is_packed_q(p) && (is_causal(p) ? p.max_len_q == p.max_len_k : !is_banded(p));
  const i32 most_parts = p.deterministic || !is_even ? 1 : min_of(most_query_parts, ceil_div(p.max_len_q, row.tile_q));
  // Equal parts of a group: each adds to dK and dV. In turn they gain by more of them.
  const bool is_wide = row.dim_qk >= kWideHeads, is_in_turn = p.deterministic && !is_wide;
  const i32 in_turn = is_in_turn && may_have_sums(row, p, device) ? 1 : p.group;
  const i32 fewest_heads = is_in_turn ? in_turn : by_waves.part_heads;
  const i32 most_heads = is_wide ? by_waves.part_heads : p.group;
  // Under a mask a block's heads follow one another, and blocks of different lengths are at different ones: L2 should
  // keep all of them.
  const i64 head_bytes = p.max_len_q * bytes_of_query_row(row, p), in_l2 = device.l2_bytes / 5 * 2;
  const KeyTiles tiles = key_tiles_of(row, p, key_blocks);
  BackwardShare share = {p.group, 1, 1};
  i64 least = 0;
  for (i32 heads = most_heads; heads > 0 && heads >= fewest_heads; --heads) {
    const i32 head_parts = ceil_div(p.group, heads);
    if (head_parts * heads != p.group && heads != by_waves.part_heads) continue;
    if (is_causal(p) && heads > fewest_heads && heads * head_bytes > in_l2) continue;
    for (i32 parts = 1; parts <= most_parts; ++parts) {
      const BackwardShare other = {heads, head_parts, parts};
      if (adds_integers(row, p) && key_blocks * other.parts() > kMostWavesOfWhole * device.num_sms) continue;
      const i64 counted = sixteenths_of_share(row, p, device, tiles, other);
      const i64 time = counted + least_gain(p, other, counted);
      if (least > 0 && time >= least) continue;
      least = time;
      share = other;
    }
  }
  return share;
}

bool suits_integers(const KernelRow& row, const Problem& p, const Device& device) {
  constexpr i32 kNarrow = 64;
  if (is_packed_k(p)) return false;
  const i64 key_blocks = i64(p.batch) * p.heads_k * ceil_div(p.max_len_k, row.tile_k);
  if (row.course == Course::ORDERED) {
    // Wide heads take a tenth longer by them. In turn they do as well under a mask, where key tiles begin at their
    // diagonals, and where these are many. Blocks of a group begin together, and wait.
    constexpr i32 kWidest = 256;
    const i64 most_waves = row.dim_qk == kWidest ? kMostWavesOfWhole : 1;
    return p.group > 1 || (!is_banded(p) && key_blocks <= most_waves * device.num_sms);
  }
  if ((row.variant & kRoundVariant) && (is_banded(p) || is_packed_q(p) || (p.vectors & MICA_CACHE_LEFTPAD)))
    return false;
  const Problem free = without_order(row, p);
  const BackwardShare share = share_key_tiles(row, free, device, key_blocks);
  const BackwardShare in_turn = share_key_tiles(row, p, device, key_blocks);
  const i64 parts = share.parts();
  // They tell one another what they have, and so have to run at once.
  const i64 most_waves = row.course == Course::ONE_TILE && parts > kEitherOrder ? 1 : kMostWavesOfWhole;
  if (parts == 1 || 2 * parts > device.num_sms || key_blocks * parts > most_waves * device.num_sms) return false;
  if (!may_have_sums(row, p, device)) return false;
  // Blocks that share a key tile wait long for their turns with it, but where there are many of them, or few turns
  // of narrow heads under a mask, whose key tiles end one after the other. Other turns are as fast as the free order
  // where its shares gain little: two parts have a tenth to gain, what whole numbers cost; more wait for one another as
  // well.
  constexpr i64 kMostWavesThatWait = 5;
  constexpr i64 kFewTurns = 4, kWavesOfTurns = 2;
  const bool has_few_turns =
      in_turn.parts() <= kEitherOrder ||
      (in_turn.parts() <= kFewTurns && key_blocks * in_turn.parts() >= kWavesOfTurns * device.num_sms);
  const bool ends_in_turn = row.dim_qk <= kNarrow && is_causal(p) && has_few_turns;
  const bool turns_wait =
      in_turn.parts() > 1 && !ends_in_turn && key_blocks * in_turn.parts() <= kMostWavesThatWait * device.num_sms;
  const KeyTiles tiles = key_tiles_of(row, p, key_blocks);
  const i64 tenths = parts > kEitherOrder ? 12 : 11;
  return turns_wait || tenths * sixteenths_of_share(row, free, device, tiles, share) <=
                           10 * sixteenths_of_share(row, p, device, tiles, in_turn);
}

BackwardShare share_heads(const KernelRow& row, const Problem& p, const Device& device) {
  constexpr i32 kMostParts = 32;
  BackwardShare share = {p.group, 1, 1};
  // Parts of the queries would add in any order.
  if (!can_share_keys(row, p) || p.deterministic) return share;
  const i32 most = i32(min_of<i64>(kMostParts, mean_tiles(row, p).q));
  for (i32 parts = 2; parts <= most; ++parts)
    if (half_steps_of_heads(row, p, device, parts) < half_steps_of_heads(row, p, device, share.query_parts))
      share.query_parts = parts;
  return share;
}

// Until when key tiles take in a fixed order, in steps, if those of `side_by_side` heads are numbered together, all
// first ones before the second ones: each of a head begins a step or more after the one before it. SMs become free in
// the order in which key tiles begin. 0: they are too many to count. There are SMs for a key tile of each head.
static i64 steps_in_chains(i64 heads, i64 tiles_k, i64 parts, i64 steps_of_tile, i64 sms, i64 side_by_side) {
  constexpr i64 kMostLevels = 256;  // of one key tile of all heads that are side by side
  const i64 sections = ceil_div(heads, side_by_side), full = side_by_side * parts;
  const i64 last = (heads - (sections - 1) * side_by_side) * parts;
  if (sections * tiles_k > kMostLevels) return 0;
  const auto blocks_of = [&](i64 level) { return level / tiles_k + 1 == sections ? last : full; };
  i64 ends[kMostLevels] = {}, blocks = 0, begin = 0;
  i64 ended = 0, ended_blocks = 0;  // levels whose SMs others need
  for (i64 level = 0; level < sections * tiles_k; ++level) {
    blocks += blocks_of(level);
    while (blocks - ended_blocks > sms) ended_blocks += blocks_of(ended++);
    const i64 after_last = level % tiles_k > 0 ? begin + 1 : 0;
    begin = max_of(after_last, ended > 0 ? ends[ended - 1] : 0);
    ends[level] = begin + steps_of_tile;
  }
  return ends[sections * tiles_k - 1];
}

// Wide heads side by side in a fixed order: as many as SMs have room for, `in_room`. More of them shorten the chains,
// most of all where a section of few heads comes last; long calls run a sixteenth slower with them.
static i32 wide_section_heads(const KernelRow& row, const Problem& p, const Device& device, i32 parts, i32 in_room) {
  const i64 heads = i64(p.batch) * p.heads_k, tiles_k = ceil_div(p.hint_len_k, row.tile_k);
  const i64 steps = i64(ceil_div(p.group, parts)) * ceil_div(p.hint_len_q, row.tile_q) + kStepsOfTile;
  const i64 bytes = max_of<i64>(parts * i64(p.hint_len_q) * bytes_of_query_row(row, p), 1);
  const auto time_of = [&](i64 side_by_side) {
    return steps_in_chains(heads, tiles_k, parts, steps, device.num_sms, side_by_side);
  };
  i64 best = in_room, least = heads > in_room && in_room * parts <= device.num_sms ? time_of(in_room) : 0;
  // Fewer sections than there would be have no more levels, so that all of them can be counted.
  for (i64 sections = 1; least > 0 && ceil_div(heads, sections) > in_room; ++sections) {
    const i64 side_by_side = ceil_div(heads, sections);
    if (side_by_side * parts > device.num_sms || side_by_side * bytes > device.l2_bytes / 5 * 4) continue;
    const i64 time = time_of(side_by_side), slower = time + time / 16;
    if (slower >= least) continue;
    least = slower;
    best = side_by_side;
  }
  return i32(best);
}

i32 section_heads(const KernelRow& row, const Problem& p, const Device& device, i32 parts) {
  // In a fixed order, blocks that follow one another in a sequence should not begin together. Under a causal mask they
  // work at different query tiles anyway.
  constexpr i32 kWideHeads = 129;
  if (!p.deterministic || p.window_right < kUnlimited || p.max_len_k == 0) return 1;
  if (takes_parts_apart(row, p)) parts = 1;
  const i32 in_room = ceil_div(device.num_sms, ceil_div(max_of(p.hint_len_k, 1), row.tile_k));
  if (row.dim_qk >= kWideHeads)
    return row.course == Course::ORDERED && !is_packed_k(p) ? wide_section_heads(row, p, device, parts, in_room)
                                                            : in_room;
  // The fewer blocks of a head begin together, the sooner the last of them has its turn. As many heads as half of L2
  // keeps, one of the group in each part; or all of them, where they fit.
  const i64 heads = i64(p.batch) * p.heads_k;
  const i64 bytes = max_of<i64>(parts * i64(p.hint_len_q) * bytes_of_query_row(row, p), 1);
  if (heads * bytes <= device.l2_bytes / 5 * 4) return i32(heads);
  const i64 most = max_of<i64>(in_room, device.l2_bytes / 2 / bytes);
  // Of one size: few heads that come last would be a chain of their own.
  return i32(is_packed_k(p) ? most : max_of<i64>(in_room, ceil_div(heads, ceil_div(heads, most))));
}

i32 round_tiles(const KernelRow& row, const Problem& p, const Device& device) {
  const bool goes_round = row.course == Course::DRAWN && row.variant == kRoundVariant;
  const bool is_dense = !is_packed_q(p) && !is_packed_k(p) && !(p.vectors & MICA_CACHE_LEFTPAD);
  if (!goes_round || !p.deterministic || p.batch_invariant || !p.dq.dtype || is_banded(p) || !is_dense) return 0;
  const i64 heads = i64(p.batch) * p.heads_k, sms = device.num_sms;
  const i64 tiles_q = ceil_div(p.max_len_q, row.tile_q), tiles_k = ceil_div(p.max_len_k, row.tile_k);
  if (heads * tiles_q * tiles_k == 0) return 0;
  const BackwardShare share = share_key_tiles(row, p, device, heads * tiles_k);
  // Blocks that share a key tile wait for their turns with its sums, and for the last steps of those that go round.
  if (share.parts() > 1) return 0;
  const i64 steps = share.part_heads * tiles_q, of_tile = kUnit * (steps + kStepsOfTile);
  // In a chain the key tiles of a head that begin together have their first turns a step and a quarter apart.
  const i64 side_by_side = min_of<i64>(section_heads(row, p, device, 1), heads);
  const i64 chain = min_of(tiles_k, ceil_div(sms, side_by_side));
  i64 least = ceil_div(heads * tiles_k, sms) * of_tile + (chain - 1) * (kUnit * 5 / 4);
  least -= least / 32;  // a launch whose blocks all run at once costs some
  i64 best = 0;
  // Rounds of equal size, one of a head after the other, each of which begins when there is an SM for all of it.
  for (i64 rounds = 1, count = 0; rounds <= tiles_k; ++rounds) {
    if (ceil_div(tiles_k, rounds) == count) continue;
    count = ceil_div(tiles_k, rounds);
    if (count > sms) continue;
    const i64 waves = max_of(ceil_div(heads * rounds, sms / count), rounds * ceil_div(heads, side_by_side));
    // Key tiles that begin less than two steps apart wait for one another in every step.
    const i64 time = waves * of_tile, slower_by = steps < 2 * count ? time / 6 : 0;
    if (time + slower_by > least) continue;
    least = time + slower_by;
    best = count;
  }
  return i32(best);
}

i32 last_heads(const KernelRow& row, const Problem& p, const Device& device, const BackwardShare& share) {
  // A head after the other keeps Q, dO and dQ in L2; only the last waves decide when the last block ends. As many heads
  // as fit L2, one of the group in each part.
  if (p.window_right == kUnlimited || is_packed_k(p) || p.max_len_k == 0) return 0;
  // In a fixed order the last heads have another one: from the first key tile on, each of which waits for the one
  // before it. In a window, where the first is no longer than the others, that is nothing but a chain. Kernels without
  // such an order, which are asked for one where dQ is not wanted, know of no other.
  const bool has_other = row.traits.uses_maps && row.traits.fixed_order && !p.batch_invariant;
  if (p.deterministic && (!has_other || p.window_left < kUnlimited)) return 0;
  i32 parts = share.parts(), head_parts = share.head_parts;
  // There, too, the long key tiles of the second half of the heads should follow short ones of the first.
  const bool has_halves = p.deterministic && !(takes_parts_apart(row, p) && parts > 1);
  const i64 heads = i64(p.batch) * p.heads_k, most = has_halves ? heads / 2 : heads;
  // Two waves of long and short key tiles take an SM no longer than the longest of them does: too little to make up
  // for blocks before them that end late. But blocks that take several heads are at different ones of them, and with
  // many or wide ones more waves do not stay in L2 (40:8 heads of 128 took a third longer).
  constexpr i32 kNarrow = 64, kFewHeads = 4;
  const bool is_light = row.dim_qk <= kNarrow && share.part_heads <= kFewHeads;
  if (takes_parts_apart(row, p)) parts = head_parts = 1;
  const i64 waves = p.deterministic ? 1 : is_light ? 4 : 2;
  const i64 in_use = p.deterministic ? device.l2_bytes / 2 : device.l2_bytes / 5 * 4;
  const i64 tiles_k = ceil_div(max_of(p.hint_len_k, 1), row.tile_k);
  const i64 in_waves = ceil_div<i64>(waves * device.num_sms, tiles_k * parts);
  const i64 in_l2 = in_use / max_of<i64>(head_parts * p.max_len_q * bytes_of_query_row(row, p), 1);
  return i32(min_of<i64>(most, min_of(in_waves, in_l2)));
}

i32 packed_tail(const KernelRow& row, const Problem& p, const Device& device) {
  constexpr i32 kWaves = 4, kEverything = 1 << 30;
  const bool is_single = row.course == Course::DRAWN || row.course == Course::ONE_TILE;
  if (!is_packed_k(p) || p.batch < 2 || p.batch > kMostOrderedSequences) return -1;
  if (row.course == Course::HEADS) return mean_tiles(row, p).k == most_tiles(row, p).k ? -1 : 0;
  if (!row.traits.uses_maps || !row.traits.shares_groups || !is_single || row.dim_qk > 128) return -1;
  // In a fixed order a sequence's heads are side by side where its blocks would begin at the same queries; key tiles
  // that are added from the last on are not taken from the longest on.
  if (p.deterministic) return p.window_right < kUnlimited ? 0 : kEverything;
  return p.window_right < kUnlimited ? kWaves * device.num_sms : 0;
}

i32 clears_ahead(const KernelRow& row, const Problem& p, const Device& device, const BackwardParams& params,
                 i32 parts) {
  // Blocks that draw key tiles have no warp to spare: the code for it makes consumers of 64 columns spill.
  if (!p.dq.dtype || !row.traits.uses_maps || row.course == Course::DRAWN || !has_items_of_heads(row, p)) return 0;
  // The blocks that clear a head come a wave before those that take it, and before those that take it out of order.
  const i64 head_items = i64(params.tiles_k) * parts;
  const i64 heads =
      max_of<i64>(1 + ceil_div<i64>(device.num_sms, head_items), max_of(params.last_heads, params.section_heads));
  // The preparation clears whole sequences, whose accumulators lie in one piece.
  const i64 ahead = round_up<i64>(heads, p.heads_k);
  return ahead < i64(p.batch) * p.heads_k ? i32(ahead) : 0;
}

bool counts_heads(const KernelRow& row, const Problem& p) {
  return p.dq.dtype && row.traits.uses_maps && has_items_of_heads(row, p);
}

bool stores_dq_first(const KernelRow& row, const Problem& p) {
  // Blocks that begin at the same queries wait for the first of them: with narrow rows that costs more than the zeros,
  // unless they go round.
  // In a fixed order they wait for it anyway.
  constexpr i32 kNarrow = 96;
  if (!p.dq.dtype || !row.traits.uses_maps || row.dim_qk > 128) return false;
  if (p.deterministic) return row.course == Course::DRAWN || row.course == Course::ONE_TILE;
  return row.course == Course::DRAWN && (is_banded(p) || row.dim_qk > kNarrow || (row.variant & kRoundVariant));
}

// How long single key tiles take, in half steps.
static i64 half_steps_of_key_tiles(const KernelRow& row, const Problem& p, const Device& device) {
  const TileCounts tiles = mean_tiles(row, p);
  const i64 key_blocks = i64(p.batch) * p.heads_k * tiles.k;
  const BackwardShare share = share_by_waves(row, p, device, key_blocks);
  return ceil_div<i64>(key_blocks * share.head_parts, device.num_sms) *
         (half_steps(p, share.part_heads, tiles.q) + kHalfStepsOfSingleTile +
          (share.head_parts > 1 ? kHalfStepsOfSharing : 0));
}

const char* why_not_whole_heads(const KernelRow& row, const Problem& p, const Device& device) {
  constexpr i32 kMostKeys = 1024, kNarrowest = 64, kStepOfDims = 32;
  if (p.max_len_k == 0) return "there are no keys";
  if (p.batch_invariant) return "the batch decides whether it is faster, and bits must not go by it";
  // The row that fits the heads has said why not.
  if (row.dim_qk > kNarrowest && max_of(p.dim_qk, p.dim_v) <= row.dim_qk - kStepOfDims) return "the heads are narrower";
  if (p.hint_len_k > kMostKeys) return "there are too many keys for it";
  if (p.dq.dtype && (p.dq.dtype != p.dtype || !rows_are_aligned(p.dq)))
    return "it writes dQ in q's type, 16 bytes at a time";
  const TileCounts most = most_tiles(row, p);
  const i32 query_parts = share_heads(row, p, device).query_parts;
  i64 by_tiles = half_steps_of_key_tiles(row, p, device);
  i64 by_heads = half_steps_of_heads(row, p, device, query_parts);
  // Of packed sequences the longest ends when others have nothing left to do.
  if (is_packed_k(p)) {
    const i64 longest = half_steps(p, p.group, most.q);
    by_tiles += (longest + kHalfStepsOfSingleTile) / 2;
    by_heads += (longest + kHalfStepsOfHeadTile) * most.k / 2;
  }
  // Each key tile reads Q and dO of its head again, and adds to its dQ. Single key tiles of one head run side by side;
  // of whole heads as many are under way as SMs have parts of: what crosses L2's halves is slower by an eighth, what
  // does not stay in L2 by a quarter.
  const i64 heads = i64(p.batch) * p.heads_k, len_q = is_packed_q(p) ? p.hint_len_q : p.max_len_q;
  const auto slower_by = [&](i64 time, i64 blocks_of_head) {
    const i64 heads_at_once = ceil_div<i64>(min_of<i64>(device.num_sms, heads * blocks_of_head), blocks_of_head);
    const i64 bytes = most.k > 1 ? heads_at_once * p.group * len_q * bytes_of_query_row(row, p) : 0;
    return bytes > device.l2_bytes / 5 * 4 ? time / 4 : bytes > device.l2_bytes / 2 ? time / 8 : 0;
  };
  by_heads += slower_by(by_heads, query_parts);
  by_tiles += slower_by(by_tiles, most.k);
  // Without a mask key tiles of narrow heads take a fifteenth longer in long calls than was counted.
  const bool is_longer = row.dim_qk <= kNarrowest && !is_banded(p) && !is_packed_k(p);
  const bool is_faster = by_heads < by_tiles || (is_longer && 15 * (by_heads + 12) < 16 * by_tiles);
  return is_faster ? "" : "there are too few heads for its blocks";
}

}  // namespace mica
