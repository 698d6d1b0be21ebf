// SPDX-License-Identifier: Apache-2.0
// The promises of the interface about meaning, each in an example small enough to work out by hand.
#include "tests/api/description.h"

namespace mica::testing_api {
namespace {

// One head of dimension 1: the product of q[i] and k[j] is the score before anything else.
mica_attention line(int64_t len_q, int64_t len_k) {
  return describe({.batch = 1, .len_q = len_q, .len_k = len_k, .heads_q = 1, .heads_k = 1, .dim = 1, .dim_v = 1});
}

TEST(Semantics, OrderOfAScoreIsScaleSoftcapAlibiBias) {
  mica_attention a = line(1, 2);
  a.score.scale = 0.5f;
  a.score.softcap = 2.0f;
  a.mask.diagonal = MICA_DIAGONAL_TOP_LEFT;
  a.score.alibi = dense(MICA_FP32, {1, 1, 1, 1});
  a.score.bias = dense(MICA_FP32, {1, 1, 1, 2});
  Call call(a);
  const float slope = 0.25f, bias[2] = {3.0f, -1.0f};
  call.q = {3.0f}, call.k = {2.0f, -1.0f}, call.v = {1.0f, 0.0f};
  call.bind();
  call.x.alibi = &slope, call.x.bias = bias;
  ASSERT_EQ(call.run(MICA_FORWARD), "");
  // Neither the bias nor ALiBi is capped, and the cap sees the scaled product.
  const double s0 = 2 * std::tanh(0.5 * 6 / 2) - 0.25 * 0 + 3, s1 = 2 * std::tanh(0.5 * -3 / 2) - 0.25 * 1 - 1;
  EXPECT_NEAR(call.lse[0], std::log(std::exp(s0) + std::exp(s1)), 1e-6);
  EXPECT_NEAR(call.o[0], 1 / (1 + std::exp(s1 - s0)), 1e-6);
}

TEST(Semantics, DefaultScaleIsOneOverTheRootOfTheDimension) {
  mica_attention a = describe({.batch = 1, .len_q = 1, .len_k = 1, .heads_q = 1, .heads_k = 1, .dim = 16, .dim_v = 1});
  Call call(a);
  call.q.assign(16, 1.0f), call.k.assign(16, 1.0f);
  call.bind();
  ASSERT_EQ(call.run(MICA_FORWARD), "");
  EXPECT_NEAR(call.lse[0], 16.0 / 4.0, 1e-6);
}

TEST(Semantics, LseIsTheNaturalLogarithmAndIncludesTheSink) {
  mica_attention a = line(1, 3);
  a.score.scale = 1;
  Call call(a);
  call.q = {1.0f}, call.k = {0.0f, 1.0f, 2.0f};
  call.bind();
  ASSERT_EQ(call.run(MICA_FORWARD), "");
  const double keys = 1 + std::exp(1.0) + std::exp(2.0);
  EXPECT_NEAR(call.lse[0], std::log(keys), 1e-6);
  call.a.score.sinks = dense(MICA_FP32, {1, 1, 1, 1});
  const float sink = 1.5f, v[3] = {1, 1, 1};
  call.x.sinks = &sink, call.x.v = const_cast<float*>(v);
  ASSERT_EQ(call.run(MICA_FORWARD), "");
  EXPECT_NEAR(call.lse[0], std::log(keys + std::exp(1.5)), 1e-6);
  EXPECT_NEAR(call.o[0], keys / (keys + std::exp(1.5)), 1e-6);  // the sink takes probability and has no value
}

TEST(Semantics, AnEmptyRowIsZeroAndItsLseMinusInfinity) {
  mica_attention a = line(3, 2);
  a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;  // row 0 ends before key 0
  Call call(a);
  ASSERT_EQ(call.run(MICA_FORWARD), "");
  EXPECT_EQ(call.o[0], 0);
  EXPECT_EQ(call.lse[0], -kInf);
  EXPECT_NE(call.lse[1], -kInf);
}

TEST(Semantics, AnEmptyRowWithASinkHasTheSinkForLse) {
  mica_attention a = line(3, 2);
  a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
  a.score.sinks = dense(MICA_FP32, {1, 1, 1, 1});
  a.sequences.vectors = MICA_SEQUSED_Q;
  Call call(a);
  const float sink = -0.75f;
  const int32_t used[1] = {3};
  call.x.sinks = &sink, call.x.seqused_q = used;
  ASSERT_EQ(call.run(MICA_FORWARD), "");
  EXPECT_EQ(call.o[0], 0);
  EXPECT_NEAR(call.lse[0], sink, 1e-6);
}

TEST(Semantics, ASinkOfMinusInfinityIsNone) {
  mica_attention a = line(3, 2);
  a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
  Call without(a);
  ASSERT_EQ(without.run(MICA_FORWARD), "");
  a.score.sinks = dense(MICA_FP32, {1, 1, 1, 1});
  Call with(a);
  const float sink = -kInf;
  with.x.sinks = &sink;
  ASSERT_EQ(with.run(MICA_FORWARD), "");
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_FLOAT_EQ(with.o[i], without.o[i]);
    EXPECT_FLOAT_EQ(with.lse[i], without.lse[i]);
  }
}

TEST(Semantics, RowsPastSequsedAreWrittenAsEmpty) {
  mica_attention a = line(4, 3);
  a.sequences.vectors = MICA_SEQUSED_Q;
  Call call(a);
  const int32_t used[1] = {2};
  call.x.seqused_q = used;
  ASSERT_EQ(call.run(MICA_FORWARD), "");
  EXPECT_NE(call.o[1], 0);
  EXPECT_EQ(call.o[2], 0);
  EXPECT_EQ(call.o[3], 0);
  EXPECT_EQ(call.lse[3], -kInf);
}

// All scores equal: LSE counts the visible keys.
std::vector<int> visible_keys(mica_attention a) {
  Call call(a);
  call.q.assign(call.q.size(), 0.0f);
  call.bind();
  EXPECT_EQ(call.run(MICA_FORWARD), "");
  std::vector<int> counts;
  for (const float lse : call.lse) counts.push_back(int(std::lround(std::exp(lse))));
  return counts;
}

TEST(Semantics, TheDiagonalsAlignmentIsTheOneNamed) {
  mica_attention a = line(2, 4);
  a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
  EXPECT_EQ(visible_keys(a), (std::vector<int>{3, 4}));
  a.mask.causal = MICA_CAUSAL_TOP_LEFT;
  EXPECT_EQ(visible_keys(a), (std::vector<int>{1, 2}));
  a.mask.causal = MICA_CAUSAL_NONE;
  a.mask.window_left = 1, a.mask.window_right = 0;
  a.mask.diagonal = MICA_DIAGONAL_BOTTOM_RIGHT;
  EXPECT_EQ(visible_keys(a), (std::vector<int>{2, 2}));
  a.mask.diagonal = MICA_DIAGONAL_TOP_LEFT;
  EXPECT_EQ(visible_keys(a), (std::vector<int>{1, 2}));
}

TEST(Semantics, AnUnlimitedWindowSeesEverything) {
  mica_attention a = line(3, 5);
  a.mask.diagonal = MICA_DIAGONAL_BOTTOM_RIGHT;
  a.mask.window_left = INT64_MAX, a.mask.window_right = INT64_MAX;
  EXPECT_EQ(visible_keys(a), (std::vector<int>{5, 5, 5}));
  a.mask.window_left = 0, a.mask.window_right = MICA_UNLIMITED;
  EXPECT_EQ(visible_keys(a), (std::vector<int>{3, 2, 1}));
}

TEST(Semantics, ARowSeesTheKeysOfItsChunkAlone) {
  mica_attention a = line(3, 7);  // rows at positions 4, 5, 6; chunks of 5: keys 0 to 4, 5 to 6
  a.attention_chunk = 5;
  a.mask.diagonal = MICA_DIAGONAL_BOTTOM_RIGHT;
  EXPECT_EQ(visible_keys(a), (std::vector<int>{5, 2, 2}));
  a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
  EXPECT_EQ(visible_keys(a), (std::vector<int>{5, 1, 2}));
  a.mask.window_left = 2;
  EXPECT_EQ(visible_keys(a), (std::vector<int>{3, 1, 2}));
  a.place.key_first = 4;  // key 0 is the last of its chunk: keys 0, 1 to 5, 6
  EXPECT_EQ(visible_keys(a), (std::vector<int>{3, 3, 1}));
}

TEST(Semantics, BackwardTakesAnInfiniteLseOfEitherSignAsAnEmptyRow) {
  for (const float infinite : {kInf, -kInf}) {
    Call call(describe_backward());
    ASSERT_EQ(call.run(MICA_FORWARD), "");
    ASSERT_EQ(call.run(MICA_BACKWARD), "");
    const std::vector<float> dk = call.dk;
    // Row 1 of head 0 of sequence 0. Its gradient must vanish, and its share of dk and dv with it.
    call.lse[1] = infinite;
    ASSERT_EQ(call.run(MICA_BACKWARD), "");
    const size_t dim = 8, row = 4 * dim;
    for (size_t d = 0; d < dim; ++d) EXPECT_EQ(call.dq[row + d], 0);
    EXPECT_NE(call.dq[0], 0);
    EXPECT_FALSE(same_bits(dk, call.dk));
    for (const float value : call.dk) EXPECT_TRUE(std::isfinite(value));
    for (const float value : call.dv) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(Semantics, GradientOfABiasHasItsShapeAndSumsTheBroadcastAxes) {
  mica_attention a = describe_backward();
  const std::vector<float> bias = numbers(2 * 4 * 5 * 7, 9);
  a.score.bias = dense(MICA_FP32, {2, 4, 5, 7});
  a.gradients.d_bias = a.score.bias;
  Call full(a);
  std::vector<float> d_full(bias.size(), 99.0f), zero(bias.size(), 0.0f);
  full.x.bias = zero.data(), full.x.d_bias = d_full.data();
  ASSERT_EQ(full.run(MICA_FORWARD), "");
  ASSERT_EQ(full.run(MICA_BACKWARD), "");
  // One bias per head and key, shared by batch and rows.
  a.score.bias = dense(MICA_FP32, {1, 4, 1, 7});
  a.gradients.d_bias = a.score.bias;
  Call shared(a);
  std::vector<float> d_shared(28, 99.0f);
  shared.x.bias = zero.data(), shared.x.d_bias = d_shared.data();
  ASSERT_EQ(shared.run(MICA_FORWARD), "");
  ASSERT_EQ(shared.run(MICA_BACKWARD), "");
  for (size_t h = 0; h < 4; ++h)
    for (size_t j = 0; j < 7; ++j) {
      double sum = 0;
      for (size_t b = 0; b < 2; ++b)
        for (size_t i = 0; i < 5; ++i) sum += d_full[((b * 4 + h) * 5 + i) * 7 + j];
      EXPECT_NEAR(d_shared[h * 7 + j], sum, 1e-5);
    }
}

TEST(Semantics, GradientsOfBiasAndSinksAreSummedInAFixedOrder) {
  mica_attention a = describe_backward({.batch = 3, .len_q = 150, .len_k = 90, .heads_q = 4, .heads_k = 2});
  a.score.bias = dense(MICA_FP32, {1, 1, 1, 90});
  a.score.sinks = dense(MICA_FP32, {4, 1, 1, 1});
  a.gradients.d_bias = a.score.bias, a.gradients.d_sinks = a.score.sinks;
  a.control.deterministic = 1;
  const std::vector<float> bias = numbers(90, 3), sinks = numbers(4, 4);
  std::vector<float> first_bias, first_sinks;
  for (const int threads : {1, 2, 3, 8, 2, 2, 2}) {
    mica_set_num_threads(threads);
    Call call(a);
    std::vector<float> d_bias(90, 99.0f), d_sinks(4, 99.0f);
    call.x.bias = bias.data(), call.x.sinks = sinks.data();
    call.x.d_bias = d_bias.data(), call.x.d_sinks = d_sinks.data();
    ASSERT_EQ(call.run(MICA_FORWARD), "");
    ASSERT_EQ(call.run(MICA_BACKWARD), "");
    if (first_bias.empty()) first_bias = d_bias, first_sinks = d_sinks;
    EXPECT_TRUE(same_bits(d_bias, first_bias)) << threads;
    EXPECT_TRUE(same_bits(d_sinks, first_sinks)) << threads;
  }
  mica_set_num_threads(0);
}

TEST(Semantics, TheLowestFiniteBiasHides) {
  // What callers use for minus infinity. A row with a visible key ignores the others; a row without one has no NaN.
  mica_attention a = line(2, 3);
  a.score.bias = dense(MICA_FP32, {1, 1, 2, 3});
  Call call(a);
  const float lowest = -std::numeric_limits<float>::max();
  const float bias[6] = {lowest, 0, lowest, lowest, lowest, lowest};
  call.x.bias = bias;
  ASSERT_EQ(call.run(MICA_FORWARD), "");
  EXPECT_FLOAT_EQ(call.o[0], call.v[1]);
  EXPECT_TRUE(std::isfinite(call.o[1]));
  EXPECT_FALSE(std::isnan(call.lse[1]));
}

TEST(Semantics, GradientThroughLseAlone) {
  // d lse / d q = sum_j p_j k_j, with one key: its k.
  mica_attention a = line(1, 1);
  a.score.scale = 1;
  a.gradients.d_o = a.o, a.gradients.dq = a.q, a.gradients.d_lse = a.lse;
  Call call(a);
  const float d_lse = 2.0f;
  call.d_o = {0.0f}, call.k = {0.75f};
  call.bind();
  call.x.d_lse = &d_lse;
  ASSERT_EQ(call.run(MICA_FORWARD), "");
  ASSERT_EQ(call.run(MICA_BACKWARD), "");
  EXPECT_NEAR(call.dq[0], 2.0 * 0.75, 1e-6);
}

// probs of a call with dropout, all scores equal.
std::vector<float> dropped(int64_t batch, int64_t len_q, int64_t len_k, uint64_t seed, uint64_t offset,
                           bool from_memory = false) {
  mica_attention a = describe({.batch = batch, .len_q = len_q, .len_k = len_k});
  a.dropout = {0.4f, from_memory ? 1 : 0};
  a.probs = dense(MICA_FP32, {batch, 4, len_q, len_k});
  Call call(a);
  call.q.assign(call.q.size(), 0.0f);
  std::vector<float> probs(count(a.probs), 99.0f);
  const int64_t state[2] = {int64_t(seed), int64_t(offset)};
  call.bind();
  call.x.probs = probs.data();
  if (from_memory)
    call.x.rng_state = state;
  else
    call.x.dropout_seed = seed, call.x.dropout_offset = offset;
  EXPECT_EQ(call.run(MICA_FORWARD), "");
  return probs;
}

TEST(Semantics, DropoutDependsOnBatchHeadRowAndColumnAlone) {
  const std::vector<float> small = dropped(1, 20, 40, 5, 7), large = dropped(3, 70, 90, 5, 7);
  int num_dropped = 0;
  for (size_t h = 0; h < 4; ++h)
    for (size_t i = 0; i < 20; ++i)
      for (size_t j = 0; j < 40; ++j) {
        const bool a = std::signbit(small[(h * 20 + i) * 40 + j]), b = std::signbit(large[(h * 70 + i) * 90 + j]);
        EXPECT_EQ(a, b);
        num_dropped += a;
      }
  EXPECT_NEAR(num_dropped / 3200.0, 0.4, 0.05);
}

// All scores are equal and key j has the value 2^j, so that o says which keys were kept; probs says it too.
TEST(Semantics, DropoutOfAPieceAtTheEndOfTheLargestCall) {
  for (const int64_t len_k : {3, 7, 16, 20}) {
    mica_attention a = line(2, len_k);
    a.dropout = {0.5f, 0};
    a.probs = dense(MICA_FP32, {1, 1, 2, len_k});
    a.place.row_first = (int64_t{1} << 31) - 2;
    a.place.key_first = (int64_t{1} << 31) - len_k;
    Call call(a);
    std::vector<float> probs(count(a.probs));
    call.q.assign(2, 0.0f);
    for (int64_t j = 0; j < len_k; ++j) call.v[size_t(j)] = float(1 << j);
    call.bind();
    call.x.probs = probs.data(), call.x.dropout_seed = 3;
    ASSERT_EQ(call.run(MICA_FORWARD), "");
    int num_dropped = 0;
    for (int64_t i = 0; i < 2; ++i) {
      double kept = 0;
      for (int64_t j = 0; j < len_k; ++j) {
        const bool is_dropped = std::signbit(probs[size_t(i * len_k + j)]);
        num_dropped += is_dropped;
        if (!is_dropped) kept += double(1 << j);
      }
      EXPECT_NEAR(call.o[size_t(i)], kept * 2 / double(len_k), 1e-6 * double(1 << len_k)) << len_k;
    }
    EXPECT_GT(num_dropped, 0) << len_k;
  }
}

TEST(Semantics, DropoutStateByValueAndFromMemoryDrawTheSameBits) {
  const uint64_t seed = 0x8123456789abcdefu, offset = 0x9000000000000001u;
  EXPECT_TRUE(same_bits(dropped(2, 20, 40, seed, offset), dropped(2, 20, 40, seed, offset, true)));
  EXPECT_FALSE(same_bits(dropped(2, 20, 40, seed, offset), dropped(2, 20, 40, seed, offset + 1)));
  EXPECT_FALSE(same_bits(dropped(2, 20, 40, seed, offset), dropped(2, 20, 40, seed + 1, offset)));
  EXPECT_FALSE(same_bits(dropped(2, 20, 40, seed, offset), dropped(2, 20, 40, seed, offset ^ (uint64_t{1} << 40))));
}

TEST(Semantics, MaxSeqlenIsAHintAndNeverDecidesCorrectness) {
  const int32_t cu_q[3] = {0, 30, 70}, cu_k[3] = {0, 60, 200};
  std::vector<std::vector<float>> results;
  for (const int64_t hint : {0, 1, 40, 5000}) {
    mica_attention a = MICA_ATTENTION_INIT;
    a.q = dense(MICA_FP32, {1, 70, 2, 16}), a.o = a.q;
    a.k = a.v = dense(MICA_FP32, {1, 200, 2, 16});
    a.lse = dense(MICA_FP32, {1, 2, 70, 1});
    a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
    a.sequences.vectors = MICA_CU_SEQLENS_Q | MICA_CU_SEQLENS_K;
    a.sequences.batch = 2;
    a.sequences.max_seqlen_q = a.sequences.max_seqlen_k = hint;
    Call call(a);
    call.x.cu_seqlens_q = cu_q, call.x.cu_seqlens_k = cu_k;
    ASSERT_EQ(call.run(MICA_FORWARD), "");
    results.push_back(call.o);
    for (size_t n = 0; n < call.o.size(); ++n) EXPECT_NEAR(call.o[n], results[0][n], 1e-5);
  }
}

TEST(Semantics, AppendWritesTheCacheAndAttendsToIt) {
  mica_attention a = line(1, 4);
  a.score.scale = 1;
  a.append.k_new = a.append.v_new = dense(MICA_FP32, {1, 2, 1, 1});
  a.sequences.vectors = MICA_SEQUSED_K;
  Call call(a);
  const int32_t used[1] = {1};
  const float k_new[2] = {0, 0}, v_new[2] = {5, 6};
  call.q = {1}, call.k = {0, 9, 9, 9}, call.v = {1, 9, 9, 9};
  call.bind();
  call.x.seqused_k = used, call.x.k_new = k_new, call.x.v_new = v_new;
  ASSERT_EQ(call.run(MICA_FORWARD), "");
  EXPECT_EQ(call.k, (std::vector<float>{0, 0, 0, 9}));
  EXPECT_EQ(call.v, (std::vector<float>{1, 5, 6, 9}));
  EXPECT_NEAR(call.o[0], 4.0, 1e-6);  // the mean of 1, 5 and 6
}

TEST(Semantics, TheMessageIsTheThreadsLastFailure) {
  mica_attention a = describe();
  a.q.shape[3] = 0;
  mica_plan* plan = nullptr;
  EXPECT_EQ(mica_plan_create(&a, MICA_FORWARD, &plan), MICA_ERROR_INVALID);
  const std::string message = mica_last_error();
  a = describe();
  EXPECT_EQ(mica_plan_create(&a, MICA_FORWARD, &plan), MICA_OK);
  mica_plan_destroy(plan);
  EXPECT_EQ(message, "q.shape[3] is 0, want 1 to 576");
}

}  // namespace
}  // namespace mica::testing_api
