// SPDX-License-Identifier: Apache-2.0
// Before backward: the statistics of every query row (LSE in log2 units, delta = row sum of dO * O less dLSE), and
// zeros for dQ's accumulator. A group of lanes shares a row; memory-bound.
#pragma once

#include "device/attend.cuh"
#include "kernels/params.h"

namespace mica {

// The sum over 8 elements from `column` on; those past dim count as zero. vectors: both rows can be read 16 bytes at a
// time.
MICA_DEVICE float dot_8(const BackwardPrepareParams& p, i64 o, i64 d_o, i32 column, bool vectors) {
  float sum = 0;
  if (vectors) {
    const uint4 x = *reinterpret_cast<const uint4*>(static_cast<const u16*>(p.o.data) + o + column);
    const uint4 y = *reinterpret_cast<const uint4*>(static_cast<const u16*>(p.d_o.data) + d_o + column);
    const u32 xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
    const bool bf16 = p.o_dtype == MICA_BF16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 a = bf16 ? unpack<Bf16>(xs[i]) : unpack<Fp16>(xs[i]);
      const float2 b = bf16 ? unpack<Bf16>(ys[i]) : unpack<Fp16>(ys[i]);
      sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
    }
    return sum;
  }
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

MICA_DEVICE void backward_prepare(const BackwardPrepareParams& p) {
  const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x, threads = i64(gridDim.x) * blockDim.x;
  for (i64 i = thread; i < p.dq_accumulator_count / 4; i += threads)
    reinterpret_cast<float4*>(p.dq_accumulator)[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

  // 16 lanes a row: 128 columns in one step.
  constexpr i32 kLanes = 16;
  const i32 lane = threadIdx.x % kLanes;
  const i64 items = p.stat_rows * p.heads_q;
  const bool vectors = p.o_dtype == p.d_o_dtype && p.o_dtype != MICA_FP32 && !p.unaligned;
  for (i64 item = thread / kLanes; item < round_up<i64>(items, 2); item += threads / kLanes) {
    const bool inside = item < items;
    const i32 head = inside ? i32(item % p.heads_q) : 0;
    const i64 row = inside ? item / p.heads_q : 0;  // of all rows: (slot, row) or packed
    const i64 slot = p.packed_q ? 0 : row / p.rows_per_batch, slot_row = row - slot * p.rows_per_batch;
    const i64 o = slot * p.o.stride_batch + slot_row * p.o.stride_row + head * p.o.stride_head;
    const i64 d_o = slot * p.d_o.stride_batch + slot_row * p.d_o.stride_row + head * p.d_o.stride_head;
    float delta = 0;
    for (i32 column = lane * 8; inside && column < p.dim_v; column += kLanes * 8) {
      delta += dot_8(p, o, d_o, column, vectors);
      if (p.converted.data) convert_8(p, d_o, slot, slot_row, head, column);
    }
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) delta += __shfl_xor_sync(0xffffffffu, delta, distance);
    if (!inside || lane != 0) continue;
    if (p.d_lse)
      delta -= p.d_lse[slot * p.d_lse_stride_batch + head * p.d_lse_stride_head + slot_row * p.d_lse_stride_row];
    const float lse = p.lse[slot * p.lse_stride_batch + head * p.lse_stride_head + slot_row * p.lse_stride_row];
    p.row_lse[head * p.stat_rows + row] = backward_reference<FloatMath>(lse);
    p.row_delta[head * p.stat_rows + row] = delta;
  }
}

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::BackwardPrepareParams params) {
  mica::let_next_kernel_begin();
  mica::backward_prepare(params);
}
