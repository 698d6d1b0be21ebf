// SPDX-License-Identifier: Apache-2.0
// Packed rows (parts/packed_rows.cuh) as the columns of products whose rows are keys, or columns of V: eight rows are
// as wide as such a product, where 16 are the height of the others, so that up to eight need half as many products,
// scores and sums. A lane holds rows 2 * (lane % 4) and the next; of a fragment of scores keys lane / 4 and the eighth
// after it.
#pragma once

#include "core/mask.h"
#include "device/attend.cuh"

namespace mica {

// The largest (or the sum) over the eight lanes that share a column of an accumulator.
MICA_DEVICE float column_max(float x) {
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}
MICA_DEVICE float column_sum(float x) {
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

// What the lane's two columns have, of what each row has that lane / 4 names.
MICA_DEVICE void rows_to_columns(float (&columns)[2], float of_row) {
#pragma unroll
  for (int i = 0; i < 2; ++i) columns[i] = __shfl_sync(0xffffffffu, of_row, (threadIdx.x % 4 * 2 + i) * 4);
}

// Hides what the band hides; called only for tiles that are not full.
template <class Rows, int n>
MICA_DEVICE void mask_columns(const Rows& rows, float (&scores)[n][4], i32 key_begin) {
  const i32 first = key_begin + threadIdx.x % 32 / 4;
#pragma unroll
  for (int block = 0; block < n; ++block)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const Range& keys = rows.keys[e % 2];
      const i32 key = first + block * 16 + e / 2 * 8;
      if (key < keys.begin || key >= keys.end) scores[block][e] = -infinity();
    }
}

// From scores to probabilities in place; rescales `out` where a maximum rises. Lanes compare theirs only where one of
// them calls for another.
template <int n, int v_blocks>
MICA_DEVICE void softmax_columns(float (&scores)[n][4], SoftmaxState<FloatMath> (&state)[2], float (&out)[v_blocks][4],
                                 const float (&scale)[2]) {
  float tile_max[2] = {-infinity(), -infinity()};
#pragma unroll
  for (int block = 0; block < n; ++block)
#pragma unroll
    for (int e = 0; e < 4; ++e) tile_max[e % 2] = fmaxf(tile_max[e % 2], scores[block][e]);
  const bool rises =
      tile_max[0] * scale[0] - state[0].max > kLazyLog2 || tile_max[1] * scale[1] - state[1].max > kLazyLog2;
  if (__any_sync(0xffffffffu, rises)) {
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) factor[i] = absorb_lazily<FloatMath>(state[i], column_max(tile_max[i]) * scale[i]);
#pragma unroll
    for (int block = 0; block < v_blocks; ++block)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[block][e] *= factor[e % 2];
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float reference = reference_of<FloatMath>(state[i].max);
#pragma unroll
    for (int block = 0; block < n; ++block)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& x = scores[block][2 * half + i];
        x = ex2_approx(fmaf(x, scale[i], -reference));
        state[i].sum += x;
      }
  }
}

// What a warp has of a part. Of 16 columns of V the lane has lane / 4 and the eighth after it, or, in pairs, the
// neighbours 2 * (lane / 4) and the next.
template <bool in_pairs, class Parts, int v_blocks>
MICA_DEVICE void store_columns(const Parts& parts, i32 part, const SoftmaxState<FloatMath> (&state)[2],
                               const float (&out)[v_blocks][4]) {
  const i32 lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const i32 r = part * Parts::kRows + lane % 4 * 2 + i;
    const float sum = column_sum(state[i].sum);
    if (lane < 4) {
      parts.states[2 * r] = state[i].max;
      parts.states[2 * r + 1] = sum;
    }
    float* const to = parts.out + r * Parts::kStride + lane / 4 * (in_pairs ? 2 : 1);
#pragma unroll
    for (int block = 0; block < v_blocks; ++block) {
      if constexpr (in_pairs) {
        *reinterpret_cast<float2*>(to + block * 16) = make_float2(out[block][i], out[block][2 + i]);
      } else {
        to[block * 16] = out[block][i];
        to[block * 16 + 8] = out[block][2 + i];
      }
    }
  }
}

}  // namespace mica
