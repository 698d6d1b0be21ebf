// SPDX-License-Identifier: Apache-2.0
// Joins two results of the same queries over different keys by their LSE. A warp owns a row of one head.
#pragma once

#include "device/attend.cuh"
#include "kernels/params_join.h"

namespace mica {

template <int warps>
MICA_DEVICE void join(const JoinParams& p) {
  const i64 all_rows = i64(p.batch) * p.rows;
  const i64 unit = i64(blockIdx.x) * warps + threadIdx.x / 32;  // row by row, heads innermost, as o's parts lie
  if (unit >= all_rows * p.heads) return;
  const i64 row = unit / p.heads;
  const i32 head = i32(unit % p.heads), b = i32(row / p.rows), i = i32(row % p.rows);
  SoftmaxState<PreciseMath> part[2];
#pragma unroll
  for (int n = 0; n < 2; ++n) part[n] = {p.part_lse[n][head * all_rows + row] * kLog2E, 1.0f};
  const Merge<PreciseMath> both = merge<PreciseMath>(part[0], part[1]);
  const float scale = normalizer<PreciseMath>(both.state);
  const float share[2] = {both.factor_a * scale, both.factor_b * scale};
  const i64 to = b * p.o.stride_batch + i * p.o.stride_row + head * p.o.stride_head;
  for (i32 c = i32(threadIdx.x) % 32; c < p.dim; c += 32)
    store_float(p.o.data, to + c, p.dtype,
                load_as_float(p.part_o[0], unit * p.dim + c, p.dtype) * share[0] +
                    load_as_float(p.part_o[1], unit * p.dim + c, p.dtype) * share[1]);
  if (p.lse && threadIdx.x % 32 == 0)
    p.lse[b * p.lse_stride_batch + i * p.lse_stride_row + head * p.lse_stride_head] =
        lse_log2<PreciseMath>(both.state) * kLn2;
}

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::JoinParams params) {
  mica::join<MICA_WARPS>(params);
}
