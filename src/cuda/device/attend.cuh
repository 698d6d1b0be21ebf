// SPDX-License-Identifier: Apache-2.0
// Mask, score and online softmax on a fragment of scores: the core's mathematics with float as the value.
#pragma once

#include "core/mask.h"
#include "core/score.h"
#include "core/softmax.h"
#include "device/ptx.cuh"

namespace mica {

struct FloatMath {
  using V = float;
  static constexpr bool kIsPrecise = false;
  static MICA_DEVICE float set(float x) { return x; }
  static MICA_DEVICE float add(float a, float b) { return a + b; }
  static MICA_DEVICE float sub(float a, float b) { return a - b; }
  static MICA_DEVICE float mul(float a, float b) { return a * b; }
  static MICA_DEVICE float div(float a, float b) { return __fdividef(a, b); }
  static MICA_DEVICE float mul_add(float a, float b, float c) { return fmaf(a, b, c); }
  static MICA_DEVICE float max(float a, float b) { return fmaxf(a, b); }
  static MICA_DEVICE float abs(float a) { return fabsf(a); }
  static MICA_DEVICE float exp2(float a) { return ex2_approx(a); }
  static MICA_DEVICE float log2(float a) { return lg2_approx(a); }
  // tanh.approx, with its relative error of 2^-11, is too coarse for the LSE: from exp2, absolute error 1e-7.
  static MICA_DEVICE float tanh(float a) { return 1.0f - div(2.0f, 1.0f + exp2(a * (2.0f * kLog2E))); }
  static MICA_DEVICE float select_if_equal(float a, float b, float yes, float no) { return a == b ? yes : no; }
  static MICA_DEVICE float select_if_greater(float a, float b, float yes, float no) { return a > b ? yes : no; }
};

// For kernels that compute in fp32: the approximations above that are too coarse for it, done right.
struct PreciseMath : FloatMath {
  static constexpr bool kIsPrecise = true;
  static MICA_DEVICE float div(float a, float b) { return a / b; }
  static MICA_DEVICE float tanh(float a) { return tanhf(a); }
};

// The arithmetic that an element type deserves.
template <class Element>
struct MathOf {
  using Math = FloatMath;
};
template <>
struct MathOf<float> {
  using Math = PreciseMath;
};

// The largest (or the sum) over the four lanes that share a row of an accumulator.
MICA_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
MICA_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

}  // namespace mica
