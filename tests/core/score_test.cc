// SPDX-License-Identifier: Apache-2.0
// Scores against the formula of mica.h, derivatives against finite differences.
#include "core/score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>

#include "tests/core/arithmetic.h"

namespace {

using M = PlainMath<double>;
const double kLog2E = std::log2(std::exp(1.0));

mica::Score make_score(float scale, float softcap) {
  mica::Problem p = {};
  p.scale = scale;
  p.softcap = softcap;
  return mica::score_of(p);
}

// Natural units.
double score_by_formula(double product, double scale, double softcap) {
  return softcap > 0 ? softcap * std::tanh(scale * product / softcap) : scale * product;
}

template <class Visit>
void for_every_score(Visit visit) {
  for (const float scale : {0.125f, 1.0f, -0.5f, 0.0416667f})
    for (const float softcap : {0.0f, 1.0f, 30.0f, 50.0f})
      for (double product = -400; product <= 400; product += 0.37) visit(scale, softcap, product);
}

TEST(Score, ScaleAndSoftcap) {
  for_every_score([](float scale, float softcap, double product) {
    const double want = score_by_formula(product, scale, softcap) * kLog2E;
    ASSERT_NEAR(mica::score_of_product<M>(make_score(scale, softcap), product), want, 1e-6 * (1 + std::fabs(want)));
  });
}

template <int terms>
void expect_polynomial(const mica::CapPolynomial<terms>& cap, float of_cap, double error, float scale, float softcap) {
  const double limit = of_cap * softcap / scale;
  ASSERT_NEAR(cap.square_limit, limit * limit, 1e-6 * limit * limit);
  for (int i = -100; i <= 100; ++i) {
    const double product = i * 0.01 * limit, beyond = mica::beyond_limit<M>(cap, product),
                 want = score_by_formula(product, scale, softcap) * kLog2E;
    if (std::abs(i) < 100) {
      ASSERT_LT(beyond, 0);
    }
    ASSERT_NEAR((mica::capped_score<M>(cap, product, beyond)), want, error * std::fabs(want))
        << scale << " " << softcap << " " << product;
  }
  EXPECT_GT(mica::beyond_limit<M>(cap, 1.01 * limit), 0);
}
TEST(Score, SmallSoftcapIsAPolynomial) {
  for (const float scale : {0.125f, 1.0f, 0.0416667f})
    for (const float softcap : {1.0f, 30.0f, 50.0f}) {
      expect_polynomial(make_score(scale, softcap).tiny, 0.15f, 8.5e-6, scale, softcap);
      expect_polynomial(make_score(scale, softcap).small, 0.4f, 6.5e-6, scale, softcap);
    }
  for (const float scale : {-0.125f, 1e-6f}) {
    EXPECT_GT(mica::beyond_limit<M>(make_score(scale, 30).tiny, 0.0), 0) << scale;
    EXPECT_GT(mica::beyond_limit<M>(make_score(scale, 30).small, 0.0), 0) << scale;
  }
}

TEST(Score, DerivativeIsTheSlope) {
  for_every_score([](float scale, float softcap, double product) {
    const double step = 1e-4;
    const double slope =
        (score_by_formula(product + step, scale, softcap) - score_by_formula(product - step, scale, softcap)) /
        (2 * step);
    ASSERT_NEAR(mica::score_derivative<M>(make_score(scale, softcap), product), slope, 1e-6 * (1 + std::fabs(slope)))
        << "scale " << scale << " softcap " << softcap << " product " << product;
  });
}

// The value and the derivative that the backends compute in float.
TEST(Score, FloatFollowsDouble) {
  using F = PlainMath<float>;
  for_every_score([](float scale, float softcap, double product) {
    const mica::Score s = make_score(scale, softcap);
    const double value = mica::score_of_product<M>(s, float(product)), slope = mica::score_derivative<M>(s, product);
    ASSERT_NEAR(mica::score_of_product<F>(s, float(product)), value, 2e-6 * (1 + std::fabs(value)));
    ASSERT_NEAR(mica::score_derivative<F>(s, float(product)), slope, 2e-6 * (1 + std::fabs(slope)));
  });
}

TEST(Score, AlibiFallsWithTheDistanceEitherWay) {
  for (int i = 0; i < 20; ++i)
    for (int j = 0; j < 20; ++j)
      for (int shift = -5; shift <= 5; ++shift) {
        const double slope = 0.25, score = 1.5;
        const double want = score - slope * kLog2E * std::abs(i + shift - j);
        ASSERT_NEAR(mica::add_alibi<M>(score, slope * kLog2E, i + shift - j), want, 1e-12);
      }
}

TEST(Score, BiasIsInNaturalUnits) {
  for (double bias = -10; bias <= 10; bias += 0.25)
    EXPECT_NEAR(mica::add_bias<M>(0.75, bias), 0.75 + bias * kLog2E, 1e-6);
  EXPECT_EQ(mica::add_bias<M>(3.0, -INFINITY), -INFINITY);
}

}  // namespace
