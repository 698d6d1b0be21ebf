// SPDX-License-Identifier: Apache-2.0
// From a product q.k to a score: scale, softcap, ALiBi, additive bias, in this order; value and derivative.
// Scores are kept times log2(e) ("log2 units"), so that the softmax is exp2 and one multiplication is saved.
//
// M is the arithmetic: float on a GPU, a Highway vector on the CPU, double in a test. It gives a type V and static
// functions set(float), add, sub, mul, mul_add(a, b, c) = a * b + c, max, abs, exp2, log2, tanh, div, and
// select_if_equal(a, b, yes, no).
#pragma once

#include "core/problem.h"

namespace mica {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;

// Softcap for products of at most sqrt(square_limit), as a polynomial: additions and multiplications are plentiful on a
// GPU, and what tanh is made of otherwise is not. Its error is far below what the element types of tensor cores leave.
template <int terms>
struct CapPolynomial {
  float square_limit;
  float c[terms];  // score = product (c0 + y (c1 + ...)), y = product^2 - square_limit: negative where it holds
};

// Uniform over a call.
struct Score {
  float scale;             // d score / d product without softcap
  float scale_log2;        // scale * log2(e)
  float inverse_cap;       // scale / softcap
  float cap_log2;          // softcap * log2(e); 0: no softcap
  CapPolynomial<2> tiny;   // relative error 8.4e-6, up to 0.15 of the cap
  CapPolynomial<3> small;  // 6.3e-6, up to 0.4
};

}  // namespace mica

namespace MICA_NS {

using mica::CapPolynomial;
using mica::kLn2;
using mica::kLog2E;
using mica::Score;

// Coefficients that underflow would be missed: no product is below a square_limit of -1.
MICA_HD float square_limit(float of_cap, float inverse_cap) {
  return inverse_cap > 1e-5f ? of_cap * of_cap / (inverse_cap * inverse_cap) : -1.0f;
}
MICA_HD CapPolynomial<2> tiny_cap(float inverse_cap, float cap_log2) {
  constexpr float kOfCap = 0.15f, kLimit = kOfCap * kOfCap;
  const float y = inverse_cap * inverse_cap, c0 = cap_log2 * inverse_cap;
  constexpr float a0 = 0.99999165f, a1 = -0.33035765f;  // in powers of (product * inverse_cap)^2
  return {square_limit(kOfCap, inverse_cap), {c0 * (a0 + kLimit * a1), c0 * y * a1}};
}
MICA_HD CapPolynomial<3> small_cap(float inverse_cap, float cap_log2) {
  constexpr float kOfCap = 0.4f, kLimit = kOfCap * kOfCap;
  const float y = inverse_cap * inverse_cap, c0 = cap_log2 * inverse_cap;
  constexpr float a0 = 0.99999375f, a1 = -0.33262580f, a2 = 0.12127787f;
  return {square_limit(kOfCap, inverse_cap),
          {c0 * (a0 + kLimit * (a1 + kLimit * a2)), c0 * y * (a1 + 2 * kLimit * a2), c0 * y * y * a2}};
}

MICA_HD Score score_of(const mica::Problem& p) {
  Score s;
  s.scale = p.scale;
  s.scale_log2 = p.scale * kLog2E;
  s.inverse_cap = p.softcap > 0 ? p.scale / p.softcap : 0.0f;
  s.cap_log2 = p.softcap * kLog2E;
  s.tiny = tiny_cap(s.inverse_cap, s.cap_log2);
  s.small = small_cap(s.inverse_cap, s.cap_log2);
  return s;
}

// Scale and softcap, which is not 0.
template <class M>
MICA_HD typename M::V capped_score(const Score& s, typename M::V product) {
  return M::mul(M::tanh(M::mul(product, M::set(s.inverse_cap))), M::set(s.cap_log2));
}
// product^2 - square_limit.
template <class M, int terms>
MICA_HD typename M::V beyond_limit(const CapPolynomial<terms>& s, typename M::V product) {
  return M::mul_add(product, product, M::set(-s.square_limit));
}
// The same as capped_score where `beyond`, which is beyond_limit(s, product), is negative.
template <class M, int terms>
MICA_HD typename M::V capped_score(const CapPolynomial<terms>& s, typename M::V product, typename M::V beyond) {
  typename M::V factor = M::set(s.c[terms - 1]);
  for (int i = terms - 2; i >= 0; --i) factor = M::mul_add(beyond, factor, M::set(s.c[i]));
  return M::mul(product, factor);
}
// The same, with or without softcap.
template <class M>
MICA_HD typename M::V score_of_product(const Score& s, typename M::V product) {
  return s.cap_log2 == 0 ? M::mul(product, M::set(s.scale_log2)) : capped_score<M>(s, product);
}

// d score / d product, the score in natural units.
template <class M>
MICA_HD typename M::V score_derivative(const Score& s, typename M::V product) {
  if (s.cap_log2 == 0) return M::set(s.scale);
  const typename M::V t = M::tanh(M::mul(product, M::set(s.inverse_cap)));
  return M::mul(M::set(s.scale), M::sub(M::set(1.0f), M::mul(t, t)));
}

// The same from the score itself (before ALiBi and bias), relative to its value without softcap: 1 - tanh^2.
template <class M>
MICA_HD typename M::V capped_slope(const Score& s, typename M::V score_log2) {
  const typename M::V t = M::mul(score_log2, M::set(1.0f / s.cap_log2));
  return M::sub(M::set(1.0f), M::mul(t, t));
}

// distance = i + shift - j; slope_log2 = slope * log2(e).
template <class M>
MICA_HD typename M::V add_alibi(typename M::V score_log2, typename M::V slope_log2, typename M::V distance) {
  return M::sub(score_log2, M::mul(slope_log2, M::abs(distance)));
}

template <class M>
MICA_HD typename M::V add_bias(typename M::V score_log2, typename M::V bias) {
  return M::mul_add(bias, M::set(kLog2E), score_log2);
}

}  // namespace MICA_NS
