// SPDX-License-Identifier: Apache-2.0
// The arithmetic that the templates of the core ask for, over plain numbers.
#pragma once

#include <cmath>

template <class T>
struct PlainMath {
  using V = T;
  static V set(float x) { return V(x); }
  static V add(V a, V b) { return a + b; }
  static V sub(V a, V b) { return a - b; }
  static V mul(V a, V b) { return a * b; }
  static V div(V a, V b) { return a / b; }
  static V mul_add(V a, V b, V c) { return std::fma(a, b, c); }
  static V max(V a, V b) { return a < b ? b : a; }
  static V abs(V a) { return std::fabs(a); }
  static V exp2(V a) { return std::exp2(a); }
  static V log2(V a) { return std::log2(a); }
  static V tanh(V a) { return std::tanh(a); }
  static V select_if_greater(V a, V b, V yes, V no) { return a > b ? yes : no; }
  static V select_if_equal(V a, V b, V yes, V no) { return a == b ? yes : no; }
};
