// SPDX-License-Identifier: Apache-2.0
// The online softmax against sums written out in full, in double and in float.
#include "core/softmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "tests/core/arithmetic.h"

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

template <class T>
class Softmax : public testing::Test {
 protected:
  using M = PlainMath<T>;
  using State = mica::SoftmaxState<M>;
  static constexpr double kTolerance = sizeof(T) == 8 ? 1e-13 : 3e-6;

  // A partial result with a value accumulated under it, as attention does: value = sum of weight * index.
  struct Part {
    State state = mica::empty_state<M>();
    T value = 0;
  };

  static Part part_of(const std::vector<double>& scores) {
    Part part;
    for (size_t j = 0; j < scores.size(); ++j) {
      part.value *= mica::absorb<M>(part.state, T(scores[j]));
      const T weight = std::exp2(T(scores[j]) - mica::reference_of<M>(part.state.max));
      part.state.sum += weight;
      part.value += weight * T(1 + j % 5);
    }
    return part;
  }

  static Part join(const Part& a, const Part& b) {
    const mica::Merge<M> m = mica::merge<M>(a.state, b.state);
    return Part{m.state, a.value * m.factor_a + b.value * m.factor_b};
  }

  static void expect_close(double got, double want) {
    if (std::isinf(want) || std::isinf(got))
      EXPECT_EQ(got, want);
    else
      EXPECT_NEAR(got, want, kTolerance * std::max(1.0, std::fabs(want)));
  }

  static void expect_same(const Part& a, const Part& b) {
    EXPECT_EQ(a.state.max, b.state.max);
    expect_close(mica::lse_log2<M>(a.state), mica::lse_log2<M>(b.state));
    expect_close(a.value * mica::normalizer<M>(a.state), b.value * mica::normalizer<M>(b.state));
  }

  // Scores as they come: ordinary, large, invisible, or none at all.
  static std::vector<double> random_scores(std::mt19937& random) {
    std::vector<double> scores(random() % 6);
    const int kind = int(random() % 4);
    for (double& s : scores) {
      s = float(std::normal_distribution<double>(0, kind == 0 ? 1 : kind == 1 ? 30 : 300)(random));
      if (kind == 3 || random() % 4 == 0) s = -kInf;
    }
    return scores;
  }

  static double lse_in_full(const std::vector<double>& scores) {
    double max = -kInf, sum = 0;
    for (const double s : scores) max = std::max(max, s);
    if (max == -kInf) return -kInf;
    for (const double s : scores) sum += std::exp2(s - max);
    return max + std::log2(sum);
  }

  static double value_in_full(const std::vector<double>& scores) {
    const double lse = lse_in_full(scores);
    double value = 0;
    for (size_t j = 0; j < scores.size(); ++j)
      if (lse > -kInf) value += std::exp2(scores[j] - lse) * double(1 + j % 5);
    return value;
  }
};

using Values = testing::Types<float, double>;
TYPED_TEST_SUITE(Softmax, Values);

TYPED_TEST(Softmax, AbsorbingKeyByKeyIsTheSoftmax) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 20000; ++trial) {
    const std::vector<double> scores = this->random_scores(random);
    const auto part = this->part_of(scores);
    this->expect_close(mica::lse_log2<PlainMath<TypeParam>>(part.state), this->lse_in_full(scores));
    this->expect_close(part.value * mica::normalizer<PlainMath<TypeParam>>(part.state), this->value_in_full(scores));
    if (this->HasFailure()) FAIL() << "trial " << trial;
  }
}

// Raising the maximum lazily gives the same softmax, and no probability passes the limit.
TYPED_TEST(Softmax, AbsorbingLazilyIsTheSoftmax) {
  using M = PlainMath<TypeParam>;
  std::mt19937 random(11);
  int kept = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const std::vector<double> scores = this->random_scores(random);
    typename TestFixture::Part part;
    for (size_t j = 0; j < scores.size(); ++j) {
      const TypeParam factor = mica::absorb_lazily<M>(part.state, TypeParam(scores[j]));
      kept += factor == 1;
      part.value *= factor;
      const TypeParam weight = std::exp2(TypeParam(scores[j]) - mica::reference_of<M>(part.state.max));
      ASSERT_LE(weight, TypeParam(mica::kLazyLimit));
      part.state.sum += weight;
      part.value += weight * TypeParam(1 + j % 5);
    }
    this->expect_close(mica::lse_log2<M>(part.state), this->lse_in_full(scores));
    this->expect_close(part.value * mica::normalizer<M>(part.state), this->value_in_full(scores));
    if (this->HasFailure()) FAIL() << "trial " << trial;
  }
  EXPECT_GT(kept, 1000);  // that it is lazy at all
}

// (a + b) + c = a + (b + c) = (c + a) + b, empty parts among them.
TYPED_TEST(Softmax, MergeIsAssociativeAndCommutative) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 20000; ++trial) {
    const auto a = this->part_of(this->random_scores(random));
    const auto b = this->part_of(this->random_scores(random));
    const auto c = this->part_of(this->random_scores(random));
    const auto left = this->join(this->join(a, b), c);
    this->expect_same(left, this->join(a, this->join(b, c)));
    this->expect_same(left, this->join(this->join(c, a), b));
    if (this->HasFailure()) FAIL() << "trial " << trial;
  }
}

TYPED_TEST(Softmax, MergeOfPartsIsTheWhole) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 20000; ++trial) {
    // Five scores a part, so that the weights 1 + j % 5 of the parts continue each other.
    std::vector<double> scores;
    typename TestFixture::Part joined;
    for (int part = 0; part < 4; ++part) {
      std::vector<double> five = this->random_scores(random);
      five.resize(5, -kInf);
      joined = this->join(joined, this->part_of(five));
      scores.insert(scores.end(), five.begin(), five.end());
    }
    this->expect_same(joined, this->part_of(scores));
    this->expect_close(mica::lse_log2<PlainMath<TypeParam>>(joined.state), this->lse_in_full(scores));
    if (this->HasFailure()) FAIL() << "trial " << trial;
  }
}

// Absorbing a tile is merging with the tile's own partial result.
TYPED_TEST(Softmax, AbsorbEqualsMerge) {
  using M = PlainMath<TypeParam>;
  std::mt19937 random(6);
  for (int trial = 0; trial < 20000; ++trial) {
    const auto before = this->part_of(this->random_scores(random));
    const std::vector<double> tile = this->random_scores(random);
    TypeParam tile_max = -std::numeric_limits<TypeParam>::infinity();
    for (const double s : tile) tile_max = std::max(tile_max, TypeParam(s));
    auto absorbed = before;
    absorbed.value *= mica::absorb<M>(absorbed.state, tile_max);
    for (size_t j = 0; j < tile.size(); ++j) {
      const TypeParam weight = std::exp2(TypeParam(tile[j]) - mica::reference_of<M>(absorbed.state.max));
      absorbed.state.sum += weight;
      absorbed.value += weight * TypeParam(1 + j % 5);
    }
    this->expect_same(absorbed, this->join(before, this->part_of(tile)));
    if (this->HasFailure()) FAIL() << "trial " << trial;
  }
}

TYPED_TEST(Softmax, EmptyRows) {
  using M = PlainMath<TypeParam>;
  const auto empty = mica::empty_state<M>();
  EXPECT_EQ(mica::normalizer<M>(empty), 0);
  EXPECT_EQ(mica::lse_log2<M>(empty), -kInf);
  EXPECT_EQ(mica::reference_of<M>(empty.max), 0);
  const mica::Merge<M> both = mica::merge<M>(empty, empty);
  EXPECT_EQ(both.state.max, -kInf);
  EXPECT_EQ(both.state.sum, 0);
  EXPECT_EQ(both.factor_a, 0);
  EXPECT_EQ(both.factor_b, 0);
  auto state = empty;
  EXPECT_EQ(mica::absorb<M>(state, TypeParam(-kInf)), 0);
  EXPECT_EQ(state.sum, 0);
}

TYPED_TEST(Softmax, SinksOnlyEnterTheSum) {
  using M = PlainMath<TypeParam>;
  // An empty row with a sink: LSE is the sink, the output stays 0.
  const mica::Merge<M> alone = mica::merge_sink<M>(mica::empty_state<M>(), TypeParam(-3.5));
  EXPECT_EQ(mica::lse_log2<M>(alone.state), TypeParam(-3.5));
  EXPECT_EQ(alone.factor_a, 0);
  // A sink of -inf is none.
  const mica::Merge<M> none = mica::merge_sink<M>(mica::empty_state<M>(), TypeParam(-kInf));
  EXPECT_EQ(mica::lse_log2<M>(none.state), -kInf);
  EXPECT_EQ(mica::normalizer<M>(none.state), 0);
  std::mt19937 random(7);
  for (int trial = 0; trial < 20000; ++trial) {
    const std::vector<double> scores = this->random_scores(random);
    const double sink = float(std::normal_distribution<double>(0, 20)(random));
    const auto part = this->part_of(scores);
    const mica::Merge<M> merged = mica::merge_sink<M>(part.state, TypeParam(sink));
    std::vector<double> with_sink = scores;
    with_sink.push_back(sink);
    const double lse = this->lse_in_full(with_sink);
    double value = 0;
    for (size_t j = 0; j < scores.size(); ++j) value += std::exp2(scores[j] - lse) * double(1 + j % 5);
    this->expect_close(mica::lse_log2<M>(merged.state), lse);
    this->expect_close(part.value * merged.factor_a * mica::normalizer<M>(merged.state), value);
    if (this->HasFailure()) FAIL() << "trial " << trial;
  }
}

// A finished part is the state {lse, 1}: ring attention joins by LSE alone.
TYPED_TEST(Softmax, FinishedPartsJoinByTheirLse) {
  using M = PlainMath<TypeParam>;
  std::mt19937 random(8);
  for (int trial = 0; trial < 20000; ++trial) {
    auto finish = [](auto part) {
      part.value *= mica::normalizer<M>(part.state);
      part.state = {mica::lse_log2<M>(part.state), TypeParam(1)};
      return part;
    };
    const auto a = this->part_of(this->random_scores(random)), b = this->part_of(this->random_scores(random));
    const auto whole = this->join(a, b), joined = this->join(finish(a), finish(b));
    this->expect_close(mica::lse_log2<M>(joined.state), mica::lse_log2<M>(whole.state));
    this->expect_close(joined.value * mica::normalizer<M>(joined.state),
                       whole.value * mica::normalizer<M>(whole.state));
    if (this->HasFailure()) FAIL() << "trial " << trial;
  }
}

TYPED_TEST(Softmax, BackwardTakesEitherInfinityAsEmpty) {
  using M = PlainMath<TypeParam>;
  for (const double lse : {-kInf, kInf}) {
    const TypeParam reference = mica::backward_reference<M>(TypeParam(lse));
    for (const double score : {-kInf, -1e30, 0.0, 1e30}) EXPECT_EQ(std::exp2(TypeParam(score) - reference), 0);
  }
  for (const double lse : {-80.0, 0.0, 1.5, 700.0})
    this->expect_close(mica::backward_reference<M>(TypeParam(lse)), lse * double(mica::kLog2E));
}

}  // namespace
