// SPDX-License-Identifier: Apache-2.0
// The kernels without tensor cores (append, combine, probs, backward_sinks), run on the host and compared with the CPU
// backend through the C interface.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cuda/argument_parts.h"
#include "cuda/arguments.h"
#include "mica/mica.h"

#define MICA_WARPS 2
#define MICA_BLOCKS 1
#define MICA_KERNEL_NAME emulated_append
#include "cuda/kernels/append.cuh"
#undef MICA_KERNEL_NAME
#define MICA_KERNEL_NAME emulated_combine
#include "cuda/kernels/combine.cuh"
#undef MICA_KERNEL_NAME
#define MICA_KERNEL_NAME emulated_probs
#include "cuda/kernels/probs.cuh"
#undef MICA_KERNEL_NAME
#define MICA_KERNEL_NAME emulated_sinks
#include "cuda/kernels/backward_sinks.cuh"
#undef MICA_KERNEL_NAME

namespace mica {
namespace {

constexpr int kThreads = 32 * MICA_WARPS;

void launch(int blocks, const std::function<void()>& kernel) {
  blockDim.x = kThreads;
  gridDim.x = blocks;
  for (int block = 0; block < blocks; ++block) {
    blockIdx.x = block;
    const auto barrier = std::make_unique<std::barrier<>>(kThreads);
    emulated_barrier = barrier.get();
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&kernel, t] {
        threadIdx.x = t;
        kernel();
        emulated_barrier->arrive_and_drop();  // a thread that returns early holds nobody up
      });
  }
}

std::vector<float> random_floats(size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(engine);
  return values;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want, float tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << "at " << i;
}

constexpr i32 kBatch = 2, kRows = 3, kHeads = 4, kHeadsK = 2, kKeys = 40, kDim = 24;

mica_tensor dense(i64 a, i64 b, i64 c, i64 d) { return {MICA_FP32, 0, {a, b, c, d}, {b * c * d, c * d, d, 1}}; }

// A small fp32 problem on the CPU, with everything the emulated kernels need beside it.
struct Small {
  mica_attention a = MICA_ATTENTION_INIT;
  std::vector<float> q = random_floats(kBatch * kRows * kHeads * kDim, 1);
  std::vector<float> k = random_floats(kBatch * kKeys * kHeadsK * kDim, 2);
  std::vector<float> v = random_floats(kBatch * kKeys * kHeadsK * kDim, 3);
  std::vector<float> o = std::vector<float>(q.size()), lse = std::vector<float>(kBatch * kHeads * kRows);
  std::vector<float> sinks = {0.5f, -1.0f, 2.0f, 0.0f};
  mica_bindings x = MICA_BINDINGS_INIT;
  std::vector<char> workspace;

  Small() {
    a.q = a.o = dense(kBatch, kRows, kHeads, kDim);
    a.k = a.v = dense(kBatch, kKeys, kHeadsK, kDim);
    a.lse = dense(kBatch, kHeads, kRows, 1);
    a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
    x.q = q.data();
    x.k = k.data();
    x.v = v.data();
    x.o = o.data();
    x.lse = lse.data();
  }
  void run(mica_pass pass = MICA_FORWARD) {
    mica_plan* plan = nullptr;
    ASSERT_EQ(mica_plan_create(&a, pass, &plan), MICA_OK) << mica_last_error();
    workspace.resize(mica_plan_workspace(plan) + 64);
    x.workspace = workspace.data() + 64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64;
    x.workspace_bytes = mica_plan_workspace(plan);
    ASSERT_EQ(mica_execute(plan, &x), MICA_OK) << mica_last_error();
    mica_plan_destroy(plan);
  }
  // The description as the backends see it; strides of axes of size 1 do not matter here.
  Problem problem() const {
    Problem p = {};
    const auto tensor = [](const mica_tensor& t) {
      Tensor out = {t.dtype, 4, {}, {}};
      for (int axis = 0; axis < 4; ++axis) {
        out.shape[axis] = t.shape[axis];
        out.stride[axis] = t.shape[axis] > 1 ? t.stride[axis] : 0;
      }
      return out;
    };
    p.dtype = MICA_FP32;
    p.batch = p.slots_k = kBatch;
    p.heads_q = kHeads;
    p.heads_k = kHeadsK;
    p.group = kHeads / kHeadsK;
    p.dim_qk = p.dim_v = kDim;
    p.max_len_q = kRows;
    p.max_len_k = kKeys;
    p.total_q = kBatch * kRows;
    p.total_k = kBatch * kKeys;
    p.vectors = a.sequences.vectors;
    p.causal = p.bottom_right = 1;
    p.window_left = MICA_MAX_SEQLEN;
    p.scale = 1.0f / std::sqrt(float(kDim));
    p.dropout = a.dropout.probability;
    p.q = tensor(a.q);
    p.k = tensor(a.k);
    p.v = tensor(a.v);
    p.o = tensor(a.o);
    p.lse = tensor(a.lse);
    p.probs = tensor(a.probs);
    p.sinks = tensor(a.score.sinks);
    p.d_sinks = tensor(a.gradients.d_sinks);
    p.k_new = tensor(a.append.k_new);
    p.v_new = tensor(a.append.v_new);
    p.rotary_cos = tensor(a.append.rotary_cos);
    p.rotary_sin = tensor(a.append.rotary_sin);
    return p;
  }
};

TEST(Emulation, ProbsWithSinksAndDropout) {
  Small s;
  s.a.score.sinks = {MICA_FP32, 0, {kHeads, 1, 1, 1}, {1, 0, 0, 0}};
  s.x.sinks = s.sinks.data();
  s.a.dropout.probability = 0.3f;
  s.x.dropout_seed = 77;
  s.a.probs = dense(kBatch, kHeads, kRows, kKeys);
  std::vector<float> want(kBatch * kHeads * kRows * kKeys), got(want.size(), 9.0f);
  s.x.probs = want.data();
  s.run();
  const Problem p = s.problem();
  ProbsParams params = probs_params(forward_params(p, 64, Splits{1, 0}), p);
  s.x.probs = got.data();
  bind(params, p, s.x, WorkspaceLayout{});
  launch(ceil_div(kBatch * kHeads * kRows, MICA_WARPS), [&] { emulated_probs(params); });
  expect_near(got, want, 2e-6f);
}

// Splits the keys by hand: the CPU gives O and LSE of each range, combine joins them.
TEST(Emulation, CombineJoinsRangesOfKeys) {
  constexpr i32 kSplits = 5;
  Small whole;
  whole.a.mask.causal = MICA_CAUSAL_NONE;
  whole.a.score.sinks = {MICA_FP32, 0, {kHeads, 1, 1, 1}, {1, 0, 0, 0}};
  whole.x.sinks = whole.sinks.data();
  whole.run();
  const i64 rows = kBatch * kRows;
  std::vector<float> partial_o(kSplits * kHeads * rows * kDim), partial_lse(kSplits * kHeads * rows);
  for (i32 split = 0; split < kSplits; ++split) {
    const i32 begin = split * kKeys / 4, end = split == 4 ? begin : begin + kKeys / 4;  // the last one is empty
    Small part;
    part.a.mask.causal = MICA_CAUSAL_NONE;
    part.a.k.shape[1] = part.a.v.shape[1] = end - begin;
    part.x.k = part.k.data() + begin * kHeadsK * kDim;
    part.x.v = part.v.data() + begin * kHeadsK * kDim;
    part.run();
    for (i32 head = 0; head < kHeads; ++head)
      for (i64 row = 0; row < rows; ++row) {
        const i64 at = (i64(split) * kHeads + head) * rows + row;
        partial_lse[at] = part.lse[(row / kRows * kHeads + head) * kRows + row % kRows] * kLog2E;
        for (i32 c = 0; c < kDim; ++c) partial_o[at * kDim + c] = part.o[(row * kHeads + head) * kDim + c];
      }
  }
  const Problem p = whole.problem();
  CombineParams params = combine_params(forward_params(p, 64, Splits{kSplits, 0}), p);
  Small joined;
  joined.x.sinks = whole.sinks.data();
  bind(params, p, joined.x, WorkspaceLayout{});
  params.forward.partial_o = partial_o.data();
  params.forward.partial_lse = partial_lse.data();
  launch(int(rows * kHeads), [&] { emulated_combine(params); });
  expect_near(joined.o, whole.o, 2e-6f);
  expect_near(joined.lse, whole.lse, 2e-6f);
}

TEST(Emulation, SinksGradient) {
  Small s;
  s.a.score.sinks = s.a.gradients.d_sinks = {MICA_FP32, 0, {kHeads, 1, 1, 1}, {1, 0, 0, 0}};
  s.x.sinks = s.sinks.data();
  std::vector<float> want(kHeads), got(kHeads), d_o = random_floats(s.o.size(), 9);
  const mica_attention whole = s.a;
  s.a.gradients = {};
  s.run();
  s.a = whole;
  s.a.gradients.d_o = s.a.o;
  s.x.d_o = d_o.data();
  s.x.d_sinks = want.data();
  s.run(MICA_BACKWARD);
  std::vector<float> delta(kHeads * kBatch * kRows);
  for (i32 row = 0; row < kBatch * kRows; ++row)
    for (i32 head = 0; head < kHeads; ++head)
      for (i32 c = 0; c < kDim; ++c)
        delta[head * kBatch * kRows + row] +=
            s.o[(row * kHeads + head) * kDim + c] * d_o[(row * kHeads + head) * kDim + c];
  const Problem p = s.problem();
  BackwardSinksParams params = backward_sinks_params(p);
  s.x.d_sinks = got.data();
  bind(params, p, s.x, WorkspaceLayout{});
  params.row_delta = delta.data();
  launch(kHeads, [&] { emulated_sinks(params); });
  expect_near(got, want, 1e-5f);
}

void check_append(bool interleaved) {
  constexpr i32 kNew = 3, kRotary = 16;
  Small s;
  std::vector<float> k_new = random_floats(kBatch * kNew * kHeadsK * kDim, 4);
  std::vector<float> v_new = random_floats(kBatch * kNew * kHeadsK * kDim, 5);
  std::vector<float> cosine(kKeys * kRotary / 2), sine(cosine.size());
  for (size_t i = 0; i < cosine.size(); ++i) {
    cosine[i] = std::cos(0.1f * float(i));
    sine[i] = std::sin(0.1f * float(i));
  }
  const std::vector<i32> used = {5, 30};
  s.a.sequences.vectors = MICA_SEQUSED_K;
  s.a.append.k_new = s.a.append.v_new = dense(kBatch, kNew, kHeadsK, kDim);
  s.a.append.rotary_cos = s.a.append.rotary_sin = {MICA_FP32, 0, {kKeys, kRotary / 2, 1, 1}, {kRotary / 2, 1, 0, 0}};
  s.a.append.rotary_interleaved = interleaved;
  s.x.seqused_k = used.data();
  s.x.k_new = k_new.data();
  s.x.v_new = v_new.data();
  s.x.rotary_cos = cosine.data();
  s.x.rotary_sin = sine.data();
  std::vector<float> k = s.k, v = s.v, turned(s.q.size());
  s.run();

  Problem p = s.problem();
  p.len_new = kNew;
  p.rotary_dim = kRotary;
  p.rotary_interleaved = interleaved;
  p.rotary_positions = kKeys;
  AppendParams params = append_params(p);
  mica_bindings x = s.x;
  x.k = k.data();
  x.v = v.data();
  x.workspace = turned.data();
  bind(params, p, x, WorkspaceLayout{});
  launch(kBatch * (kNew + kRows), [&] { emulated_append(params); });
  expect_near(k, s.k, 1e-6f);
  expect_near(v, s.v, 0.0f);

  // The turned queries: attention over the grown cache with them gives what the CPU gave.
  Small after;
  after.q = turned;
  after.k = k;
  after.v = v;
  after.x.q = after.q.data();
  after.x.k = after.k.data();
  after.x.v = after.v.data();
  after.a.sequences.vectors = MICA_SEQUSED_K;
  const std::vector<i32> grown = {used[0] + kNew, used[1] + kNew};
  after.x.seqused_k = grown.data();
  after.run();
  expect_near(after.o, s.o, 5e-6f);
}

TEST(Emulation, AppendWithRotaryInHalves) { check_append(false); }
TEST(Emulation, AppendWithRotaryInterleaved) { check_append(true); }

}  // namespace
}  // namespace mica
