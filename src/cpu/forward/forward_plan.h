// SPDX-License-Identifier: Apache-2.0
// Forward's schedule: tiles of query rows, and the split of a short sequence's keys.
//
// A tile is tile_q queries of tile_heads heads that share keys: row r is query r / tile_heads of head r % tile_heads,
// so that a group with few queries still fills a matrix product. How a row is computed depends on its own sequence
// alone, never on the batch or on the number of threads.
#pragma once

#include "core/schedule.h"
#include "cpu/engine/engine.h"
#include "cpu/isa/isa.h"

namespace MICA_NS {

using mica::CpuCall;
using mica::CpuPlan;
using mica::Problem;
using mica::Region;
using mica::Tensor;

// Rows that go through product, softmax and product together while they are hot: scores that fit the first-level cache,
// and whole blocks of the engine, so that a product writes no row of the next strip.
template <class E>
constexpr i32 kStripRows = 32 / E::kRows* E::kRows;
// Rows of a tile, at most: the more rows share packed keys, the less packing costs beside the product.
constexpr i32 kTileRows = 512;
constexpr i32 kTileKeys = 256;      // what a row costs beside its keys counts once in a tile
constexpr i32 kShortRows = 64;      // a sequence of up to so many rows for each key head has its keys split
constexpr i32 kDecodeRows = 16;     // of decode, at most
constexpr i32 kMinSplitKeys = 256;  // of a split that was not asked for
constexpr i32 kMaxSplits = 64;
constexpr i32 kMostSplits = 256;  // that may be asked for (validate.cc)

HWY_API i32 head_chunks(const Problem& p, const CpuPlan& plan) { return ceil_div(p.group, plan.tile_heads); }

// Query tiles, over all sequences.
HWY_API i64 num_query_tiles(const Problem& p, i32 tile_q) {
  if (p.vectors & MICA_CU_SEQLENS_Q) return packed_tile_count(p.total_q, p.batch, tile_q);
  return i64(p.batch) * ceil_div(p.max_len_q, tile_q);
}

struct ForwardTile {
  i32 b;
  i32 head_begin;
  i32 heads;           // tile_heads, or what is left of the group
  i32 q_begin, q_end;  // rows of the sequence's slot; empty for some tiles of packed sequences
};

// The last tiles first: with a causal mask they are the heaviest.
HWY_API ForwardTile forward_tile(const CpuCall& call, i64 index) {
  const Problem& p = *call.problem;
  const CpuPlan& plan = *call.plan;
  const i32 chunks = head_chunks(p, plan);
  const i64 head_blocks = i64(p.heads_k) * chunks;
  const i64 t = num_query_tiles(p, plan.tile_q) - 1 - index / head_blocks;
  const i32 block = i32(index % head_blocks);
  const i32 in_group = block % chunks * plan.tile_heads;
  const QueryTile q = p.vectors & MICA_CU_SEQLENS_Q
                          ? find_packed_tile(call.sequences->cu_seqlens_q, p.batch, p.total_q, plan.tile_q, i32(t))
                          : QueryTile{i32(t % p.batch), i32(t / p.batch)};
  ForwardTile tile;
  tile.b = q.batch;
  tile.head_begin = block / chunks * p.group + in_group;
  tile.heads = min_of(plan.tile_heads, p.group - in_group);
  tile.q_begin = q.tile * plan.tile_q;
  tile.q_end = min_of(tile.q_begin + plan.tile_q, sequence_of(*call.sequences, q.batch).slot_len_q);
  return tile;
}

// How the key tiles [0, num_tiles) that a query tile touches are split.
HWY_API Splits splits_of(const Problem& p, const CpuPlan& plan, const Sequence& s, i32 num_tiles) {
  if (p.probs.dtype != MICA_NONE) return Splits{1, 0};
  if (p.num_splits > 0) return Splits{p.num_splits, 0};
  if (s.len_q > plan.short_q) return Splits{1, 0};
  const i32 length = max_of(kMinSplitKeys / plan.tile_k, ceil_div(num_tiles, kMaxSplits));
  return Splits{max_of(ceil_div(num_tiles, length), 1), length};
}

// Where the partial result of a row lies: accumulator (dim_v floats, padded), then maximum and sum.
struct Partial {
  float* accumulator;
  float* state;
};

HWY_API i64 partial_floats(const Problem& p) { return round_up(p.dim_v, 16) + 16; }

HWY_API Partial partial_at(const CpuCall& call, const Sequence& s, i32 b, i32 head, i32 i, i32 split) {
  const Problem& p = *call.problem;
  const i64 row = p.num_splits > 0 ? (s.q_slot * i64(p.max_len_q) + s.q_begin + i) : i64(b) * call.plan->short_q + i;
  float* base = reinterpret_cast<float*>(call.workspace + call.plan->partial.offset);
  base += ((row * p.heads_q + head) * call.num_splits + split) * partial_floats(p);
  return Partial{base, base + round_up(p.dim_v, 16)};
}

HWY_API i32 max_splits(const Problem& p, const CpuPlan& plan) {
  if (p.probs.dtype != MICA_NONE) return 1;
  if (p.num_splits > 0) return p.num_splits;
  const bool lengths_vary = p.vectors & (MICA_CU_SEQLENS_Q | MICA_SEQUSED_Q);
  if (!lengths_vary && p.max_len_q > plan.short_q) return 1;
  return clamp_to(ceil_div(p.max_len_k, kMinSplitKeys), 1, kMaxSplits);
}

// How many splits of a tile a task does one after the other, so that it reads memory in order: as many as leave the
// threads equally busy. A task costs an eighth of a split more. What a split computes does not depend on it.
HWY_INLINE i32 split_run(i64 tiles, i32 num_splits, i32 threads) {
  i32 best_run = 1;
  i64 best_time = 0;
  for (i32 run = num_splits; run >= 1; --run) {
    const i64 time = ceil_div<i64>(tiles * ceil_div(num_splits, run), threads) * (8 * run + 1);
    if (best_time == 0 || time < best_time) {
      best_time = time;
      best_run = run;
    }
  }
  return best_run;
}

// Whether one thread is done about as soon as many that must be called together, which takes 4 microseconds of 16.
HWY_API bool is_small(const Problem& p, i64 tasks) {
  constexpr double kTaskNs = 1500, kProductsPerNs = 40, kSmallNs = 8'000;
  const double pairs = double(p.max_len_k) * double(p.total_q) * p.heads_q;
  return double(tasks) * kTaskNs + pairs * (p.dim_qk + p.dim_v) / kProductsPerNs < kSmallNs;
}

// Rows of a tile: those with which the threads would be done first. A tile takes as long as its rows, and as kPackRows
// more for packing its keys. Tiles of a causal problem differ, and the heavy ones come first, so that threads end at
// about the same time; without it they end in rounds.
HWY_INLINE i32 tile_rows(const Problem& p, const CpuPlan& plan, i32 splits_of_all) {
  constexpr i64 kPackRows = 48, kLeastRows = 32;
  const bool is_even = p.window_right >= MICA_MAX_SEQLEN && !(p.vectors & (MICA_CU_SEQLENS_Q | MICA_SEQUSED_Q));
  const i64 all_rows = max_of<i64>(i64(p.max_len_q) * p.group, 1), threads = plan.threads.count;
  i32 best_rows = kLeastRows;
  i64 best_time = 0;
  for (i64 parts = ceil_div<i64>(all_rows, kTileRows);; parts += max_of<i64>(parts / 8, 1)) {
    const i32 rows = i32(max_of<i64>(round_up<i64>(ceil_div(all_rows, parts), 16), kLeastRows));
    const i32 heads = min_of(p.group, rows), tile_q = max_of(1, rows / heads);
    const i64 tasks = num_query_tiles(p, tile_q) * p.heads_k * ceil_div(p.group, heads) * splits_of_all;
    // In 16ths of a row, so that half a round counts.
    const i64 rounds = is_even ? 16 * ceil_div(tasks, threads) : 16 * tasks / threads + 8;
    const i64 time = rounds * (min_of<i64>(rows, all_rows) + kPackRows);
    if (best_time == 0 || time < best_time) {
      best_time = time;
      best_rows = rows;
    }
    if (rows <= kLeastRows) break;
  }
  return best_rows;
}

}  // namespace MICA_NS
