// SPDX-License-Identifier: Apache-2.0
// mica_execute: nulls, alignment, workspace, and the values of the int32 vectors, each with its exact message; a
// refused call writes nothing.
#include <functional>

#include "tests/api/description.h"

namespace mica::testing_api {
namespace {

// Every binding at once, in two calls: attention over a cache with append, and backward of packed attention.
struct Everything {
  alignas(64) float memory[4096];
  int32_t cu_q[3] = {0, 3, 5}, cu_k[3] = {0, 4, 7}, used_q[2] = {3, 2}, used_k[2] = {4, 0}, leftpad[2] = {1, 0};
  int32_t batch_idx[2] = {1, 0}, table[6] = {0, 1, 2, 3, 4, 0};
  int64_t rng[2] = {1, 2};
  mica_attention a;
  mica_bindings x = MICA_BINDINGS_INIT;

  void bind_memory() {
    float* m = memory;
    x.q = m, x.k = m + 100, x.v = m + 200, x.o = m + 300, x.lse = m + 400, x.probs = m + 500;
    x.boolean_mask = m, x.bias = m, x.alibi = m, x.sinks = m;
    x.cu_seqlens_q = cu_q, x.cu_seqlens_k = cu_k, x.seqused_q = used_q, x.seqused_k = used_k;
    x.cache_batch_idx = batch_idx, x.cache_leftpad = leftpad, x.block_table = table;
    x.k_new = m, x.v_new = m, x.rotary_cos = m, x.rotary_sin = m, x.rng_state = rng;
    x.q_descale = m, x.k_descale = m, x.v_descale = m;
    x.k_prefix = m, x.v_prefix = m, x.qv = m;
    x.d_o = m, x.d_lse = m, x.dq = m + 600, x.dk = m + 700, x.dv = m + 800, x.d_bias = m + 900, x.d_sinks = m + 1000;
    x.workspace = nullptr, x.workspace_bytes = 0;
  }
  Everything() {
    for (float& value : memory) value = 0.25f;
    bind_memory();
  }
};

// Paged cache, append, rotary, dropout from memory, probs.
mica_attention describe_cache() {
  mica_attention a = MICA_ATTENTION_INIT;
  a.q = dense(MICA_FP32, {2, 3, 2, 4});
  a.o = a.q;
  a.k = a.v = dense(MICA_FP32, {5, 2, 1, 4});
  a.lse = dense(MICA_FP32, {2, 2, 3, 1});
  a.probs = dense(MICA_FP32, {2, 2, 3, 6});
  a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
  a.mask.boolean = dense(MICA_BOOL, {1, 1, 3, 6});
  a.score.bias = dense(MICA_FP32, {1, 1, 3, 6});
  a.score.alibi = dense(MICA_FP32, {1, 2, 1, 1});
  a.score.sinks = dense(MICA_FP32, {2, 1, 1, 1});
  a.sequences.vectors = MICA_SEQUSED_Q | MICA_SEQUSED_K | MICA_CACHE_LEFTPAD;
  a.sequences.block_table = dense(MICA_INT32, {2, 3, 1, 1});
  a.append.k_new = a.append.v_new = dense(MICA_FP32, {2, 1, 1, 4});
  a.append.rotary_cos = a.append.rotary_sin = dense(MICA_FP32, {6, 2, 1, 1});
  a.dropout = {0.5f, 1};
  return a;
}

// Packed, every gradient.
mica_attention describe_packed() {
  mica_attention a = MICA_ATTENTION_INIT;
  a.q = a.o = dense(MICA_FP32, {1, 5, 2, 4});
  a.k = a.v = dense(MICA_FP32, {1, 7, 1, 4});
  a.lse = dense(MICA_FP32, {1, 2, 5, 1});
  a.score.bias = dense(MICA_FP32, {1, 2, 3, 4});
  a.score.sinks = dense(MICA_FP32, {2, 1, 1, 1});
  a.sequences.vectors = MICA_CU_SEQLENS_Q | MICA_CU_SEQLENS_K;
  a.sequences.batch = 2;
  a.gradients = {a.o, a.lse, a.q, a.k, a.v, a.score.bias, a.score.sinks};
  return a;
}

mica_attention describe_slots() {
  mica_attention a = MICA_ATTENTION_INIT;
  a.q = a.o = dense(MICA_FP32, {2, 3, 1, 4});
  a.k = a.v = dense(MICA_FP32, {2, 6, 1, 4});
  a.sequences.vectors = MICA_CACHE_BATCH_IDX | MICA_SEQUSED_K;
  return a;
}

mica_attention describe_fp8() {
  mica_attention a = MICA_ATTENTION_INIT;
  a.q = a.k = a.v = dense(MICA_FP8_E4M3, {2, 3, 1, 4});
  a.o = dense(MICA_BF16, {2, 3, 1, 4});
  a.quantisation.q_descale = a.quantisation.k_descale = a.quantisation.v_descale = dense(MICA_FP32, {2, 1, 1, 1});
  return a;
}

mica_attention describe_prefix() {
  mica_attention a = MICA_ATTENTION_INIT;
  a.q = a.k = a.v = a.o = dense(MICA_FP32, {2, 3, 1, 4});
  a.k_prefix = a.v_prefix = dense(MICA_FP32, {1, 3, 1, 4});
  return a;
}

mica_attention describe_second_query() {
  mica_attention a = MICA_ATTENTION_INIT;
  a.q = a.k = a.v = a.o = a.qv = dense(MICA_FP32, {2, 3, 1, 4});
  return a;
}

struct BadBindings {
  const char* name;
  const char* message;
  mica_attention (*describe)();
  mica_pass pass;
  std::function<void(Everything&)> spoil;
};

constexpr mica_pass kForward = MICA_FORWARD, kBackward = MICA_BACKWARD;
#define NULL_BINDING(field, spoken, description, pass)                                                                \
  {                                                                                                                   \
    "null_" #field, "bindings." spoken " is null, want the address that the description promises", description, pass, \
        [](Everything& e) { e.x.field = nullptr; }                                                                    \
  }

// clang-format off
const BadBindings kBad[] = {
  {"struct_bytes", "bindings.struct_bytes is 4, want 328 (sizeof(mica_bindings); use MICA_BINDINGS_INIT)", describe_cache,
   kForward, [](Everything& e) { e.x.struct_bytes = 4; }},
  {"struct_bytes_of_a_later_header",
   "bindings.struct_bytes is 336, want at most 328: the program was compiled with the header of a later Mica", describe_cache,
   kForward, [](Everything& e) { e.x.struct_bytes = 336; }},
  {"abi_version", "bindings.abi_version is 2, want 1 (use MICA_BINDINGS_INIT)", describe_cache, kForward,
   [](Everything& e) { e.x.abi_version = 2; }},
  {"o_over_q", "bindings.o overlaps bindings.q, want memory of its own", describe_slots, kForward,
   [](Everything& e) { e.x.o = e.memory + 4; }},
  {"o_over_bias", "bindings.o overlaps bindings.bias, want memory of its own", describe_cache, kForward,
   [](Everything& e) { e.x.bias = e.memory + 310; }},
  {"o_over_lse", "bindings.o overlaps bindings.lse, want memory of its own", describe_cache, kForward,
   [](Everything& e) { e.x.lse = e.memory + 310; }},
  {"dk_over_k", "bindings.dk overlaps bindings.k, want memory of its own", describe_packed, kBackward,
   [](Everything& e) { e.x.dk = e.memory + 100; }},
  {"dq_over_d_o", "bindings.dq overlaps bindings.d_o, want memory of its own", describe_packed, kBackward,
   [](Everything& e) { e.x.d_o = e.memory + 600; }},
  {"dk_over_dv", "bindings.dk overlaps bindings.dv, want memory of its own", describe_packed, kBackward,
   [](Everything& e) { e.x.dv = e.memory + 704; }},
  NULL_BINDING(q_descale, "q_descale", describe_fp8, kForward), NULL_BINDING(k_descale, "k_descale", describe_fp8, kForward),
  NULL_BINDING(v_descale, "v_descale", describe_fp8, kForward),
  NULL_BINDING(k_prefix, "k_prefix", describe_prefix, kForward),
  NULL_BINDING(v_prefix, "v_prefix", describe_prefix, kForward),
  NULL_BINDING(qv, "qv", describe_second_query, kForward),
  {"o_over_qv", "bindings.o overlaps bindings.qv, want memory of its own", describe_second_query, kForward,
   [](Everything& e) { e.x.o = e.memory + 500, e.x.qv = e.memory + 500; }},
  NULL_BINDING(q, "q", describe_cache, kForward), NULL_BINDING(k, "k", describe_cache, kForward),
  NULL_BINDING(v, "v", describe_cache, kForward), NULL_BINDING(o, "o", describe_cache, kForward),
  NULL_BINDING(lse, "lse", describe_cache, kForward), NULL_BINDING(probs, "probs", describe_cache, kForward),
  NULL_BINDING(boolean_mask, "boolean_mask", describe_cache, kForward),
  NULL_BINDING(bias, "bias", describe_cache, kForward), NULL_BINDING(alibi, "alibi", describe_cache, kForward),
  NULL_BINDING(sinks, "sinks", describe_cache, kForward),
  NULL_BINDING(seqused_q, "seqused_q", describe_cache, kForward),
  NULL_BINDING(seqused_k, "seqused_k", describe_cache, kForward),
  NULL_BINDING(cache_leftpad, "cache_leftpad", describe_cache, kForward),
  NULL_BINDING(block_table, "block_table", describe_cache, kForward),
  NULL_BINDING(k_new, "k_new", describe_cache, kForward), NULL_BINDING(v_new, "v_new", describe_cache, kForward),
  NULL_BINDING(rotary_cos, "rotary_cos", describe_cache, kForward),
  NULL_BINDING(rotary_sin, "rotary_sin", describe_cache, kForward),
  NULL_BINDING(rng_state, "rng_state", describe_cache, kForward),
  NULL_BINDING(cache_batch_idx, "cache_batch_idx", describe_slots, kForward),
  NULL_BINDING(cu_seqlens_q, "cu_seqlens_q", describe_packed, kBackward),
  NULL_BINDING(cu_seqlens_k, "cu_seqlens_k", describe_packed, kBackward),
  NULL_BINDING(d_o, "d_o", describe_packed, kBackward), NULL_BINDING(d_lse, "d_lse", describe_packed, kBackward),
  NULL_BINDING(dq, "dq", describe_packed, kBackward), NULL_BINDING(dk, "dk", describe_packed, kBackward),
  NULL_BINDING(dv, "dv", describe_packed, kBackward), NULL_BINDING(d_bias, "d_bias", describe_packed, kBackward),
  NULL_BINDING(d_sinks, "d_sinks", describe_packed, kBackward),

  // The values of the vectors, which the CPU can see.
  {"cu_first", "cu_seqlens_q[0] is -1, want 0 to 5", describe_packed, kBackward, [](Everything& e) { e.cu_q[0] = -1; }},
  {"cu_falls", "cu_seqlens_k[2] is 3, want at least 4 (= cu_seqlens_k[1])", describe_packed, kBackward,
   [](Everything& e) { e.cu_k[2] = 3; }},
  {"cu_beyond", "cu_seqlens_q[2] is 6, want at most 5 (the rows of the tensor)", describe_packed, kBackward,
   [](Everything& e) { e.cu_q[2] = 6; }},
  {"seqused_q_large", "seqused_q[1] is 4, want 0 to 3", describe_cache, kForward, [](Everything& e) { e.used_q[1] = 4; }},
  {"seqused_q_negative", "seqused_q[0] is -1, want 0 to 3", describe_cache, kForward, [](Everything& e) { e.used_q[0] = -1; }},
  {"seqused_k_no_room", "seqused_k[0] is 6, want 0 to 5", describe_cache, kForward, [](Everything& e) { e.used_k[0] = 6; }},
  {"leftpad_large", "cache_leftpad[1] is 1, want 0 to 0", describe_cache, kForward, [](Everything& e) { e.leftpad[1] = 1; }},
  {"page_outside", "block_table[0][2] is 5, want 0 to 4", describe_cache, kForward, [](Everything& e) { e.table[2] = 5; }},
  {"slot_outside", "cache_batch_idx[0] is 2, want 0 to 1", describe_slots, kForward, [](Everything& e) { e.batch_idx[0] = 2; }},
};
// clang-format on

class Bindings : public testing::TestWithParam<BadBindings> {};

TEST_P(Bindings, RefusesAndWritesNothing) {
  const BadBindings& bad = GetParam();
  Everything e;
  e.a = bad.describe();
  mica_plan* plan = nullptr;
  ASSERT_EQ(mica_plan_create(&e.a, bad.pass, &plan), MICA_OK) << mica_last_error();
  std::vector<char> workspace(mica_plan_workspace(plan) + 64);
  e.x.workspace = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
  e.x.workspace_bytes = mica_plan_workspace(plan);
  const std::vector<float> before(e.memory, e.memory + 4096);
  const mica_bindings good = e.x;
  bad.spoil(e);
  EXPECT_EQ(mica_execute(plan, &e.x), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), bad.message);
  EXPECT_TRUE(same_bits(before, std::vector<float>(e.memory, e.memory + 4096)));
  // What the bad call starts from is legal.
  Everything fresh;
  fresh.a = e.a;
  fresh.x.workspace = good.workspace, fresh.x.workspace_bytes = good.workspace_bytes;
  EXPECT_EQ(mica_execute(plan, &fresh.x), MICA_OK) << mica_last_error();
  mica_plan_destroy(plan);
}

INSTANTIATE_TEST_SUITE_P(Rule, Bindings, testing::ValuesIn(kBad),
                         [](const testing::TestParamInfo<BadBindings>& info) { return std::string(info.param.name); });

TEST(BindingsNull, ArgumentsThemselves) {
  const mica_attention a = describe();
  mica_plan* plan = nullptr;
  ASSERT_EQ(mica_plan_create(&a, MICA_FORWARD, &plan), MICA_OK);
  EXPECT_EQ(mica_execute(plan, nullptr), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), "bindings is null, want pointers");
  const mica_bindings x = MICA_BINDINGS_INIT;
  EXPECT_EQ(mica_execute(nullptr, &x), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), "plan is null, want one from mica_plan_create");
  mica_plan_destroy(plan);
}

// Runs with one pointer moved by `bytes`; the message, with the address replaced by "ADDRESS".
std::string misaligned_message(int32_t alignment, const void* mica_bindings::*field, ptrdiff_t bytes) {
  mica_attention a = describe();
  a.q.alignment = alignment;
  Call call(a);
  std::vector<char> raw(call.q.size() * 4 + 8192);
  char* aligned = raw.data() + (4096 - reinterpret_cast<uintptr_t>(raw.data()) % 4096) % 4096;
  call.x.*field = aligned + bytes;
  std::string message = call.run(MICA_FORWARD);
  const size_t from = message.find("0x");
  if (from != std::string::npos) message.replace(from, message.find(',', from) - from, "ADDRESS");
  return message;
}

TEST(BindingsAlignment, IsThatOfTheDescription) {
  EXPECT_EQ(misaligned_message(0, &mica_bindings::q, 0), "");
  EXPECT_EQ(misaligned_message(0, &mica_bindings::q, 4), "");
  EXPECT_EQ(misaligned_message(0, &mica_bindings::q, 2), "bindings.q is ADDRESS, want a multiple of 4 bytes");
  EXPECT_EQ(misaligned_message(64, &mica_bindings::q, 16), "bindings.q is ADDRESS, want a multiple of 64 bytes");
  EXPECT_EQ(misaligned_message(64, &mica_bindings::q, 64), "");
}

TEST(BindingsWorkspace, SizeAndAlignment) {
  // Split decode needs a workspace on every machine.
  mica_attention a = describe({.batch = 1, .len_q = 1, .len_k = 2000});
  a.control.num_splits = 4;
  Call call(a);
  mica_plan* plan = nullptr;
  ASSERT_EQ(mica_plan_create(&a, MICA_FORWARD, &plan), MICA_OK) << mica_last_error();
  const size_t bytes = mica_plan_workspace(plan);
  ASSERT_GT(bytes, 0u);
  std::vector<char> raw(bytes + 128);
  char* aligned = raw.data() + (64 - reinterpret_cast<uintptr_t>(raw.data()) % 64) % 64;
  call.x.workspace = aligned;
  call.x.workspace_bytes = bytes - 1;
  EXPECT_EQ(mica_execute(plan, &call.x), MICA_ERROR_INVALID);
  EXPECT_EQ(std::string(mica_last_error()), "bindings.workspace_bytes is " + std::to_string(bytes - 1) +
                                                ", want at least " + std::to_string(bytes) + " (mica_plan_workspace)");
  call.x.workspace_bytes = bytes;
  call.x.workspace = nullptr;
  EXPECT_EQ(mica_execute(plan, &call.x), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), "bindings.workspace is null, want the address that the description promises");
  call.x.workspace = aligned + 32;
  EXPECT_EQ(mica_execute(plan, &call.x), MICA_ERROR_INVALID);
  EXPECT_NE(std::string(mica_last_error()).find("want a multiple of 64 bytes"), std::string::npos);
  call.x.workspace = aligned;
  EXPECT_EQ(mica_execute(plan, &call.x), MICA_OK) << mica_last_error();
  mica_plan_destroy(plan);
}

TEST(BindingsEmpty, TensorsWithoutElementsNeedNoAddress) {
  mica_attention a = describe({.len_k = 0});
  Call call(a);
  call.x.k = nullptr, call.x.v = nullptr;
  EXPECT_EQ(call.run(MICA_FORWARD), "");
  for (const float value : call.o) EXPECT_EQ(value, 0);
  for (const float value : call.lse) EXPECT_EQ(value, -kInf);
}

TEST(BindingsOverlap, KeysAndValuesAreNotWrittenOver) {
  mica_attention a = MICA_ATTENTION_INIT;
  a.q = a.k = a.v = a.o = dense(MICA_FP32, {1, 3, 2, 4});
  std::vector<float> memory(4 * 24, 0.5f);
  mica_plan* plan = nullptr;
  ASSERT_EQ(mica_plan_create(&a, MICA_FORWARD, &plan), MICA_OK) << mica_last_error();
  std::vector<char> workspace(mica_plan_workspace(plan) + 64);
  mica_bindings x = MICA_BINDINGS_INIT;
  x.workspace = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
  x.workspace_bytes = mica_plan_workspace(plan);
  x.q = memory.data(), x.k = memory.data() + 24, x.v = memory.data() + 48, x.o = memory.data() + 72;
  EXPECT_EQ(mica_execute(plan, &x), MICA_OK) << mica_last_error();
  x.o = memory.data();  // q's very place
  EXPECT_EQ(mica_execute(plan, &x), MICA_OK) << mica_last_error();
  x.o = memory.data() + 24 + 20;
  EXPECT_EQ(mica_execute(plan, &x), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), "bindings.o overlaps bindings.k, want memory of its own");
  x.o = memory.data() + 48;
  EXPECT_EQ(mica_execute(plan, &x), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), "bindings.o overlaps bindings.v, want memory of its own");
  mica_plan_destroy(plan);
  // Side by side in every row of one tensor (1, 3, 4, 2, 4): nothing is shared, unless o begins within v.
  for (mica_tensor* t : {&a.q, &a.k, &a.v, &a.o}) t->stride[0] = 96, t->stride[1] = 32;
  ASSERT_EQ(mica_plan_create(&a, MICA_FORWARD, &plan), MICA_OK) << mica_last_error();
  workspace.resize(mica_plan_workspace(plan) + 64);
  x.workspace = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
  x.workspace_bytes = mica_plan_workspace(plan);
  x.q = memory.data(), x.k = memory.data() + 8, x.v = memory.data() + 16, x.o = memory.data() + 24;
  EXPECT_EQ(mica_execute(plan, &x), MICA_OK) << mica_last_error();
  x.o = memory.data() + 20;
  EXPECT_EQ(mica_execute(plan, &x), MICA_ERROR_INVALID);
  mica_plan_destroy(plan);
}

TEST(BindingsOverlap, NewKeysDoNotLieInTheCache) {
  mica_attention a = MICA_ATTENTION_INIT;
  a.q = a.o = dense(MICA_FP32, {1, 1, 2, 4});
  a.k = a.v = dense(MICA_FP32, {1, 4, 2, 4});
  a.append.k_new = a.append.v_new = dense(MICA_FP32, {1, 2, 2, 4});
  a.sequences.vectors = MICA_SEQUSED_K;
  mica_plan* plan = nullptr;
  ASSERT_EQ(mica_plan_create(&a, MICA_FORWARD, &plan), MICA_OK) << mica_last_error();
  std::vector<char> workspace(mica_plan_workspace(plan) + 64);
  std::vector<float> q(8), o(8), k(32), v(32), k_new(16), v_new(16);
  const int32_t used = 1;
  mica_bindings x = MICA_BINDINGS_INIT;
  x.workspace = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
  x.workspace_bytes = mica_plan_workspace(plan);
  x.q = q.data(), x.o = o.data(), x.k = k.data(), x.v = v.data(), x.seqused_k = &used;
  x.k_new = k_new.data(), x.v_new = v_new.data();
  EXPECT_EQ(mica_execute(plan, &x), MICA_OK) << mica_last_error();
  x.k_new = k.data() + 8;
  EXPECT_EQ(mica_execute(plan, &x), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), "bindings.k_new overlaps bindings.k, want memory of its own");
  x.k_new = k_new.data(), x.v_new = v.data() + 16;
  EXPECT_EQ(mica_execute(plan, &x), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), "bindings.v_new overlaps bindings.v, want memory of its own");
  x.v_new = v_new.data(), x.k_new = v.data() + 8;
  EXPECT_EQ(mica_execute(plan, &x), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), "bindings.k_new overlaps bindings.v, want memory of its own");
  x.k_new = k_new.data(), x.q = k.data() + 8;  // the row that the first new key is written to
  EXPECT_EQ(mica_execute(plan, &x), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), "bindings.q overlaps bindings.k, want memory of its own");
  x.q = v.data() + 24;
  EXPECT_EQ(mica_execute(plan, &x), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), "bindings.q overlaps bindings.v, want memory of its own");
  x.q = q.data(), x.v = k.data();  // the new values would be written over the new keys
  EXPECT_EQ(mica_execute(plan, &x), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(),
               "bindings.v overlaps bindings.k, want memory of its own where new keys and values are written");
  x.v_new = k_new.data();  // the same bits twice
  EXPECT_EQ(mica_execute(plan, &x), MICA_OK) << mica_last_error();
  mica_plan_destroy(plan);
}

// Values that are the first columns of the keys are written twice, and must be the same bits both times.
TEST(BindingsOverlap, NewValuesAreThoseOfTheKeysThatTheyLieIn) {
  mica_attention plain = MICA_ATTENTION_INIT;
  plain.q = dense(MICA_FP32, {1, 1, 2, 4});
  plain.k = plain.v = dense(MICA_FP32, {1, 4, 2, 4});
  plain.append.k_new = plain.append.v_new = dense(MICA_FP32, {1, 2, 2, 4});
  plain.v.shape[3] = plain.append.v_new.shape[3] = 2;
  plain.o = dense(MICA_FP32, {1, 1, 2, 2});
  plain.sequences.vectors = MICA_SEQUSED_K;
  mica_attention e4m3 = plain;
  e4m3.k.dtype = e4m3.v.dtype = MICA_FP8_E4M3;
  e4m3.quantisation.k_descale = dense(MICA_FP32, {1, 1, 1, 1});
  std::vector<float> q(8), o(8), k(32), k_new(16);
  const float factors[2] = {1, 2};
  const int32_t used = 1;
  mica_bindings x = MICA_BINDINGS_INIT;
  x.q = q.data(), x.o = o.data(), x.k = x.v = k.data(), x.seqused_k = &used, x.k_new = x.v_new = k_new.data();
  x.k_descale = x.v_descale = &factors[0];
  const auto run = [&x](const mica_attention& a) {
    mica_plan* plan = nullptr;
    EXPECT_EQ(mica_plan_create(&a, MICA_FORWARD, &plan), MICA_OK) << mica_last_error();
    std::vector<char> workspace(mica_plan_workspace(plan) + 64);
    x.workspace = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
    x.workspace_bytes = mica_plan_workspace(plan);
    const mica_status status = mica_execute(plan, &x);
    mica_plan_destroy(plan);
    return status;
  };
  EXPECT_EQ(run(plain), MICA_OK) << mica_last_error();
  mica_attention a = plain;
  a.v = dense(MICA_FP32, {1, 4, 2, 2});  // other rows than those of k
  EXPECT_EQ(run(a), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(),
               "bindings.v overlaps bindings.k, want memory of its own where new keys and values are written");
  a = plain;
  a.append.v_new = dense(MICA_FP32, {1, 2, 2, 2});
  EXPECT_EQ(run(a), MICA_ERROR_INVALID);
  EXPECT_EQ(run(e4m3), MICA_ERROR_INVALID);  // the values' factor is 1
  e4m3.quantisation.v_descale = e4m3.quantisation.k_descale;
  EXPECT_EQ(run(e4m3), MICA_OK) << mica_last_error();
  x.v_descale = &factors[1];
  EXPECT_EQ(run(e4m3), MICA_ERROR_INVALID);
}

}  // namespace
}  // namespace mica::testing_api
