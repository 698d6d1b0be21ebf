// SPDX-License-Identifier: Apache-2.0
// Joins the parts that a split forward left: a block owns one row of one head. O is the sum of the parts, each weighed
// by 2^(its LSE - the LSE of all); the sink, which no part knows of, enters here.
#pragma once

#include "device/attend.cuh"
#include "kernels/params.h"

namespace mica {

// Warp 0: the LSE of all parts of a row (log2 units), in every lane.
MICA_DEVICE float joined_lse(const ForwardParams& p, i64 part_row, i64 part_stride, i32 head, bool unused) {
  SoftmaxState<FloatMath> state = empty_state<FloatMath>();
  if (!unused)
    for (i32 split = threadIdx.x; split < p.splits.num_splits; split += 32)
      state = merge<FloatMath>(state, {p.partial_lse[split * part_stride + part_row], 1.0f}).state;
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const float max = __shfl_down_sync(0xffffffffu, state.max, lanes);
    const float sum = __shfl_down_sync(0xffffffffu, state.sum, lanes);
    state = merge<FloatMath>(state, {max, sum}).state;
  }
  if (p.sinks) {
    const float sink_log2 = load_as_float(p.sinks, head * p.sinks_stride, p.sinks_dtype) * kLog2E;
    state = merge_sink<FloatMath>(state, sink_log2).state;
  }
  return __shfl_sync(0xffffffffu, lse_log2<FloatMath>(state), 0);
}

MICA_DEVICE void combine(const CombineParams& params) {
  __shared__ float weights[kMaxSplits];
  const ForwardParams& p = params.forward;
  const i32 head = blockIdx.x % p.heads_q;
  const i64 slot_row = blockIdx.x / p.heads_q;
  const i32 b = p.packed_q ? sequence_of_packed_row(p.sequences.cu_seqlens_q, p.batch, slot_row)
                           : i32(slot_row / p.sequences.slot_len_q);
  const Sequence s = sequence_of(p.sequences, b);
  const i64 row = p.packed_q ? slot_row - s.q_begin : slot_row % p.sequences.slot_len_q;
  if (row < 0 || row >= s.slot_len_q) return;  // packed: between two sequences
  const bool unused = row >= s.len_q;

  const i64 part_stride = i64(p.heads_q) * p.partial_rows;  // from a split to the next
  const i64 part_row = head * p.partial_rows + slot_row;
  if (threadIdx.x < 32) {
    const float lse = joined_lse(p, part_row, part_stride, head, unused);
    for (i32 split = threadIdx.x; split < p.splits.num_splits; split += 32)
      weights[split] =
          unused ? 0.0f : ex2_approx(p.partial_lse[split * part_stride + part_row] - reference_of<FloatMath>(lse));
    if (p.lse && threadIdx.x == 0)
      p.lse[s.q_slot * p.lse_stride_batch + head * p.lse_stride_head + (s.q_begin + row) * p.lse_stride_row] =
          lse * kLn2;
  }
  __syncthreads();

  const i64 o_offset = head * p.o.stride_head + query_row_offset(s, i32(row), p.o.stride_batch, p.o.stride_row);
  for (i32 column = threadIdx.x; column < p.dim_v; column += blockDim.x) {
    float sum = 0;
#pragma unroll 8
    for (i32 split = 0; split < p.splits.num_splits; ++split) {
      const float weight = weights[split];
      // A part without keys weighs nothing, whatever its memory holds.
      if (weight != 0) sum += weight * p.partial_o[(split * part_stride + part_row) * p.dim_v + column];
    }
    store_float(p.o.data, o_offset + column, params.o_dtype, sum);
  }
}

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::CombineParams params) {
  mica::combine(params);
}
