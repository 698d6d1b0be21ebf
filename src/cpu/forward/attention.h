// SPDX-License-Identifier: Apache-2.0
// Forward, whole: append, then every tile (by matrix products, or by streaming where rows are few), then the merge of
// split keys.
#pragma once

#include "cpu/forward/decode.h"
#include "cpu/forward/forward.h"

namespace MICA_NS {

template <class E>
i64 forward_scratch_bytes(const Problem& p, const CpuPlan& plan) {
  return max_of(ForwardScratch<E>(p, plan, nullptr).bytes, round_up<i64>(DecodeScratch(p, nullptr).bytes, kLineBytes));
}

HWY_API i64 num_tiles(const Problem& p, const CpuPlan& plan) {
  return num_query_tiles(p, plan.tile_q) * p.heads_k * head_chunks(p, plan);
}

HWY_API i64 num_tasks(const Problem& p, const CpuPlan& plan, i32 num_splits) {
  return num_tiles(p, plan) * ceil_div(num_splits, plan.split_run);
}

template <class E>
void plan_forward(const Problem& p, CpuPlan& plan, i32& num_splits) {
  plan.tile_k = kTileKeys;
  plan.short_q = min_of(max_of(1, kShortRows / p.group), max_of(p.max_len_q, 1));
  num_splits = max_splits(p, plan);
  const i32 rows = tile_rows(p, plan, p.max_len_q <= plan.short_q ? num_splits : 1);
  plan.tile_heads = min_of(p.group, rows);
  plan.tile_q = max_of(1, rows / plan.tile_heads);
  if (is_small(p, num_tiles(p, plan) * num_splits)) plan.threads.count = 1;
  plan.split_run = split_run(num_tiles(p, plan), num_splits, plan.threads.count);
  plan.scratch_bytes = forward_scratch_bytes<E>(p, plan);
  plan.scratch = Region{0, plan.scratch_bytes * plan.threads.count};
  const i64 partial_rows = p.num_splits > 0 ? p.total_q : i64(p.batch) * plan.short_q;
  plan.partial = Region{plan.scratch.bytes, 0};
  if (num_splits > 1)
    plan.partial.bytes = partial_rows * p.heads_q * num_splits * partial_floats(p) * i64(sizeof(float));
  plan.counters = Region{round_up<i64>(plan.partial.offset + plan.partial.bytes, kLineBytes), 0};
  if (num_splits > 1) plan.counters.bytes = num_tiles(p, plan) * kLineBytes;
  plan.workspace_bytes = plan.counters.offset + plan.counters.bytes;
}

// Key tiles that a query tile touches, [begin, end).
HWY_API Range touched_tiles(const CpuCall& call, const Sequence& s, const ForwardTile& tile) {
  const i32 q_end = min_of(tile.q_end, s.len_q);
  if (tile.q_begin >= q_end) return Range{0, 0};
  const TileRange t = key_tiles(band_of(*call.problem, s.len_q, s.len_k), tile.q_begin, q_end, call.plan->tile_k);
  return Range{t.begin, t.end};
}

// Writes what one split found: the end of each row, or a partial result.
template <class Worker>
void write_rows(const CpuCall& call, const ForwardTile& tile, const Sequence& s, const Worker& worker, bool is_partial,
                i32 split) {
  const i32 rows = (min_of(tile.q_end, s.len_q) - tile.q_begin) * tile.heads;
  for (i32 r = 0; r < rows; ++r) {
    const RowPlace at = {tile.b, tile.head_begin + r % tile.heads, tile.q_begin + r / tile.heads};
    if (!is_partial) {
      finish_row(call, s, at, worker.state(r), worker.accumulator(r));
      continue;
    }
    const Partial to = partial_at(call, s, at.b, at.head, at.i, split);
    __builtin_memcpy(to.accumulator, worker.accumulator(r), sizeof(float) * size_t(call.problem->dim_v));
    to.state[0] = worker.state(r).max;
    to.state[1] = worker.state(r).sum;
  }
}

HWY_API void write_empty_rows(const CpuCall& call, const ForwardTile& tile, const Sequence& s, i32 q_begin) {
  for (i32 i = q_begin; i < tile.q_end; ++i)
    for (i32 h = tile.head_begin; h < tile.head_begin + tile.heads; ++h)
      finish_row(call, s, RowPlace{tile.b, h, i}, empty_state<ScalarMath>(), nullptr);
}

template <class E>
void attend_tile(const CpuCall& call, const ForwardTile& tile, i32 split, char* scratch) {
  const Problem& p = *call.problem;
  const CpuPlan& plan = *call.plan;
  const Sequence s = sequence_of(*call.sequences, tile.b);
  const Range touched = touched_tiles(call, s, tile);
  const bool is_empty = touched.begin >= touched.end;
  if (split == 0) write_empty_rows(call, tile, s, is_empty ? tile.q_begin : max_of(s.len_q, tile.q_begin));
  if (is_empty) return;
  const Splits splits = splits_of(p, plan, s, touched.end - touched.begin);
  if (split >= splits.num_splits) return;
  const Range part = split_tiles(splits, touched.end - touched.begin, split);
  const Range tiles = {touched.begin + part.begin, touched.begin + part.end};
  const Range keys = {tiles.begin * plan.tile_k, min_of(tiles.end * plan.tile_k, s.len_k)};
  const bool is_partial = splits.num_splits > 1;
  if (i64(s.len_q) * p.group <= E::kStreamedRows) {
    DecodeWorker worker(call, tile, s, scratch);
    worker.run(keys);
    write_rows(call, tile, s, worker, is_partial, split);
  } else {
    ForwardWorker<E> worker(call, tile, s, scratch);
    worker.run(tiles);
    write_rows(call, tile, s, worker, is_partial, split);
  }
}

// Joins the splits of one row.
inline void combine_row(const CpuCall& call, const Sequence& s, const RowPlace& at, i32 num_splits) {
  const i32 dim = call.problem->dim_v;
  const i32 padded = round_up(num_splits, kLanes);
  float max[kMostSplits], factor[kMostSplits];
  float whole_max = -infinity(), sum = 0;
  for (i32 split = 0; split < padded; ++split) {
    max[split] = split < num_splits ? partial_at(call, s, at.b, at.head, at.i, split).state[0] : -infinity();
    whole_max = max_of(whole_max, max[split]);
    factor[split] = split < num_splits ? partial_at(call, s, at.b, at.head, at.i, split).state[1] : 0;  // sums so far
  }
  for (i32 split = 0; split < padded; split += kLanes) {
    SoftmaxState<VectorMath> parts = {load(max + split), load(factor + split)};
    store(absorb<VectorMath>(parts, set(whole_max)), factor + split);
    sum += reduce_sum(parts.sum);
  }
  float row[kMaxDim];
  for (i32 c = 0; c < dim; c += kLanes) {
    Vector joined = set(0);
    for (i32 split = 0; split < num_splits; ++split)
      joined =
          hn::MulAdd(load(partial_at(call, s, at.b, at.head, at.i, split).accumulator + c), set(factor[split]), joined);
    store(joined, row + c);
  }
  finish_row(call, s, at, SoftmaxState<ScalarMath>{whole_max, sum}, row);
}

// Joins the splits of the rows of a tile.
inline void combine_tile(const CpuCall& call, const ForwardTile& tile) {
  const Problem& p = *call.problem;
  const Sequence s = sequence_of(*call.sequences, tile.b);
  const Range touched = touched_tiles(call, s, tile);
  if (touched.begin >= touched.end) return;
  const i32 num_splits = splits_of(p, *call.plan, s, touched.end - touched.begin).num_splits;
  if (num_splits <= 1) return;
  const i32 q_end = min_of(tile.q_end, s.len_q);
  // Other cores wrote most of it: all of it is called in at once.
  const i64 row_bytes = num_splits * partial_floats(p) * i64(sizeof(float));
  for (i32 i = tile.q_begin; i < q_end; ++i)
    for (i32 h = tile.head_begin; h < tile.head_begin + tile.heads; ++h) {
      const char* first = reinterpret_cast<const char*>(partial_at(call, s, tile.b, h, i, 0).accumulator);
      for (i64 byte = 0; byte < row_bytes; byte += kLineBytes) __builtin_prefetch(first + byte);
    }
  for (i32 i = tile.q_begin; i < q_end; ++i)
    for (i32 h = tile.head_begin; h < tile.head_begin + tile.heads; ++h)
      combine_row(call, s, RowPlace{tile.b, h, i}, num_splits);
}

template <class E>
void execute_forward(const CpuCall& call) {
  append_new_rows(call);
  if (call.problem->probs.dtype != MICA_NONE) clear_probs(call);
  if (call.num_splits > 1)
    __builtin_memset(call.workspace + call.plan->counters.offset, 0, size_t(call.plan->counters.bytes));
  // All heads of a range of keys together: where heads are interleaved, they share pages and lines of memory.
  mica::parallel_for(
      call.plan->threads, num_tasks(*call.problem, *call.plan, call.num_splits),
      [](void* context, i64 index, i32 thread) {
        const CpuCall& c = *static_cast<const CpuCall*>(context);
        const i64 tiles = num_tiles(*c.problem, *c.plan);
        const ForwardTile tile = forward_tile(c, index % tiles);
        if (tile.q_begin >= tile.q_end) return;
        const i32 begin = i32(index / tiles) * c.plan->split_run;
        const i32 end = min_of(begin + c.plan->split_run, c.num_splits);
        for (i32 split = begin; split < end; ++split)
          attend_tile<E>(c, tile, split, c.workspace + c.plan->scratch.offset + thread * c.plan->scratch_bytes);
        // Who ends the last split of a tile merges them all, in their order.
        if (c.num_splits <= 1) return;
        i32* done = reinterpret_cast<i32*>(c.workspace + c.plan->counters.offset + index % tiles * kLineBytes);
        if (__atomic_add_fetch(done, end - begin, __ATOMIC_ACQ_REL) == c.num_splits) combine_tile(c, tile);
      },
      const_cast<CpuCall*>(&call));
}

}  // namespace MICA_NS
