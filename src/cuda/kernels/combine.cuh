// SPDX-License-Identifier: Apache-2.0
// Joins the parts that a split forward left. A team of warps owns some columns of one row of one head, and shares out
// the splits, so that a row waits for memory once and not once per split: few splits, few warps, and many rows a block.
// The sink, which no part knows of, enters at the end. forward.group is of the LSE here: so many of its heads are rows
// of one head of O, row by row (core/heads_as_rows.h), and O's likewise if heads are joined; 1: it has O's heads and
// rows. Without parts of O the LSE alone is brought into that order.
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

MICA_DEVICE i64 lse_offset(const ForwardParams& p, const Sequence& s, i32 head, i32 row) {
  const i32 lse_row = row / p.group, lse_head = head * p.group + row % p.group;
  return s.q_slot * p.lse_stride_batch + lse_head * p.lse_stride_head + (s.q_begin + lse_row) * p.lse_stride_row;
}

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
    const bool is_joined = p.joined_heads > 0;
    const i32 o_row = is_joined ? row / p.group : row, o_head = is_joined ? head * p.group + row % p.group : head;
    const i64 o =
        o_head * p.o.stride_head + query_row_offset(sequence, o_row, p.o.stride_batch, p.o.stride_row) + column;
    if (column + 4 <= p.dim_v && params.o_dtype != MICA_FP32 && (reinterpret_cast<u64>(p.o.data) + o * 2) % 8 == 0) {
      const bool is_bf16 = params.o_dtype == MICA_BF16;
      u32 words[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        words[i] = is_bf16 ? pack<Bf16>(joined.x[2 * i] * scale, joined.x[2 * i + 1] * scale)
                           : pack<Fp16>(joined.x[2 * i] * scale, joined.x[2 * i + 1] * scale);
      *reinterpret_cast<uint2*>(static_cast<u16*>(p.o.data) + o) = make_uint2(words[0], words[1]);
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (column + c < p.dim_v) store_float(p.o.data, o + c, params.o_dtype, joined.x[c] * scale);
    }
    if (p.lse && column == 0) p.lse[lse_offset(p, sequence, head, row)] = lse_log2<FloatMath>(joined.state) * kLn2;
  }
};

// By each thread a row of rows that are not packed: its LSE, which lies as that of a part.
template <int warps>
MICA_DEVICE void move_lse(const ForwardParams& p) {
  const i64 index = i64(blockIdx.x) * (32 * warps) + threadIdx.x;
  const i32 head = i32(index / p.partial_rows), slot_row = i32(index % p.partial_rows);
  griddepcontrol_wait();
  if (head >= p.heads_q) return;
  const Sequence s = sequence_of(p.sequences, slot_row / p.sequences.slot_len_q);
  p.lse[lse_offset(p, s, head, slot_row % p.sequences.slot_len_q)] = p.partial_lse[index];
}

template <int warps>
MICA_DEVICE void combine(const CombineParams& params, PartialColumns (&shared)[warps][32]) {
  const ForwardParams& p = params.forward;
  const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i32 team = params.team_warps, member = warp % team, pieces = ceil_div(p.dim_v, kCombineColumns);
  const i64 unit = i64(blockIdx.x) * (warps / team) + warp / team;
  const i32 column = i32(unit % pieces) * kCombineColumns + lane * 4;
  const i32 head = i32(unit / pieces % p.heads_q);
  const i64 slot_row = unit / pieces / p.heads_q;
  bool exists = slot_row < p.partial_rows;
  i32 b = 0;
  if (exists && p.packed_q)
    b = sequence_of_packed_row(p.sequences.cu_seqlens_q, p.batch, slot_row);
  else if (exists)
    b = i32(slot_row / p.sequences.slot_len_q);
  const Sequence s = sequence_of(p.sequences, b);
  const i64 row = p.packed_q ? slot_row - s.q_begin : slot_row % p.sequences.slot_len_q;
  exists = exists && row >= 0 && row < s.slot_len_q;  // packed: it may lie between two sequences
  griddepcontrol_wait();
  const CombineRow own = {params, p, s, head, i32(row), head * p.partial_rows + slot_row};
  // Rows not in use are empty rows.
  const i32 num_splits = exists && row < s.len_q ? p.splits.num_splits : 0;

  PartialColumns joined = {empty_state<FloatMath>(), {0, 0, 0, 0}};
#pragma unroll 4
  for (i32 split = member; split < num_splits; split += team) joined.add(own.load(split, column));
  if (team > 1) {
    shared[warp][lane] = joined;
    __syncthreads();
    if (member == 0)
      for (i32 other = 1; other < team; ++other) joined.add(shared[warp + other][lane]);
  }
  if (exists && member == 0) own.store(joined, column);
}

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::CombineParams params) {
  __shared__ mica::PartialColumns shared[MICA_WARPS][32];
  if (params.forward.partial_o)
    mica::combine<MICA_WARPS>(params, shared);
  else
    mica::move_lse<MICA_WARPS>(params.forward);
}
