// SPDX-License-Identifier: Apache-2.0
// Joins the parts that a split forward left. A block owns one row of one head and its warps share out the splits, so
// that a row waits for memory once and not once per split; the sink, which no part knows of, enters at the end.
#pragma once

#include "device/attend.cuh"
#include "kernels/params.h"

namespace mica {

// Four columns of a row, and the softmax state they belong to.
struct PartialColumns {
  SoftmaxState<FloatMath> state;
  float x[4];

  MICA_DEVICE void add(const PartialColumns& other) {
    const Merge<FloatMath> both = merge<FloatMath>(state, other.state);
    state = both.state;
#pragma unroll
    for (int c = 0; c < 4; ++c) x[c] = x[c] * both.factor_a + other.x[c] * both.factor_b;
  }
};

struct CombineRow {
  const CombineParams& params;
  const ForwardParams& p;
  Sequence sequence;
  i32 head, row;
  i64 part_row;  // in the first split

  // Four columns of one split. Rows of a part lie at multiples of 16 bytes when dim_v is a multiple of 4.
  MICA_DEVICE PartialColumns load(i32 split, i32 column) const {
    const i64 index = part_row + i64(split) * p.heads_q * p.partial_rows;
    PartialColumns part = {{p.partial_lse[index], 1.0f}, {0, 0, 0, 0}};
    const float* o = p.partial_o + index * p.dim_v + column;
    if (p.dim_v % 4 == 0) {
      if (column < p.dim_v) *reinterpret_cast<float4*>(part.x) = *reinterpret_cast<const float4*>(o);
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (column + c < p.dim_v) part.x[c] = o[c];
    }
    return part;
  }

  // One warp: the joined columns to O, normalised; with the first of them the LSE.
  MICA_DEVICE void store(PartialColumns& joined, i32 column) const {
    float shrink = 1.0f;
    if (p.sinks) {
      const float sink_log2 = load_as_float(p.sinks, head * p.sinks_stride, p.sinks_dtype) * kLog2E;
      const Merge<FloatMath> with_sink = merge_sink<FloatMath>(joined.state, sink_log2);
      joined.state = with_sink.state;
      shrink = with_sink.factor_a;
    }
    const float scale = normalizer<FloatMath>(joined.state) * shrink;
    const i64 o = head * p.o.stride_head + query_row_offset(sequence, row, p.o.stride_batch, p.o.stride_row) + column;
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (column + c < p.dim_v) store_float(p.o.data, o + c, params.o_dtype, joined.x[c] * scale);
    if (p.lse && column == 0)
      p.lse[sequence.q_slot * p.lse_stride_batch + head * p.lse_stride_head +
            (sequence.q_begin + row) * p.lse_stride_row] = lse_log2<FloatMath>(joined.state) * kLn2;
  }
};

template <int warps>
MICA_DEVICE void combine(const CombineParams& params, PartialColumns (&shared)[warps][32]) {
  const ForwardParams& p = params.forward;
  const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i32 head = blockIdx.x % p.heads_q;
  const i64 slot_row = blockIdx.x / p.heads_q;
  const i32 b = p.packed_q ? sequence_of_packed_row(p.sequences.cu_seqlens_q, p.batch, slot_row)
                           : i32(slot_row / p.sequences.slot_len_q);
  const Sequence s = sequence_of(p.sequences, b);
  const i64 row = p.packed_q ? slot_row - s.q_begin : slot_row % p.sequences.slot_len_q;
  if (row < 0 || row >= s.slot_len_q) return;  // packed: between two sequences
  wait_for_earlier_kernel();
  const CombineRow own = {params, p, s, head, i32(row), head * p.partial_rows + slot_row};
  // Rows not in use are empty rows.
  const i32 num_splits = row < s.len_q ? p.splits.num_splits : 0;

  for (i32 column = lane * 4; column - lane * 4 < p.dim_v; column += 128) {
    PartialColumns joined = {empty_state<FloatMath>(), {0, 0, 0, 0}};
#pragma unroll 4
    for (i32 split = warp; split < num_splits; split += warps) joined.add(own.load(split, column));
    shared[warp][lane] = joined;
    __syncthreads();
    if (warp == 0) {
#pragma unroll
      for (int other = 1; other < warps; ++other) joined.add(shared[other][lane]);
      own.store(joined, column);
    }
    __syncthreads();
  }
}

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::CombineParams params) {
  __shared__ mica::PartialColumns shared[MICA_WARPS][32];
  mica::combine<MICA_WARPS>(params, shared);
}
