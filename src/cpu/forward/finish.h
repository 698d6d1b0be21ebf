// SPDX-License-Identifier: Apache-2.0
// The end of a row: sink, normalisation, O, LSE, and the probabilities where they are asked for.
#pragma once

#include "core/random.h"
#include "core/softmax.h"
#include "cpu/isa/isa.h"
#include "cpu/rows.h"
#include "cpu/score_row.h"
#include "cpu/threads/threads.h"

namespace MICA_NS {

// Address of a row of probs, and how many of its keys exist; null where the tensor has no such row.
struct ProbsRow {
  float* at;
  i64 stride_key;
  i32 num_keys;
};

HWY_API ProbsRow probs_row(const CpuCall& call, const RowPlace& row) {
  const Tensor& t = call.problem->probs;
  if (row.i >= t.shape[2] || t.shape[3] == 0) return ProbsRow{nullptr, 0, 0};
  return ProbsRow{call.x->probs + row.b * t.stride[0] + row.head * t.stride[1] + row.i * t.stride[2], t.stride[3],
                  i32(min_of<i64>(t.shape[3], MICA_MAX_SEQLEN))};
}

// Until the row's sum is known, probs holds the scores of the keys that the band shows.
inline void keep_scores(const CpuCall& call, const RowPlace& row, Range visible, const float* scores, i32 j_begin,
                        i32 count) {
  const ProbsRow to = probs_row(call, row);
  const i32 end = min_of(min_of(j_begin + count, visible.end), to.num_keys);
  for (i32 j = max_of(j_begin, visible.begin); j < end; ++j) to.at[j * to.stride_key] = scores[j - j_begin];
}

inline void finish_probs(const CpuCall& call, const RowPlace& row, float lse_log2, Range visible) {
  const Problem& p = *call.problem;
  const ProbsRow to = probs_row(call, row);
  const float reference = reference_of<ScalarMath>(lse_log2);
  const DropoutPlace& at = p.dropout_place;
  const u32 threshold = keep_threshold(p.dropout), head_index = dropout_head(at, row.b, row.head);
  for (i32 j = visible.begin; j < min_of(visible.end, to.num_keys); ++j) {
    float& x = to.at[j * to.stride_key];
    const float e = ScalarMath::exp2(x - reference);
    x = p.dropout > 0 && e > 0 &&
                !is_kept(call.philox, threshold, head_index, dropout_row(at, row.i), dropout_key(at, j))
            ? -e
            : e;
  }
}

// Zero everywhere: keys that no tile touches are hidden.
inline void clear_probs(const CpuCall& call) {
  const Tensor& t = call.problem->probs;
  if (t.shape[3] == 0) return;
  mica::parallel_for(
      call.plan->threads, t.shape[0] * t.shape[1] * t.shape[2],
      [](void* context, i64 index, i32) {
        const CpuCall& c = *static_cast<const CpuCall*>(context);
        const Tensor& t = c.problem->probs;
        const i64 i = index % t.shape[2], head = index / t.shape[2] % t.shape[1], b = index / t.shape[2] / t.shape[1];
        float* row = c.x->probs + b * t.stride[0] + head * t.stride[1] + i * t.stride[2];
        for (i64 j = 0; j < t.shape[3]; ++j) row[j * t.stride[3]] = 0;
      },
      const_cast<CpuCall*>(&call));
}

// accumulator: sum of exp2(score - max) * v; null for a row that is empty for certain.
inline void finish_row(const CpuCall& call, const Sequence& s, const RowPlace& row, SoftmaxState<ScalarMath> state,
                       const float* accumulator) {
  const Problem& p = *call.problem;
  float factor = 1;
  if (p.sinks.dtype != MICA_NONE) {
    const float sink = load_as_float(call.x->sinks, row.head * p.sinks.stride[0], p.sinks.dtype);
    const Merge<ScalarMath> with_sink = merge_sink<ScalarMath>(state, sink * kLog2E);
    factor = with_sink.factor_a;
    state = with_sink.state;
  }
  if (p.dropout > 0) factor /= 1 - p.dropout;
  const i64 offset = query_row_offset(s, row.i, p.o.stride[0], p.o.stride[1]) + row.head * p.o.stride[2];
  char* o = static_cast<char*>(call.x->o) + offset * dtype_bytes(p.o.dtype);
  const bool is_empty = state.sum == 0 || !accumulator;
  if (is_empty)
    __builtin_memset(o, 0, size_t(p.dim_v) * size_t(dtype_bytes(p.o.dtype)));
  else
    store_row_scaled(o, accumulator, normalizer<ScalarMath>(state) * factor, p.o.dtype, p.dim_v);
  if (p.lse.dtype == MICA_NONE && p.probs.dtype == MICA_NONE) return;
  const float lse = lse_log2<ScalarMath>(state);
  if (p.lse.dtype != MICA_NONE)
    call.x->lse[s.q_slot * p.lse.stride[0] + row.head * p.lse.stride[1] + (s.q_begin + row.i) * p.lse.stride[2]] =
        lse * kLn2;
  if (p.probs.dtype != MICA_NONE && accumulator)
    finish_probs(call, row, lse, keys_of_row(band_of(p, s.len_q, s.len_k), row.i));
}

}  // namespace MICA_NS
