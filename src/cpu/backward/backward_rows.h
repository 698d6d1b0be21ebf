// SPDX-License-Identifier: Apache-2.0
// The parts of backward that go row by row: delta and the gradient of the sinks before the tiles, dQ after them.
#pragma once

#include <string.h>

#include "cpu/backward/backward_plan.h"
#include "cpu/score_row.h"
#include "cpu/threads/threads.h"

namespace MICA_NS {

// Rows [begin, end) of one of BackwardPlan::kRowParts parts of a sequence of that many rows.
HWY_INLINE Range row_part(i32 rows, i32 part) {
  constexpr i32 kLeastRows = 16;  // fewer cost less than to begin a part
  const i32 length = max_of(ceil_div(rows, BackwardPlan::kRowParts), kLeastRows);
  return Range{min_of(part * length, rows), min_of((part + 1) * length, rows)};
}

// A task of the row passes.
struct RowTask {
  i32 b, head, part;
};
HWY_INLINE RowTask row_task(const Problem& p, i64 index) {
  const i32 parts = BackwardPlan::kRowParts;
  return RowTask{i32(index / parts / p.heads_q), i32(index / parts % p.heads_q), i32(index % parts)};
}
// The first task of the query heads of one key head of a sequence, which has group * kRowParts of them.
HWY_INLINE i64 first_row_task(const Problem& p, i64 b, i32 head_k) {
  return (b * p.heads_q + head_k * p.group) * BackwardPlan::kRowParts;
}
HWY_INLINE i64 num_row_tasks(const Problem& p) { return i64(p.batch) * p.heads_q * BackwardPlan::kRowParts; }

// Row i of a head of a tensor with q's axes.
HWY_INLINE const char* query_row(const void* base, const Tensor& t, const Sequence& s, i32 head, i32 i) {
  const i64 offset = query_row_offset(s, i, t.stride[0], t.stride[1]) + head * t.stride[2];
  return static_cast<const char*>(base) + offset * dtype_bytes(t.dtype);
}
HWY_INLINE float lse_at(const float* base, const Tensor& t, const Sequence& s, i32 head, i32 i) {
  return base[s.q_slot * t.stride[0] + head * t.stride[1] + (s.q_begin + i) * t.stride[2]];
}

// dO . O
HWY_INLINE float dot_rows(const void* a, i32 dtype_a, const void* b, i32 dtype_b, i32 count) {
  if (dtype_a == MICA_FP32 && dtype_b == MICA_FP32) {
    const float *x = static_cast<const float*>(a), *y = static_cast<const float*>(b);
    Vector sum = set(0);
    i32 c = 0;
    for (; c + kLanes <= count; c += kLanes) sum = hn::MulAdd(load(x + c), load(y + c), sum);
    if (c < count)
      sum = hn::MulAdd(load_some<MICA_FP32>(x + c, count - c), load_some<MICA_FP32>(y + c, count - c), sum);
    return reduce_sum(sum);
  }
  float x[kMaxDim + kLanes], y[kMaxDim + kLanes];
  load_row(x, a, dtype_a, count);
  load_row(y, b, dtype_b, count);
  for (i32 c = count; c < round_up(count, kLanes); ++c) x[c] = y[c] = 0;
  Vector sum = set(0);
  for (i32 c = 0; c < count; c += kLanes) sum = hn::MulAdd(load(x + c), load(y + c), sum);
  return reduce_sum(sum);
}

// delta = dO . O - dLSE, and what is to be subtracted from the scores of each row. The share of the sink's gradient
// is kept apart for each part, to be summed in order.
inline void prepare_rows(const CpuCall& call, i64 index) {
  const Problem& p = *call.problem;
  const BackwardPlan& plan = call.plan->backward;
  const RowTask task = row_task(p, index);
  const Sequence s = sequence_of(*call.sequences, task.b);
  const Range rows = row_part(s.len_q, task.part);
  const i64 first = task.head * plan.rows + padded_row_begin(p, s, task.b, plan.tile_q);
  float* delta = reinterpret_cast<float*>(call.workspace + plan.delta.offset) + first;
  float* reference = reinterpret_cast<float*>(call.workspace + plan.reference.offset) + first;
  const bool has_sinks = p.d_sinks.dtype != MICA_NONE;
  const float sink = has_sinks ? load_as_float(call.x->sinks, task.head * p.sinks.stride[0], p.sinks.dtype) : 0;
  float d_sink = 0;
  for (i32 i = rows.begin; i < rows.end; ++i) {
    const float lse = lse_at(call.x->lse, p.lse, s, task.head, i);
    reference[i] = backward_reference<ScalarMath>(lse);
    delta[i] = 0;
    if (reference[i] == infinity()) continue;
    delta[i] = dot_rows(query_row(call.x->d_o, p.d_o, s, task.head, i), p.d_o.dtype,
                        query_row(call.x->o, p.o, s, task.head, i), p.o.dtype, p.dim_v);
    if (p.d_lse.dtype != MICA_NONE) delta[i] -= lse_at(call.x->d_lse, p.d_lse, s, task.head, i);
    if (has_sinks) d_sink -= ScalarMath::exp2((sink - lse) * kLog2E) * delta[i];
  }
  if (has_sinks) reinterpret_cast<float*>(call.workspace + plan.sinks.offset)[index] = d_sink;
}

// The gradient of each sink: the shares of all sequences, in their order.
inline void finish_sinks(const CpuCall& call) {
  const Problem& p = *call.problem;
  const float* shares = reinterpret_cast<const float*>(call.workspace + call.plan->backward.sinks.offset);
  constexpr i32 kParts = BackwardPlan::kRowParts;
  for (i32 head = 0; head < p.heads_q; ++head) {
    float sum = 0;
    for (i32 b = 0; b < p.batch; ++b)
      for (i32 part = 0; part < kParts; ++part) sum += shares[(i64(b) * p.heads_q + head) * kParts + part];
    store_float(call.x->d_sinks, head * p.d_sinks.stride[0], p.d_sinks.dtype, sum);
  }
}

// dQ = the sum over the chunks that have keys for the row; 0 past the rows in use. own: the head's sums, where its task
// has them.
inline void finish_dq(const CpuCall& call, i64 index, const float* own = nullptr) {
  const Problem& p = *call.problem;
  const BackwardPlan& plan = call.plan->backward;
  const RowTask task = row_task(p, index);
  const Sequence s = sequence_of(*call.sequences, task.b);
  const Band band = band_of(p, s.len_q, s.len_k);
  const Range rows = row_part(s.slot_len_q, task.part);
  const i64 first = task.head * plan.rows + padded_row_begin(p, s, task.b, plan.tile_q);
  const float* partial =
      own ? own : reinterpret_cast<const float*>(call.workspace + plan.dq.offset) + first * plan.ld_dq;
  const i64 stride_chunk = plan.rows * p.heads_q * plan.ld_dq;
  Range rows_of_chunk[BackwardPlan::kMaxChunks];
  for (i32 chunk = 0; chunk < plan.num_chunks; ++chunk) {
    const Range tiles = chunk_tiles(plan, s, chunk);
    rows_of_chunk[chunk] = rows_of_keys(band, tiles.begin * plan.tile_k, min_of(tiles.end * plan.tile_k, s.len_k));
  }
  for (i32 i = rows.begin; i < rows.end; ++i) {
    float sum[kMaxDim + kLanes];
    memset(sum, 0, sizeof(float) * size_t(round_up(p.dim_qk, kLanes)));
    for (i32 chunk = 0; chunk < plan.num_chunks; ++chunk) {
      if (i < rows_of_chunk[chunk].begin || i >= rows_of_chunk[chunk].end) continue;
      const float* row = partial + chunk * stride_chunk + i * plan.ld_dq;
      for (i32 c = 0; c < p.dim_qk; c += kLanes) store(hn::Add(load(sum + c), load(row + c)), sum + c);
    }
    store_row_scaled(const_cast<char*>(query_row(call.x->dq, p.dq, s, task.head, i)), sum, 1, p.dq.dtype, p.dim_qk);
  }
}

}  // namespace MICA_NS
