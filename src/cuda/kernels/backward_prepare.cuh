// SPDX-License-Identifier: Apache-2.0
// Before backward: the statistics of every query row (LSE in log2 units, delta = row sum of dO * O less dLSE), and
// zeros for dQ's accumulator. A group of lanes shares a row; memory-bound.
#pragma once

#include "device/attend.cuh"
#include "kernels/params.h"
#include "kernels/parts/packed_order.h"

namespace mica {

MICA_DEVICE float dot_8(const BackwardPrepareParams& p, const uint4& x, const uint4& y) {
  const u32 xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 a = p.o_dtype == MICA_BF16 ? unpack<Bf16>(xs[i]) : unpack<Fp16>(xs[i]);
    const float2 b = p.o_dtype == MICA_BF16 ? unpack<Bf16>(ys[i]) : unpack<Fp16>(ys[i]);
    sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
  }
  return sum;
}
MICA_DEVICE uint4 load_8(const RowsArg& t, i64 at) {
  return *reinterpret_cast<const uint4*>(static_cast<const u16*>(t.data) + at);
}
// The same from `column` on; elements past dim count as zero. vectors: both rows can be read 16 bytes at a time.
MICA_DEVICE float dot_8(const BackwardPrepareParams& p, i64 o, i64 d_o, i32 column, bool vectors) {
  if (vectors) return dot_8(p, load_8(p.o, o + column), load_8(p.d_o, d_o + column));
  float sum = 0.0f;
#pragma unroll
  for (int e = 0; e < 8; ++e)
    if (column + e < p.dim_v)
      sum +=
          load_as_float(p.o.data, o + column + e, p.o_dtype) * load_as_float(p.d_o.data, d_o + column + e, p.d_o_dtype);
  return sum;
}

// 8 elements of dO in q's type.
MICA_DEVICE void convert_8(const BackwardPrepareParams& p, i64 d_o, i64 slot, i64 slot_row, i32 head, i32 column) {
  const i64 to = slot * p.converted.stride_batch + slot_row * p.converted.stride_row + head * p.converted.stride_head;
#pragma unroll
  for (int e = 0; e < 8; ++e)
    if (column + e < p.dim_v)
      store_float(p.converted.data, to + column + e, p.converted_dtype,
                  load_as_float(p.d_o.data, d_o + column + e, p.d_o_dtype));
}

// The row of a query head. slot: of the batch; packed: 0, and row counts through all sequences.
struct StatRow {
  i32 head, row, slot;
};
// Counts heads, then rows (or blocks of rows) of a slot, then slots.
MICA_DEVICE StatRow stat_row(i64 item, i32 heads, i32 rows) {
  const i64 row = item / heads;
  const i32 slot = i32(row / rows);
  return {i32(item - row * heads), i32(row - i64(slot) * rows), slot};
}
// `step` further on: digits with carries, since divisions would take longer than the sums.
MICA_DEVICE StatRow advance(const StatRow& at, const StatRow& step, i32 heads, i32 rows) {
  StatRow next = {at.head + step.head, at.row + step.row, at.slot + step.slot};
  const bool next_row = next.head >= heads;
  next.head -= next_row ? heads : 0;
  next.row += next_row;
  const bool next_slot = next.row >= rows;
  next.row -= next_slot ? rows : 0;
  next.slot += next_slot;
  return next;
}

MICA_DEVICE i64 offset_of(const RowsArg& t, const StatRow& at) {
  return at.slot * t.stride_batch + at.row * t.stride_row + at.head * t.stride_head;
}
MICA_DEVICE void store_stats(const BackwardPrepareParams& p, const StatRow& at, float lse, float delta) {
  if (p.d_lse)
    delta -= p.d_lse[at.slot * p.d_lse_stride_batch + at.head * p.d_lse_stride_head + at.row * p.d_lse_stride_row];
  const i64 stat = at.head * p.stat_rows + i64(at.slot) * p.rows_per_batch + at.row;
  p.row_lse[stat] = backward_reference<FloatMath>(lse);
  p.row_delta[stat] = delta;
}
MICA_DEVICE float lse_of(const BackwardPrepareParams& p, const StatRow& at) {
  return p.lse[at.slot * p.lse_stride_batch + at.head * p.lse_stride_head + at.row * p.lse_stride_row];
}
template <int lanes>
MICA_DEVICE float sum_of_lanes(float x) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

// Any rows, by 16 lanes each.
MICA_DEVICE void prepare_any(const BackwardPrepareParams& p, i64 thread, i64 threads, bool vectors) {
  constexpr i32 kLanes = 16;
  const i64 items = p.stat_rows * p.heads_q;
  const i32 lane = threadIdx.x % kLanes;
  for (i64 item = thread / kLanes; item < round_up<i64>(items, 2); item += threads / kLanes) {
    const bool inside = item < items;
    const StatRow at = stat_row(inside ? item : 0, p.heads_q, p.rows_per_batch);
    const i64 o = offset_of(p.o, at), d_o = offset_of(p.d_o, at);
    float delta = 0.0f;
#pragma unroll 1
    for (i32 column = lane * 8; inside && column < p.dim_v; column += kLanes * 8) {
      delta += dot_8(p, o, d_o, column, vectors);
      if (p.converted.data) convert_8(p, d_o, at.slot, at.row, at.head, column);
    }
    delta = sum_of_lanes<kLanes>(delta);
    if (inside && lane == 0) store_stats(p, at, lse_of(p, at), delta);
  }
}

// Sums in the workspace, 16 bytes at a time, by all threads of the grid.
struct Zeros {
  const BackwardPrepareParams& p;
  i64 at, step;

  MICA_DEVICE bool store_one() {
    if (at >= (p.first_zeros + p.other_zeros) / 4) return false;
    const i64 others = at * 4 < p.first_zeros ? 0 : (p.others_begin - p.first_zeros) / 4;
    reinterpret_cast<float4*>(p.zeros)[at + others] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    at += step;
    return true;
  }
};

// Rows of at most 8 * lanes columns that can be read 16 bytes at a time: a warp takes neighbouring rows of a head,
// whose statistics lie beside each other, four a group of lanes, so that their loads are under way together, and zeros
// are written meanwhile: of as many columns of dQ as there are of O.
template <int lanes>
MICA_DEVICE void prepare_rows(const BackwardPrepareParams& p, i64 thread, i64 threads, Zeros& zeros) {
  constexpr int kRows = 4, kZeros = 2 * kRows, kGroups = 32 / lanes, kBlock = kRows * kGroups;
  if (p.stat_rows == 0) return;
  const i32 blocks = ceil_div(p.rows_per_batch, kBlock), group = i32(thread % 32) / lanes, lane = i32(thread) % lanes;
  const i64 units = p.stat_rows / p.rows_per_batch * blocks * p.heads_q, warps = threads / 32;
  const StatRow step = stat_row(warps, p.heads_q, blocks);
  StatRow block = stat_row(thread / 32, p.heads_q, blocks);
  for (i64 unit = thread / 32; unit < units; unit += warps, block = advance(block, step, p.heads_q, blocks)) {
    const i32 first = block.row * kBlock + group;  // row i is first + i * kGroups
    uint4 o[kRows], d_o[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const StatRow at = {block.head, first + i * kGroups, block.slot};
      o[i] = d_o[i] = make_uint4(0, 0, 0, 0);
      if (at.row < p.rows_per_batch && lane * 8 < p.dim_v) {
        o[i] = load_8(p.o, offset_of(p.o, at) + lane * 8);
        d_o[i] = load_8(p.d_o, offset_of(p.d_o, at) + lane * 8);
      }
    }
    const StatRow own = {block.head, first + lane * kGroups, block.slot};  // lane i writes what belongs to row i
    const bool writes = lane < kRows && own.row < p.rows_per_batch;
    const float own_lse = writes ? lse_of(p, own) : 0.0f;
#pragma unroll
    for (int i = 0; i < kZeros; ++i) zeros.store_one();
    float own_delta = 0.0f;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float delta = sum_of_lanes<lanes>(dot_8(p, o[i], d_o[i]));
      if (lane == i) own_delta = delta;
    }
    if (writes) store_stats(p, own, own_lse, own_delta);
  }
}

// What decides a packed sequence's place.
struct SequenceSize {
  i32 len_q, tiles_k;
};
// Packed sequences from the one with the most queries on, by one block: each thread finds the place of its sequences.
// sizes: of all of them, in shared memory.
MICA_DEVICE void order_sequences(const BackwardPrepareParams& p, SequenceSize* sizes) {
  i32* items = p.packed_order + p.batch;
  for (i32 own = threadIdx.x; own < p.batch; own += blockDim.x) {
    const Sequence sequence = sequence_of(p.sequences, own);
    sizes[own] = {sequence.len_q, ceil_div(sequence.slot_len_k, p.tile_k)};
  }
  __syncthreads();
  for (i32 own = threadIdx.x; own < p.batch; own += blockDim.x) {
    const SequenceSize size = sizes[own];
    i32 place = 0, tiles_before = 0;
#pragma unroll 4
    for (i32 other = 0; other < p.batch; ++other) {
      const SequenceSize s = sizes[other];
      const bool is_before = s.len_q > size.len_q || (s.len_q == size.len_q && other < own);
      place += is_before;
      tiles_before += is_before ? s.tiles_k : 0;
    }
    p.packed_order[place] = own;
    items[place] = tiles_before * p.heads_k;
    if (place == p.batch - 1) items[p.batch] = (tiles_before + size.tiles_k) * p.heads_k;
  }
}

MICA_DEVICE void backward_prepare(const BackwardPrepareParams& p, SequenceSize* sizes) {
  const i32 ordering = p.packed_order != nullptr;  // one block does nothing else
  if (ordering && blockIdx.x == 0) {
    order_sequences(p, sizes);
    return;
  }
  const i64 thread = i64(blockIdx.x - ordering) * blockDim.x + threadIdx.x;
  const i64 threads = i64(gridDim.x - ordering) * blockDim.x;
  Zeros zeros{p, thread, threads};
  const bool vectors = p.o_dtype == p.d_o_dtype && p.o_dtype != MICA_FP32 && !p.unaligned;
  if (!vectors || p.converted.data || p.dim_v > 256)
    prepare_any(p, thread, threads, vectors);
  else if (p.dim_v <= 64)
    prepare_rows<8>(p, thread, threads, zeros);
  else if (p.dim_v <= 128)
    prepare_rows<16>(p, thread, threads, zeros);
  else
    prepare_rows<32>(p, thread, threads, zeros);
  while (zeros.store_one()) {
  }
}

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::BackwardPrepareParams params) {
  __shared__ mica::SequenceSize sizes[mica::kMostOrderedSequences];
  mica::griddepcontrol_launch_dependents();
  mica::backward_prepare(params, sizes);
}
