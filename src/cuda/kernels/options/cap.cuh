// SPDX-License-Identifier: Apache-2.0
// Softcap on the way from products to probabilities: what is subtracted before the exponential goes into the last
// operation of the polynomial, so that of each score softcap takes two operations more than a scale.
#pragma once

#include "core/score.h"
#include "device/attend.cuh"

namespace mica {

// The score of a product is product * factor; `beyond` is beyond_limit of the same polynomial.
template <int terms>
MICA_DEVICE float cap_factor(const CapPolynomial<terms>& s, float beyond) {
  float factor = s.c[terms - 1];
#pragma unroll
  for (int i = terms - 2; i >= 0; --i) factor = fmaf(beyond, factor, s.c[i]);
  return factor;
}

// Softcap's slope relative to that without it, 1 - tanh^2, where the polynomial of two terms holds: a line,
// kCapSlope + beyond * cap_slope_step, with a relative error of 4.2e-5.
constexpr float kCapSlopeLine[2] = {0.99995814f, -0.98514780f};  // in powers of (product * inverse_cap)^2
constexpr float kCapSlope = kCapSlopeLine[0] + 0.15f * 0.15f * kCapSlopeLine[1];
MICA_DEVICE float cap_slope_step(const Score& score) {
  return kCapSlopeLine[1] * score.inverse_cap * score.inverse_cap;
}

// exp2(softcap(product) + offset), and their sums, for a lane's products: those of two rows in each block. One branch
// for all of them; what becomes of a product depends on nothing but itself and the offset of its row.
template <int blocks>
MICA_DEVICE void capped_exponentials(float (&products)[blocks][4], const Score& score, const float (&offset)[2],
                                     float (&sum)[2]) {
  using Math = FloatMath;
  float largest[2] = {}, sums[2][2] = {};  // two, since each operation waits for the one before
#pragma unroll
  for (int i = 0; i < 4 * blocks; ++i) largest[i % 2] = fmaxf(largest[i % 2], fabsf(products[i / 4][i % 4]));
  const float most = fmaxf(largest[0], largest[1]);
  const auto weigh = [&](int i, float exponent) {
    products[i / 4][i % 4] = ex2_approx(exponent);
    sums[i / 2 % 2][i % 2] += products[i / 4][i % 4];
  };
  if (__all_sync(0xffffffffu, beyond_limit<Math>(score.tiny, most) < 0)) {
#pragma unroll
    for (int i = 0; i < 4 * blocks; ++i) {
      const float x = products[i / 4][i % 4];
      weigh(i, fmaf(x, cap_factor(score.tiny, beyond_limit<Math>(score.tiny, x)), offset[i / 2 % 2]));
    }
  } else {
    // NOTE: choices, not branches: where lanes might part, the compiler no longer counts on uniform registers.
    const auto polynomial = [&](float x, float small_beyond) {
      const float tiny_beyond = beyond_limit<Math>(score.tiny, x);
      const float tiny = cap_factor(score.tiny, tiny_beyond), small = cap_factor(score.small, small_beyond);
      return tiny_beyond < 0 ? tiny : small;
    };
    if (__all_sync(0xffffffffu, beyond_limit<Math>(score.small, most) < 0)) {
#pragma unroll
      for (int i = 0; i < 4 * blocks; ++i) {
        float& x = products[i / 4][i % 4];
        x = fmaf(x, polynomial(x, beyond_limit<Math>(score.small, x)), offset[i / 2 % 2]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4 * blocks; ++i) {
        float& x = products[i / 4][i % 4];
        const float small_beyond = beyond_limit<Math>(score.small, x);
        const float small = fmaf(x, polynomial(x, small_beyond), offset[i / 2 % 2]);
        const float large = fmaf(Math::tanh(x * score.inverse_cap), score.cap_log2, offset[i / 2 % 2]);
        x = small_beyond < 0 ? small : large;
      }
    }
#pragma unroll
    for (int i = 0; i < 4 * blocks; ++i) weigh(i, products[i / 4][i % 4]);
  }
  sum[0] = sums[0][0] + sums[0][1];
  sum[1] = sums[1][0] + sums[1][1];
}

}  // namespace mica
