// SPDX-License-Identifier: Apache-2.0
// Once warm, planning and executing take nothing from the heap, whichever thread computes, and so does a refusal. This
// program's malloc stands before the C library's, for the library under test too.
#include <atomic>

#include "tests/api/description.h"

// What glibc calls its own.
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {
std::atomic<long> num_allocations{0};
}

extern "C" {
void* malloc(size_t bytes) { return ++num_allocations, __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return ++num_allocations, __libc_calloc(count, bytes); }
void* realloc(void* old, size_t bytes) { return ++num_allocations, __libc_realloc(old, bytes); }
void* memalign(size_t alignment, size_t bytes) { return ++num_allocations, __libc_memalign(alignment, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return ++num_allocations, __libc_memalign(alignment, bytes); }
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  *out = (++num_allocations, __libc_memalign(alignment, bytes));
  return *out ? 0 : 12;  // ENOMEM
}
}

namespace mica::testing_api {
namespace {

// How often the heap is asked by a plan, its execution and its end, after one of each.
long allocations_of(Call& call, mica_pass pass) {
  EXPECT_EQ(call.run(pass), "");
  mica_attention description = call.a;
  if (pass == MICA_FORWARD) description.gradients = mica_gradients{};
  const long before = num_allocations;
  mica_plan* plan = nullptr;
  EXPECT_EQ(mica_plan_create(&description, pass, &plan), MICA_OK);
  EXPECT_EQ(mica_execute(plan, &call.x), MICA_OK);
  mica_plan_destroy(plan);
  return num_allocations - before;
}

class Allocation : public testing::Test {
 protected:
  Allocation() { mica_set_num_threads(3); }
  ~Allocation() override { mica_set_num_threads(0); }
};

TEST_F(Allocation, IsSeenByThisTest) {
  const long before = num_allocations;
  const std::vector<float> some(100, 1.0f);
  EXPECT_EQ(num_allocations - before, 1) << some[0];
}

TEST_F(Allocation, ForwardAndBackwardNeedNone) {
  mica_attention a = describe_backward({.batch = 2, .len_q = 150, .len_k = 700, .dim = 64, .dim_v = 64});
  a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
  a.dropout.probability = 0.1f;
  a.score.bias = dense(MICA_FP32, {1, 4, 1, 700});
  a.score.sinks = dense(MICA_FP32, {4, 1, 1, 1});
  a.gradients.d_bias = a.score.bias, a.gradients.d_sinks = a.score.sinks;
  Call call(a);
  const std::vector<float> bias(2800, 0.5f), sinks(4, 0.25f);
  std::vector<float> d_bias(2800), d_sinks(4);
  call.x.bias = bias.data(), call.x.sinks = sinks.data();
  call.x.d_bias = d_bias.data(), call.x.d_sinks = d_sinks.data();
  EXPECT_EQ(allocations_of(call, MICA_FORWARD), 0);
  EXPECT_EQ(allocations_of(call, MICA_BACKWARD), 0);
}

TEST_F(Allocation, SplitDecodeWithAppendAndRotaryNeedsNone) {
  mica_attention a = describe({.batch = 1, .len_q = 1, .len_k = 2000});
  a.control.num_splits = 4;
  a.sequences.vectors = MICA_SEQUSED_K;
  a.append.k_new = dense(MICA_FP32, {1, 1, 2, 8}), a.append.v_new = dense(MICA_FP32, {1, 1, 2, 6});
  a.append.rotary_cos = a.append.rotary_sin = dense(MICA_FP32, {2000, 4, 1, 1});
  Call call(a);
  const std::vector<float> tables(8000, 0.5f), rows(16, 0.5f);
  const int32_t used[1] = {1900};
  call.x.rotary_cos = call.x.rotary_sin = tables.data(), call.x.k_new = call.x.v_new = rows.data();
  call.x.seqused_k = used;
  EXPECT_EQ(allocations_of(call, MICA_FORWARD), 0);
}

TEST_F(Allocation, PackedSequencesNeedNone) {
  mica_attention a = describe_backward({.batch = 1, .len_q = 300, .len_k = 300});
  a.sequences.vectors = MICA_CU_SEQLENS_Q | MICA_CU_SEQLENS_K;
  a.sequences.batch = 3;
  Call call(a);
  const int32_t cu[4] = {0, 100, 100, 300};
  call.x.cu_seqlens_q = call.x.cu_seqlens_k = cu;
  EXPECT_EQ(allocations_of(call, MICA_FORWARD), 0);
  EXPECT_EQ(allocations_of(call, MICA_BACKWARD), 0);
}

TEST_F(Allocation, ARefusalNeedsNone) {
  mica_attention a = describe();
  a.k.shape[3] = 96;
  mica_plan* plan = nullptr;
  EXPECT_EQ(mica_plan_create(&a, MICA_FORWARD, &plan), MICA_ERROR_INVALID);
  const long before = num_allocations;
  EXPECT_EQ(mica_plan_create(&a, MICA_FORWARD, &plan), MICA_ERROR_INVALID);
  EXPECT_EQ(num_allocations, before);
  EXPECT_STREQ(mica_last_error(), "k.shape[3] is 96, want 8 (= q.shape[3])");
}

}  // namespace
}  // namespace mica::testing_api
