// SPDX-License-Identifier: Apache-2.0
// The gradient of the sinks: dSink = - sum over rows of p(sink) * delta, where delta = dO . O - dLSE is what
// backward_prepare left. A block owns one head and adds in a fixed order: the same bits on every run.
#pragma once

#include "device/attend.cuh"
#include "kernels/params.h"

namespace mica {

template <int threads>
MICA_DEVICE void backward_sinks(const BackwardSinksParams& p, float (&shared)[threads]) {
  const i32 head = blockIdx.x;
  const float sink = load_as_float(p.sinks, head * p.sinks_stride, p.sinks_dtype);
  float sum = 0;
  for (i32 b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_of(p.sequences, b);
    const i64 first_row = s.q_slot * i64(p.sequences.slot_len_q) + s.q_begin;
    for (i32 row = threadIdx.x; row < s.len_q; row += threads) {
      const float lse =
          p.lse[s.q_slot * p.lse_stride_batch + head * p.lse_stride_head + (s.q_begin + row) * p.lse_stride_row];
      // The difference first: both may be large. An infinite LSE is an empty row.
      const float probability = fabsf(lse) == infinity() ? 0.0f : ex2_approx((sink - lse) * kLog2E);
      sum -= probability * p.row_delta[head * p.stat_rows + first_row + row];
    }
  }
  shared[threadIdx.x] = sum;
#pragma unroll
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  if (threadIdx.x == 0) store_float(p.d_sinks, head * p.d_sinks_stride, p.d_sinks_dtype, shared[0]);
}

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::BackwardSinksParams params) {
  __shared__ float shared[32 * MICA_WARPS];
  mica::backward_sinks<32 * MICA_WARPS>(params, shared);
}
