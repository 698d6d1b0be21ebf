// SPDX-License-Identifier: Apache-2.0
// Joins the parts that a split forward left. A team of warps owns some columns of one row of one head, and shares out
// the splits, so that a row waits for memory once and not once per split: few splits, few warps, and many rows a block.
// Every warp finds the row's maximum and sum by itself, a split a lane, so that what is left for each part is one
// factor and a multiplication: with many rows, instructions are what takes the time.
// The sink, which no part knows of, enters at the end. forward.group is of the LSE here: so many of its heads are rows
// of one head of O, row by row (core/heads_as_rows.h), and O's likewise if heads are joined; 1: it has O's heads and
// rows. Without parts of O the LSE alone is brought into that order.
#pragma once

#include "device/attend.cuh"
#include "kernels/parts/overlap.cuh"

namespace mica {

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

  // By a warp: the maximum and the sum of all parts, each of which is the state {LSE, 1}. Memory is waited for once per
  // 128 splits.
  MICA_DEVICE SoftmaxState<FloatMath> join_states(const float* lse, i64 step, i32 num_splits) const {
    constexpr int kTogether = 4;
    SoftmaxState<FloatMath> own = empty_state<FloatMath>();
#pragma unroll 1
    for (i32 first = threadIdx.x % 32; first < num_splits; first += 32 * kTogether) {
      float part[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (first + 32 * i < num_splits) part[i] = lse[(first + 32 * i) * step];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (first + 32 * i < num_splits) own = merge<FloatMath>(own, SoftmaxState<FloatMath>{part[i], 1.0f}).state;
    }
    SoftmaxState<FloatMath> all = own;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      all.max = fmaxf(all.max, __shfl_xor_sync(0xffffffffu, all.max, distance));
    all.sum *= FloatMath::exp2(own.max - reference_of<FloatMath>(all.max));
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) all.sum += __shfl_xor_sync(0xffffffffu, all.sum, distance);
    return all;
  }

  // Four columns of one split. Rows of a part lie at multiples of 16 bytes when dim_v is a multiple of 4.
  MICA_DEVICE float4 load(const float* o, i32 column) const {
    float x[4] = {0, 0, 0, 0};
    if (p.dim_v % 4 == 0) {
      if (column < p.dim_v) return *reinterpret_cast<const float4*>(o);
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (column + c < p.dim_v) x[c] = o[c];
    }
    return make_float4(x[0], x[1], x[2], x[3]);
  }
  // The columns of splits member, member + team, ..., each times its share, which is relative to the row's maximum.
  MICA_DEVICE float4 sum_of(i32 member, i32 team, i32 num_splits, i32 column, SoftmaxState<FloatMath>& state) const {
    constexpr int kAhead = 4;
    const i64 step = i64(p.heads_q) * p.partial_rows, o_step = step * p.dim_v * team;  // between two splits
    const float *lse = p.partial_lse + part_row, *o = p.partial_o + (part_row + member * step) * p.dim_v + column;
    float4 sum = make_float4(0, 0, 0, 0);
    float reference = 0.0f;
#pragma unroll 1
    for (i32 first = member; first < num_splits || first == member; first += kAhead * team) {
      float4 x[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (first + i * team < num_splits) {
          x[i] = load(o, column);
          o += o_step;
        }
      if (first == member) {
        state = join_states(lse, step, num_splits);
        reference = reference_of<FloatMath>(state.max);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (first + i * team < num_splits) {
          const float share = FloatMath::exp2(lse[(first + i * team) * step] - reference);
          sum = make_float4(fmaf(x[i].x, share, sum.x), fmaf(x[i].y, share, sum.y), fmaf(x[i].z, share, sum.z),
                            fmaf(x[i].w, share, sum.w));
        }
    }
    return sum;
  }

  // One warp: the joined columns to O, normalised; with the first of them the LSE.
  MICA_DEVICE void store(SoftmaxState<FloatMath> state, const float4& sum, i32 column) const {
    float shrink = 1.0f;
    if (p.sinks) {
      const float sink_log2 = load_as_float(p.sinks, head * p.sinks_stride, p.sinks_dtype) * kLog2E;
      const Merge<FloatMath> with_sink = merge_sink<FloatMath>(state, sink_log2);
      state = with_sink.state;
      shrink = with_sink.factor_a;
    }
    const float scale = normalizer<FloatMath>(state) * shrink;
    const float x[4] = {sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
    const bool is_joined = p.joined_heads > 0;
    const i32 o_row = is_joined ? row / p.group : row, o_head = is_joined ? head * p.group + row % p.group : head;
    const i64 o =
        o_head * p.o.stride_head + query_row_offset(sequence, o_row, p.o.stride_batch, p.o.stride_row) + column;
    if (column + 4 <= p.dim_v && params.o_dtype != MICA_FP32 && (reinterpret_cast<u64>(p.o.data) + o * 2) % 8 == 0) {
      const bool is_bf16 = params.o_dtype == MICA_BF16;
      u32 words[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        words[i] = is_bf16 ? pack<Bf16>(x[2 * i], x[2 * i + 1]) : pack<Fp16>(x[2 * i], x[2 * i + 1]);
      *reinterpret_cast<uint2*>(static_cast<u16*>(p.o.data) + o) = make_uint2(words[0], words[1]);
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (column + c < p.dim_v) store_float(p.o.data, o + c, params.o_dtype, x[c]);
    }
    if (p.lse && column == 0) p.lse[lse_offset(p, sequence, head, row)] = lse_log2<FloatMath>(state) * kLn2;
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
MICA_DEVICE void combine(const CombineParams& params, float4 (&shared)[warps][32]) {
  const ForwardParams& p = params.forward;
  if (reads_query_lengths(p.sequences)) griddepcontrol_wait();
  const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Units are counted in 32 bits: the parts of more would not fit into memory.
  const u32 team = params.team_warps, member = warp % team, pieces = ceil_div(p.dim_v, kCombineColumns);
  const u32 unit = blockIdx.x * (warps / team) + warp / team, head_row = pieces == 1 ? unit : unit / pieces;
  const i32 column = i32(unit - head_row * pieces) * kCombineColumns + lane * 4;
  const i32 slot_row = i32(head_row / u32(p.heads_q)), head = i32(head_row) - slot_row * p.heads_q;
  bool exists = slot_row < p.partial_rows;
  i32 b = 0;
  if (exists && p.packed_q)
    b = sequence_of_packed_row(p.sequences.cu_seqlens_q, p.batch, slot_row);
  else if (exists)
    b = slot_row / p.sequences.slot_len_q;
  const Sequence s = sequence_of(p.sequences, b);
  const i64 row = p.packed_q ? slot_row - s.q_begin : slot_row - b * p.sequences.slot_len_q;
  exists = exists && row >= 0 && row < s.slot_len_q;  // packed: it may lie between two sequences
  griddepcontrol_wait();
  const CombineRow own = {params, p, s, head, i32(row), head * p.partial_rows + slot_row};
  // Rows not in use are empty rows.
  const i32 num_splits = exists && row < s.len_q ? p.splits.num_splits : 0;

  SoftmaxState<FloatMath> state;
  float4 sum = own.sum_of(member, team, num_splits, column, state);
  if (team > 1) {
    shared[warp][lane] = sum;
    __syncthreads();
    if (member == 0)
      for (u32 other = 1; other < team; ++other) {
        const float4 x = shared[warp + other][lane];
        sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
      }
  }
  if (exists && member == 0) own.store(state, sum, column);
}

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::CombineParams params) {
  __shared__ float4 shared[MICA_WARPS][32];
  mica::call_in_params(params);
  mica::griddepcontrol_launch_dependents();
  if (params.forward.partial_o)
    mica::combine<MICA_WARPS>(params, shared);
  else
    mica::move_lse<MICA_WARPS>(params.forward);
}
