// SPDX-License-Identifier: Apache-2.0
// Before backward: the statistics of every query row (LSE in log2 units, delta = row sum of dO * O less dLSE), and
// zeros for dQ's accumulator. A group of lanes shares a row; memory-bound.
#pragma once

#include "device/attend.cuh"
#include "kernels/params.h"

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
MICA_DEVICE StatRow stat_row(const BackwardPrepareParams& p, i64 item) {
  const i64 row = item / p.heads_q;
  const i32 slot = i32(row / p.rows_per_batch);
  return {i32(item - row * p.heads_q), i32(row - i64(slot) * p.rows_per_batch), slot};
}
// The row `step` items further on: digits with carries, since divisions would take longer than the sums.
MICA_DEVICE StatRow advance(const BackwardPrepareParams& p, const StatRow& at, const StatRow& step) {
  StatRow next = {at.head + step.head, at.row + step.row, at.slot + step.slot};
  const bool next_row = next.head >= p.heads_q;
  next.head -= next_row ? p.heads_q : 0;
  next.row += next_row;
  const bool next_slot = next.row >= p.rows_per_batch;
  next.row -= next_slot ? p.rows_per_batch : 0;
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
    const StatRow at = stat_row(p, inside ? item : 0);
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
    if (at >= p.zeros_count / 4) return false;
    reinterpret_cast<float4*>(p.zeros)[at] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    at += step;
    return true;
  }
};

// Rows of at most 8 * lanes columns that can be read 16 bytes at a time: four a group of lanes, so that their loads are
// under way together, and zeros are written meanwhile: of as many columns of dQ as there are of O.
template <int lanes>
MICA_DEVICE void prepare_rows(const BackwardPrepareParams& p, i64 thread, i64 threads, Zeros& zeros) {
  constexpr int kRows = 4, kZeros = 2 * kRows;
  const i64 items = p.stat_rows * p.heads_q, groups = threads / lanes;
  const i32 lane = threadIdx.x % lanes;
  const StatRow step = stat_row(p, groups);
  StatRow next = stat_row(p, thread / lanes);
  // The lanes of a warp go on together.
  for (i64 item = thread / lanes, of_warp = thread / 32 * (32 / lanes); of_warp < items;
       item += kRows * groups, of_warp += kRows * groups) {
    uint4 o[kRows], d_o[kRows];
    StatRow own = next;  // lane i writes what belongs to row i
    float own_lse = 0.0f, own_delta = 0.0f;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool inside = item + i * groups < items;
      o[i] = d_o[i] = make_uint4(0, 0, 0, 0);
      if (inside && lane * 8 < p.dim_v) {
        o[i] = load_8(p.o, offset_of(p.o, next) + lane * 8);
        d_o[i] = load_8(p.d_o, offset_of(p.d_o, next) + lane * 8);
      }
      if (inside && lane == i) {
        own = next;
        own_lse = lse_of(p, next);
      }
      next = advance(p, next, step);
    }
#pragma unroll
    for (int i = 0; i < kZeros; ++i) zeros.store_one();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float delta = sum_of_lanes<lanes>(dot_8(p, o[i], d_o[i]));
      if (lane == i) own_delta = delta;
    }
    if (lane < kRows && item + lane * groups < items) store_stats(p, own, own_lse, own_delta);
  }
}

MICA_DEVICE void backward_prepare(const BackwardPrepareParams& p) {
  const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x, threads = i64(gridDim.x) * blockDim.x;
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
  mica::griddepcontrol_launch_dependents();
  mica::backward_prepare(params);
}
