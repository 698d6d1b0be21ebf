// SPDX-License-Identifier: Apache-2.0
// What a consumer of Hopper's forward kernels does with its 64 queries, whatever their element type: their scores, the
// largest of a row, its exponentials. A lane has keys 2t and 2t + 1 of every eight, in the rows l / 4 (half 0) and
// 8 + l / 4 (half 1) of its warp.
#pragma once

#include "device/attend.cuh"
#include "device/mma.cuh"
#include "device/panel_tile.cuh"
#include "device/wgmma.cuh"

namespace mica {

// scores = Q K^T of one key tile, begun: row_bytes of each row, both in panels.
template <class Element, class QTile, class KTile, int row_bytes, int n>
MICA_DEVICE void begin_scores(float (&scores)[n][4], u64 q, u64 k) {
  wgmma_hold(scores);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < row_bytes / 32; ++i)
    Wgmma<Element, n * 8>::add(scores, advance(q, i / 4 * QTile::kPanelBytes + i % 4 * 32),
                               advance(k, i / 4 * KTile::kPanelBytes + i % 4 * 32), i > 0);
  wgmma_commit();
}

// This lane's largest score of a row.
template <int n>
MICA_DEVICE float lane_max(const float (&scores)[n][4], int half) {
  float largest[2] = {-infinity(), -infinity()};
#pragma unroll
  for (int i = 0; i < n; ++i)
    largest[i % 2] = fmaxf(largest[i % 2], fmaxf(scores[i][2 * half], scores[i][2 * half + 1]));
  return fmaxf(largest[0], largest[1]);
}

// The same as the float's bits if it is positive, else something negative. As integers floats compare right as long as
// one of them is positive, and the GPU takes three integers at a time where it takes two floats.
template <int n>
MICA_DEVICE i32 lane_max_bits(const float (&scores)[n][4], int half) {
  constexpr i32 kLeast = -2147483647 - 1;
  i32 largest[2] = {kLeast, kLeast};
#pragma unroll
  for (int i = 0; i < n; ++i)
    largest[i % 2] = max_of(max_of(largest[i % 2], __builtin_bit_cast(i32, scores[i][2 * half])),
                            __builtin_bit_cast(i32, scores[i][2 * half + 1]));
  return max_of(largest[0], largest[1]);
}

// The largest of the four lanes of a row.
MICA_DEVICE i32 quad_max_bits(i32 bits) {
  bits = max_of(bits, __shfl_xor_sync(0xffffffffu, bits, 1));
  return max_of(bits, __shfl_xor_sync(0xffffffffu, bits, 2));
}

// exp2(exponent(x)) of one row in place; returns this lane's part of their sum. Several sums, since each addition
// waits for the one before.
template <int n, class Exponent>
MICA_DEVICE float exponentials(float (&scores)[n][4], int half, Exponent exponent) {
  constexpr int kSums = 4;
  float sum[kSums] = {}, total = 0;
#pragma unroll
  for (int i = 0; i < 2 * n; ++i) {
    float& x = scores[i / 2][2 * half + i % 2];
    x = ex2_approx(exponent(x));
    sum[i % kSums] += x;
  }
#pragma unroll
  for (int i = 0; i < kSums; ++i) total += sum[i];
  return total;
}

// By what a lane's two rows of O are multiplied when a row's maximum grows.
struct Factors {
  float of_row[2];
};
template <int n>
MICA_DEVICE void rescale(float (&out)[n][4], const Factors& factors) {
  if (!__any_sync(0xffffffffu, factors.of_row[0] != 1.0f || factors.of_row[1] != 1.0f)) return;
#pragma unroll
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e) out[i][e] *= factors.of_row[e / 2];
}

// P in the element type, as the A operand of n / 2 products of 16 keys.
template <class Element, int n>
MICA_DEVICE void round_to_operand(u32 (&probabilities)[n / 2][4], const float (&scores)[n][4]) {
#pragma unroll
  for (int i = 0; i < n / 2; ++i) pack_a<Element>(probabilities[i], scores[2 * i], scores[2 * i + 1]);
}

// Rows past the queries in use were made of whatever lies there, and are written as zeros. row_begin: the warp's first.
template <int n>
MICA_DEVICE void clear_unused(float (&out)[n][4], i32 row_begin, i32 len_q) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (row_begin + half * 8 + i32(threadIdx.x) % 32 / 4 >= len_q)
#pragma unroll
      for (int i = 0; i < n; ++i) out[i][2 * half] = out[i][2 * half + 1] = 0.0f;
}

}  // namespace mica
