// SPDX-License-Identifier: Apache-2.0
// What conformance does not ask of backward: the bits do not depend on the number of threads, nor (batch_invariant) on
// the neighbours; rows that belong to no sequence stay untouched.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "mica/mica.h"

namespace {

using Floats = std::vector<float>;

mica_tensor dense(int64_t batch, int64_t rows, int64_t heads, int64_t dim) {
  return {MICA_FP32, 0, {batch, rows, heads, dim}, {rows * heads * dim, heads * dim, dim, 1}};
}

Floats random_floats(unsigned seed, size_t count) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats x(count);
  for (float& v : x) v = normal(random);
  return x;
}

// Packed sequences, causal, grouped heads; forward and then backward on the given number of threads.
struct Case {
  std::vector<int32_t> cu_seqlens;
  int64_t total;
  bool batch_invariant = false;
  Floats q, k, v, d_o;
};

struct Gradients {
  Floats dq, dk, dv;
};

constexpr int64_t kHeadsQ = 4, kHeadsK = 2, kDim = 40, kDimV = 24;
constexpr float kPoison = 12345;

Case make_case(std::vector<int32_t> cu_seqlens, int64_t total) {
  Case c;
  c.cu_seqlens = std::move(cu_seqlens);
  c.total = total;
  c.q = random_floats(1, size_t(total * kHeadsQ * kDim));
  c.k = random_floats(2, size_t(total * kHeadsK * kDim));
  c.v = random_floats(3, size_t(total * kHeadsK * kDimV));
  c.d_o = random_floats(4, size_t(total * kHeadsQ * kDimV));
  return c;
}

void execute(const mica_attention& a, mica_pass pass, mica_bindings x) {
  mica_plan* plan = nullptr;
  ASSERT_EQ(mica_plan_create(&a, pass, &plan), MICA_OK) << mica_last_error();
  std::vector<char> memory(mica_plan_workspace(plan) + 64);
  x.workspace = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  x.workspace_bytes = mica_plan_workspace(plan);
  EXPECT_EQ(mica_execute(plan, &x), MICA_OK) << mica_last_error();
  mica_plan_destroy(plan);
}

Gradients run(Case& c, int num_threads) {
  EXPECT_EQ(mica_set_num_threads(num_threads), MICA_OK);
  mica_attention a = MICA_ATTENTION_INIT;
  a.q = dense(1, c.total, kHeadsQ, kDim);
  a.k = dense(1, c.total, kHeadsK, kDim);
  a.v = dense(1, c.total, kHeadsK, kDimV);
  a.o = dense(1, c.total, kHeadsQ, kDimV);
  a.lse = {MICA_FP32, 0, {1, kHeadsQ, c.total, 1}, {kHeadsQ * c.total, c.total, 1, 1}};
  a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
  a.sequences.vectors = MICA_CU_SEQLENS_Q | MICA_CU_SEQLENS_K;
  a.sequences.batch = int64_t(c.cu_seqlens.size()) - 1;
  a.control.batch_invariant = c.batch_invariant;
  Floats o(size_t(c.total * kHeadsQ * kDimV)), lse(size_t(c.total * kHeadsQ));
  mica_bindings x = MICA_BINDINGS_INIT;
  x.q = c.q.data();
  x.k = c.k.data();
  x.v = c.v.data();
  x.o = o.data();
  x.lse = lse.data();
  x.cu_seqlens_q = x.cu_seqlens_k = c.cu_seqlens.data();
  execute(a, MICA_FORWARD, x);
  a.gradients.d_o = a.o;
  a.gradients.dq = a.q;
  a.gradients.dk = a.k;
  a.gradients.dv = a.v;
  Gradients g = {Floats(c.q.size(), kPoison), Floats(c.k.size(), kPoison), Floats(c.v.size(), kPoison)};
  x.d_o = c.d_o.data();
  x.dq = g.dq.data();
  x.dk = g.dk.data();
  x.dv = g.dv.data();
  execute(a, MICA_BACKWARD, x);
  mica_set_num_threads(0);
  return g;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Backward, BitsDoNotDependOnThreads) {
  Case c = make_case({0, 700, 701, 2100}, 2100);
  const Gradients one = run(c, 1);
  for (const int threads : {2, 3, 7}) {
    const Gradients many = run(c, threads);
    EXPECT_TRUE(same_bits(one.dq, many.dq)) << threads;
    EXPECT_TRUE(same_bits(one.dk, many.dk)) << threads;
    EXPECT_TRUE(same_bits(one.dv, many.dv)) << threads;
  }
}

TEST(Backward, BatchInvariantBitsDoNotDependOnNeighbours) {
  Case together = make_case({0, 300, 1700, 1800}, 1800);
  together.batch_invariant = true;
  const Gradients all = run(together, 2);
  Case alone = together;
  alone.cu_seqlens = {300, 1700};
  const Gradients one = run(alone, 2);
  const auto part = [](const Floats& x, int64_t row) { return Floats(x.begin() + 300 * row, x.begin() + 1700 * row); };
  EXPECT_TRUE(same_bits(part(all.dq, kHeadsQ * kDim), part(one.dq, kHeadsQ * kDim)));
  EXPECT_TRUE(same_bits(part(all.dk, kHeadsK * kDim), part(one.dk, kHeadsK * kDim)));
  EXPECT_TRUE(same_bits(part(all.dv, kHeadsK * kDimV), part(one.dv, kHeadsK * kDimV)));
}

TEST(Backward, RowsOutsideEverySequenceStayUntouched) {
  Case c = make_case({5, 90, 200}, 210);
  const Gradients g = run(c, 2);
  const auto check = [](const Floats& x, int64_t row) {
    for (size_t n = 0; n < x.size(); ++n) {
      const bool outside = n < size_t(5 * row) || n >= size_t(200 * row);
      ASSERT_EQ(x[n] == kPoison, outside) << n;
    }
  };
  check(g.dq, kHeadsQ * kDim);
  check(g.dk, kHeadsK * kDim);
  check(g.dv, kHeadsK * kDimV);
}

// The accumulators of dQ, one for each chunk of the keys, must not grow past the tensors, however few key heads there
// are: the tensors and the workspace of a long backward are within three times the tensors.
TEST(Backward, MemoryStaysWithinThreeTimesTheTensors) {
  constexpr int64_t kLength = 32768;
  const struct {
    int64_t heads_q, heads_k, dim, dim_v;
  } shapes[] = {{1, 1, 128, 128},  {8, 8, 64, 64},    {8, 1, 64, 64},
                {32, 4, 128, 128}, {64, 8, 128, 128}, {16, 1, 192, 128}};
  mica_set_num_threads(2);
  for (const auto& s : shapes)
    for (const auto& [dtype, element] : {std::pair{MICA_FP32, 4}, {MICA_FP16, 2}, {MICA_BF16, 2}})
      for (const bool is_invariant : {false, true}) {
        mica_attention a = MICA_ATTENTION_INIT;
        a.q = dense(1, kLength, s.heads_q, s.dim), a.k = dense(1, kLength, s.heads_k, s.dim);
        a.o = dense(1, kLength, s.heads_q, s.dim_v), a.v = dense(1, kLength, s.heads_k, s.dim_v);
        a.lse = {MICA_FP32, 0, {1, s.heads_q, kLength, 1}, {s.heads_q * kLength, kLength, 1, 1}};
        for (mica_tensor* t : {&a.q, &a.k, &a.v, &a.o}) t->dtype = dtype;
        a.gradients.d_o = a.o, a.gradients.dq = a.q, a.gradients.dk = a.k, a.gradients.dv = a.v;
        a.control.batch_invariant = is_invariant;
        mica_plan* plan = nullptr;
        ASSERT_EQ(mica_plan_create(&a, MICA_BACKWARD, &plan), MICA_OK) << mica_last_error();
        const double tensors = 2.0 * element * double(kLength * (s.heads_q + s.heads_k) * (s.dim + s.dim_v));
        EXPECT_LE((tensors + double(mica_plan_workspace(plan))) / tensors, 2.95)
            << dtype << " heads " << s.heads_q << ',' << s.heads_k << " dim " << s.dim << (is_invariant ? " inv" : "");
        mica_plan_destroy(plan);
      }
  mica_set_num_threads(0);
}

}  // namespace
