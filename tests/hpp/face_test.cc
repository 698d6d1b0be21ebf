// SPDX-License-Identifier: Apache-2.0
// The C++ face, used as a caller would: results against the formula, errors as exceptions, ownership.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "mica/mica.hpp"

namespace {

constexpr std::int64_t kBatch = 2, kRows = 5, kHeads = 3, kDim = 8;
constexpr std::size_t kElements = kBatch * kRows * kHeads * kDim;
const mica::Shape kShape{kBatch, kRows, kHeads, kDim};

std::vector<float> random_values(unsigned seed, std::size_t count = kElements) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(generator);
  return values;
}

std::size_t at(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t c) {
  return std::size_t(((b * kRows + i) * kHeads + h) * kDim + c);
}

// Row i of one head by the formula; keys [0, keys).
std::vector<double> exact_row(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                              std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t keys) {
  std::vector<double> o(kDim, 0.0);
  double sum = 0;
  for (std::int64_t j = 0; j < keys; ++j) {
    double product = 0;
    for (std::int64_t c = 0; c < kDim; ++c) product += double(q[at(b, i, h, c)]) * double(k[at(b, j, h, c)]);
    const double weight = std::exp(product / std::sqrt(double(kDim)));
    sum += weight;
    for (std::int64_t c = 0; c < kDim; ++c) o[std::size_t(c)] += weight * double(v[at(b, j, h, c)]);
  }
  for (double& x : o) x /= sum;
  return o;
}

struct Data {
  std::vector<float> q = random_values(1), k = random_values(2), v = random_values(3);
  std::vector<float> o = std::vector<float>(kElements, NAN);
  mica::Attention attention() {
    return {mica::tensor(std::as_const(q), kShape), mica::tensor(std::as_const(k), kShape),
            mica::tensor(std::as_const(v), kShape), mica::tensor(o, kShape)};
  }
  void expect_exact(bool causal) const {
    for (std::int64_t b = 0; b < kBatch; ++b)
      for (std::int64_t i = 0; i < kRows; ++i)
        for (std::int64_t h = 0; h < kHeads; ++h) {
          const std::vector<double> exact = exact_row(q, k, v, b, i, h, causal ? i + 1 : kRows);
          for (std::int64_t c = 0; c < kDim; ++c) EXPECT_NEAR(o[at(b, i, h, c)], exact[std::size_t(c)], 1e-5);
        }
  }
};

TEST(Face, OneCall) {
  Data data;
  data.attention().forward();
  data.expect_exact(false);
}

TEST(Face, OptionsChain) {
  Data data;
  data.attention().causal().splits(1).deterministic().forward();
  data.expect_exact(true);
}

TEST(Face, ChunksAndTrees) {
  Data data;
  data.attention().causal().chunk(kRows).forward();  // one chunk: causal alone
  data.expect_exact(true);
  data.attention().chunk(1, MICA_DIAGONAL_BOTTOM_RIGHT).forward();  // a row sees its own key, whose value it gets
  for (std::size_t n = 0; n < kElements; ++n) EXPECT_NEAR(data.o[n], data.v[n], 1e-6);
  // A window that names no diagonal keeps the one that was named.
  data.attention().chunk(kRows, MICA_DIAGONAL_TOP_LEFT).window(MICA_UNLIMITED, 0).forward();
  data.expect_exact(true);
  std::vector<unsigned char> tree(std::size_t(kRows * kRows), 0);  // below the diagonal, as causal
  for (std::int64_t i = 0; i < kRows; ++i)
    for (std::int64_t j = 0; j <= i; ++j) tree[std::size_t(i * kRows + j)] = 1;
  const mica_tensor layout = mica::layout(MICA_BOOL, {1, 1, kRows, kRows});
  data.attention().tree_mask(mica::ConstTensor(tree.data(), layout)).forward();
  data.expect_exact(true);
  // A tree of no keys hides none.
  data.attention().tree_mask(mica::ConstTensor(tree.data(), mica::layout(MICA_BOOL, {1, 1, kRows, 0}))).forward();
  data.expect_exact(false);
}

TEST(Face, PrefixOfTheBatch) {
  Data data;
  // The keys of the first sequence before those of each: twice the same for the first, which then changes nothing.
  const mica::Shape prefix{1, kRows, kHeads, kDim};
  data.attention()
      .prefix(mica::tensor(std::as_const(data.k).data(), prefix), mica::tensor(std::as_const(data.v).data(), prefix))
      .forward();
  for (std::int64_t i = 0; i < kRows; ++i)
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const std::vector<double> exact = exact_row(data.q, data.k, data.v, 0, i, h, kRows);
      for (std::int64_t c = 0; c < kDim; ++c) EXPECT_NEAR(data.o[at(0, i, h, c)], exact[std::size_t(c)], 1e-5);
    }
}

TEST(Face, QueryOfValues) {
  Data data;
  const std::vector<float> qv = data.q;
  data.k.assign(kElements, 0.0f);
  data.attention().query_of_values(mica::tensor(qv, kShape)).scale(1.0f / std::sqrt(float(kDim))).forward();
  data.k = data.v;  // q.0 + qv.v
  data.expect_exact(false);
}

TEST(Face, PlanIsReusedAndMoves) {
  Data data;
  const mica::Attention attention = data.attention();
  mica::Plan first = attention.plan();
  const mica::Plan plan = std::move(first);
  EXPECT_EQ(first.get(), nullptr);
  EXPECT_NE(std::string(plan.kernel()), "");
  EXPECT_GE(plan.splits(), 1);
  const mica::Workspace workspace(plan.workspace_bytes());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(workspace.data()) % 64, 0u);
  for (int run = 0; run < 2; ++run) {
    data.o.assign(kElements, NAN);
    plan.execute(attention.bindings, workspace);
    data.expect_exact(false);
  }
  static_assert(!std::is_copy_constructible_v<mica::Plan> && std::is_nothrow_move_constructible_v<mica::Plan>);
  static_assert(!std::is_copy_constructible_v<mica::Workspace> && std::is_move_constructible_v<mica::Workspace>);
}

// One object serves both passes. The gradient of sum(o * d_o) is compared with a difference quotient.
TEST(Face, Backward) {
  Data data;
  const std::vector<float> d_o = random_values(4);
  std::vector<float> lse(kBatch * kHeads * kRows), dq(kElements, NAN), dk(kElements, NAN), dv(kElements, NAN);
  const mica::Attention attention = data.attention()
                                        .causal()
                                        .lse(mica::tensor(lse, {kBatch, kHeads, kRows}))
                                        .gradients(mica::tensor(d_o, kShape), mica::tensor(dq, kShape),
                                                   mica::tensor(dk, kShape), mica::tensor(dv, kShape));
  attention.forward();
  attention.backward();

  const auto loss = [&] {
    attention.forward();
    double sum = 0;
    for (std::size_t e = 0; e < kElements; ++e) sum += double(data.o[e]) * double(d_o[e]);
    return sum;
  };
  struct Pair {
    std::vector<float>& input;
    const std::vector<float>& gradient;
  };
  constexpr float kStep = 1e-2f;
  for (const Pair& pair : {Pair{data.q, dq}, Pair{data.k, dk}, Pair{data.v, dv}})
    for (std::size_t e = 0; e < kElements; e += 37) {
      const float kept = pair.input[e];
      pair.input[e] = kept + kStep;
      const double above = loss();
      pair.input[e] = kept - kStep;
      const double below = loss();
      pair.input[e] = kept;
      EXPECT_NEAR(pair.gradient[e], (above - below) / (2 * double(kStep)), 2e-3) << "element " << e;
    }
}

TEST(Face, ErrorsNameTheField) {
  Data data;
  try {
    mica::Attention attention = data.attention();
    attention.description.k.shape[3] = kDim + 1;
    attention.forward();
    FAIL() << "want an exception";
  } catch (const mica::Error& error) {
    EXPECT_EQ(error.status(), MICA_ERROR_INVALID);
    EXPECT_STREQ(error.what(), "k.shape[3] is 9, want 8 (= q.shape[3])");
  }
  EXPECT_THROW(mica::tensor(data.q, {kBatch, kRows, kHeads, kDim + 1}), mica::Error);  // the vector is too short
  const std::vector<std::int32_t> begins = {0, 5, 10};
  EXPECT_THROW(data.attention().packed(begins, std::span(begins).first(2)), mica::Error);  // of one sequence less
}

// The library gets an address alone, and would read past the end of a span that is too short.
TEST(Face, SpansHaveAnEntryForEachSequence) {
  Data data;
  const std::vector<std::int32_t> lengths = {5, 5, 5};
  const std::span<const std::int32_t> all = lengths, one = all.first(1), both = all.first(2);
  using Give = mica::Attention& (mica::Attention::*)(std::span<const std::int32_t>);
  const std::pair<Give, const char*> vectors[] = {{&mica::Attention::seqused_q, "seqused_q"},
                                                  {&mica::Attention::seqused_k, "seqused_k"},
                                                  {&mica::Attention::cache_batch_idx, "cache_batch_idx"},
                                                  {&mica::Attention::cache_leftpad, "cache_leftpad"}};
  for (const auto& [give, name] : vectors)
    for (const auto& wrong : {one, all}) {
      mica::Attention attention = data.attention();
      try {
        (attention.*give)(wrong).plan();
        ADD_FAILURE() << name << " of " << wrong.size() << " entries was taken";
      } catch (const mica::Error& error) {
        EXPECT_EQ(error.status(), MICA_ERROR_INVALID);
        EXPECT_EQ(error.what(), name + (" has " + std::to_string(wrong.size())) + " entries, want 2 (the sequences)");
      }
    }
  EXPECT_NO_THROW(data.attention().seqused_q(both).seqused_k(both).forward());
  // Of packed sequences, however late their number is known.
  const std::vector<std::int32_t> begins = {0, 5, 5, 10}, used = {5, 0, 5};
  const mica::Shape shape{1, kBatch * kRows, kHeads, kDim};
  const auto packed = [&] {
    return mica::Attention(mica::tensor(data.q, shape), mica::tensor(data.k, shape), mica::tensor(data.v, shape),
                           mica::tensor(data.o, shape));
  };
  EXPECT_NO_THROW(packed().seqused_k(used).packed(begins, begins).plan());
  EXPECT_THROW(packed().seqused_k(both).packed(begins, begins).plan(), mica::Error);
}

TEST(Face, ViewsKnowTheirLayout) {
  alignas(64) float memory[64] = {};
  const mica::Tensor dense = mica::tensor(memory + 4, {2, 3, 1, 4});
  EXPECT_EQ(dense.layout().dtype, MICA_FP32);
  EXPECT_EQ(dense.layout().alignment, 16);
  EXPECT_EQ(dense.layout().stride[0], 12);
  EXPECT_EQ(dense.layout().stride[3], 1);
  const float* read_only = memory;
  const mica::ConstTensor strided = mica::tensor(read_only, {2, 3}, {1, 2, 0, 0});
  EXPECT_EQ(strided.layout().alignment, 64);
  EXPECT_EQ(strided.layout().stride[1], 2);
  EXPECT_EQ(strided.layout().shape[3], 1);
  static_assert(!std::is_convertible_v<mica::ConstTensor, mica::Tensor>);
  EXPECT_EQ(mica::tensor(static_cast<mica::bf16*>(nullptr), {1}).layout().dtype, MICA_BF16);
}

TEST(Face, PackedSequencesEqualSeparateOnes) {
  Data data;
  const std::vector<std::int32_t> begins = {0, 5, 5, 10};  // the second sequence is empty
  std::vector<float> packed(kElements, NAN);
  const mica::Shape shape{1, kBatch * kRows, kHeads, kDim};
  mica::Attention(mica::tensor(data.q, shape), mica::tensor(data.k, shape), mica::tensor(data.v, shape),
                  mica::tensor(packed, shape))
      .packed(begins, begins)
      .forward();
  data.attention().forward();
  for (std::size_t e = 0; e < kElements; ++e) EXPECT_NEAR(packed[e], data.o[e], 1e-6);
}

TEST(Face, ListsKernels) {
  Data data;
  const mica::Attention attention = data.attention();
  const std::vector<mica::KernelAnswer> answers = mica::list_kernels(attention.description);
  const auto first = std::find_if(answers.begin(), answers.end(), [](const auto& a) { return a.why_not.empty(); });
  ASSERT_NE(first, answers.end());
  EXPECT_EQ(first->kernel, attention.plan().kernel());
}

TEST(Face, TheCallersThreads) {
  // Large enough that more than one thread is worth it.
  const mica::Shape shape{2, 300, 4, 64};
  const std::vector<float> q = random_values(1, 2 * 300 * 4 * 64);
  std::vector<float> expected(q.size(), NAN), o(q.size(), NAN);
  const auto attention = [&](std::vector<float>& out) {
    const auto in = mica::tensor(q, shape);
    return mica::Attention{in, in, in, mica::tensor(out, shape)};
  };
  attention(expected).forward();
  std::int64_t most = 0;
  auto run = [&most](std::int64_t count, auto task) {
    most = std::max(most, count);
    std::vector<std::thread> threads;
    for (std::int64_t i = 1; i < count; ++i) threads.emplace_back(task, i);
    task(std::int64_t(0));
    for (std::thread& thread : threads) thread.join();
  };
  mica_set_num_threads(3);
  mica::set_thread_pool(run);
  EXPECT_STREQ(mica_threads_from(), "the caller's pool");
  attention(o).forward();
  mica::reset_thread_pool();
  mica_set_num_threads(0);
  EXPECT_GT(most, 1);
  EXPECT_LE(most, 3);
  EXPECT_EQ(o, expected);
}

}  // namespace
