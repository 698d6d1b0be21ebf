// SPDX-License-Identifier: Apache-2.0
// The layout of every public struct and the value of every enumerator are pinned: a caller compiled against an older
// header must keep working with a newer library of the same ABI version.
#include <cstddef>
#include <cstdio>

#include "tests/api/description.h"

namespace mica::testing_api {
namespace {

#define EXPECT_OFFSET(type, field, offset) static_assert(offsetof(type, field) == (offset), #type "." #field)

static_assert(MICA_ABI_VERSION == 1 && MICA_UNLIMITED == -1);
static_assert(MICA_MAX_DIM_QK == 576 && MICA_MAX_DIM_V == 512 && MICA_MAX_SEQLEN == 536870912);

static_assert(sizeof(mica_device) == 8);
EXPECT_OFFSET(mica_device, backend, 0);
EXPECT_OFFSET(mica_device, ordinal, 4);

static_assert(sizeof(mica_tensor) == 72);
EXPECT_OFFSET(mica_tensor, dtype, 0);
EXPECT_OFFSET(mica_tensor, alignment, 4);
EXPECT_OFFSET(mica_tensor, shape, 8);
EXPECT_OFFSET(mica_tensor, stride, 40);

static_assert(sizeof(mica_mask) == 96);
EXPECT_OFFSET(mica_mask, causal, 0);
EXPECT_OFFSET(mica_mask, diagonal, 4);
EXPECT_OFFSET(mica_mask, window_left, 8);
EXPECT_OFFSET(mica_mask, window_right, 16);
EXPECT_OFFSET(mica_mask, boolean, 24);

static_assert(sizeof(mica_score) == 224);
EXPECT_OFFSET(mica_score, scale, 0);
EXPECT_OFFSET(mica_score, softcap, 4);
EXPECT_OFFSET(mica_score, alibi, 8);
EXPECT_OFFSET(mica_score, bias, 80);
EXPECT_OFFSET(mica_score, sinks, 152);

static_assert(sizeof(mica_sequences) == 104);
EXPECT_OFFSET(mica_sequences, vectors, 0);
EXPECT_OFFSET(mica_sequences, reserved, 4);
EXPECT_OFFSET(mica_sequences, batch, 8);
EXPECT_OFFSET(mica_sequences, max_seqlen_q, 16);
EXPECT_OFFSET(mica_sequences, max_seqlen_k, 24);
EXPECT_OFFSET(mica_sequences, block_table, 32);

static_assert(sizeof(mica_append) == 296);
EXPECT_OFFSET(mica_append, k_new, 0);
EXPECT_OFFSET(mica_append, v_new, 72);
EXPECT_OFFSET(mica_append, rotary_cos, 144);
EXPECT_OFFSET(mica_append, rotary_sin, 216);
EXPECT_OFFSET(mica_append, rotary_interleaved, 288);
EXPECT_OFFSET(mica_append, reserved, 292);

static_assert(sizeof(mica_dropout) == 8);
EXPECT_OFFSET(mica_dropout, probability, 0);
EXPECT_OFFSET(mica_dropout, rng_from_memory, 4);

static_assert(sizeof(mica_control) == 16);
EXPECT_OFFSET(mica_control, num_splits, 0);
EXPECT_OFFSET(mica_control, deterministic, 4);
EXPECT_OFFSET(mica_control, batch_invariant, 8);
EXPECT_OFFSET(mica_control, pieces, 12);

static_assert(sizeof(mica_gradients) == 504);
EXPECT_OFFSET(mica_gradients, d_o, 0);
EXPECT_OFFSET(mica_gradients, d_lse, 72);
EXPECT_OFFSET(mica_gradients, dq, 144);
EXPECT_OFFSET(mica_gradients, dk, 216);
EXPECT_OFFSET(mica_gradients, dv, 288);
EXPECT_OFFSET(mica_gradients, d_bias, 360);
EXPECT_OFFSET(mica_gradients, d_sinks, 432);

static_assert(sizeof(mica_place) == 64);
EXPECT_OFFSET(mica_place, shift, 0);
EXPECT_OFFSET(mica_place, row_first, 8);
EXPECT_OFFSET(mica_place, row_step, 16);
EXPECT_OFFSET(mica_place, key_first, 24);
EXPECT_OFFSET(mica_place, key_step, 32);
EXPECT_OFFSET(mica_place, batch_first, 40);
EXPECT_OFFSET(mica_place, head_first, 48);
EXPECT_OFFSET(mica_place, heads, 56);

static_assert(sizeof(mica_quantisation) == 224);
EXPECT_OFFSET(mica_quantisation, q_descale, 0);
EXPECT_OFFSET(mica_quantisation, k_descale, 72);
EXPECT_OFFSET(mica_quantisation, v_descale, 144);
EXPECT_OFFSET(mica_quantisation, per_page, 216);
EXPECT_OFFSET(mica_quantisation, reserved, 220);

static_assert(sizeof(mica_attention) == 2216);
EXPECT_OFFSET(mica_attention, struct_bytes, 0);
EXPECT_OFFSET(mica_attention, abi_version, 4);
EXPECT_OFFSET(mica_attention, device, 8);
EXPECT_OFFSET(mica_attention, q, 16);
EXPECT_OFFSET(mica_attention, k, 88);
EXPECT_OFFSET(mica_attention, v, 160);
EXPECT_OFFSET(mica_attention, o, 232);
EXPECT_OFFSET(mica_attention, lse, 304);
EXPECT_OFFSET(mica_attention, probs, 376);
EXPECT_OFFSET(mica_attention, mask, 448);
EXPECT_OFFSET(mica_attention, score, 544);
EXPECT_OFFSET(mica_attention, sequences, 768);
EXPECT_OFFSET(mica_attention, append, 872);
EXPECT_OFFSET(mica_attention, dropout, 1168);
EXPECT_OFFSET(mica_attention, control, 1176);
EXPECT_OFFSET(mica_attention, gradients, 1192);
EXPECT_OFFSET(mica_attention, place, 1696);
EXPECT_OFFSET(mica_attention, quantisation, 1760);
EXPECT_OFFSET(mica_attention, attention_chunk, 1984);
EXPECT_OFFSET(mica_attention, mask_last_keys, 1992);
EXPECT_OFFSET(mica_attention, k_prefix, 2000);
EXPECT_OFFSET(mica_attention, v_prefix, 2072);
EXPECT_OFFSET(mica_attention, qv, 2144);

static_assert(sizeof(void*) == 8 && sizeof(mica_bindings) == 328);
EXPECT_OFFSET(mica_bindings, struct_bytes, 0);
EXPECT_OFFSET(mica_bindings, abi_version, 4);
EXPECT_OFFSET(mica_bindings, q, 8);
EXPECT_OFFSET(mica_bindings, k, 16);
EXPECT_OFFSET(mica_bindings, v, 24);
EXPECT_OFFSET(mica_bindings, o, 32);
EXPECT_OFFSET(mica_bindings, lse, 40);
EXPECT_OFFSET(mica_bindings, probs, 48);
EXPECT_OFFSET(mica_bindings, boolean_mask, 56);
EXPECT_OFFSET(mica_bindings, bias, 64);
EXPECT_OFFSET(mica_bindings, alibi, 72);
EXPECT_OFFSET(mica_bindings, sinks, 80);
EXPECT_OFFSET(mica_bindings, cu_seqlens_q, 88);
EXPECT_OFFSET(mica_bindings, cu_seqlens_k, 96);
EXPECT_OFFSET(mica_bindings, seqused_q, 104);
EXPECT_OFFSET(mica_bindings, seqused_k, 112);
EXPECT_OFFSET(mica_bindings, cache_batch_idx, 120);
EXPECT_OFFSET(mica_bindings, cache_leftpad, 128);
EXPECT_OFFSET(mica_bindings, block_table, 136);
EXPECT_OFFSET(mica_bindings, k_new, 144);
EXPECT_OFFSET(mica_bindings, v_new, 152);
EXPECT_OFFSET(mica_bindings, rotary_cos, 160);
EXPECT_OFFSET(mica_bindings, rotary_sin, 168);
EXPECT_OFFSET(mica_bindings, dropout_seed, 176);
EXPECT_OFFSET(mica_bindings, dropout_offset, 184);
EXPECT_OFFSET(mica_bindings, rng_state, 192);
EXPECT_OFFSET(mica_bindings, d_o, 200);
EXPECT_OFFSET(mica_bindings, d_lse, 208);
EXPECT_OFFSET(mica_bindings, dq, 216);
EXPECT_OFFSET(mica_bindings, dk, 224);
EXPECT_OFFSET(mica_bindings, dv, 232);
EXPECT_OFFSET(mica_bindings, d_bias, 240);
EXPECT_OFFSET(mica_bindings, d_sinks, 248);
EXPECT_OFFSET(mica_bindings, workspace, 256);
EXPECT_OFFSET(mica_bindings, workspace_bytes, 264);
EXPECT_OFFSET(mica_bindings, stream, 272);
EXPECT_OFFSET(mica_bindings, q_descale, 280);
EXPECT_OFFSET(mica_bindings, k_descale, 288);
EXPECT_OFFSET(mica_bindings, v_descale, 296);
EXPECT_OFFSET(mica_bindings, k_prefix, 304);
EXPECT_OFFSET(mica_bindings, v_prefix, 312);
EXPECT_OFFSET(mica_bindings, qv, 320);

static_assert(MICA_OK == 0 && MICA_ERROR_INVALID == 1 && MICA_ERROR_UNSUPPORTED == 2 && MICA_ERROR_NO_DEVICE == 3);
static_assert(MICA_ERROR_OUT_OF_MEMORY == 4 && MICA_ERROR_DEVICE == 5 && MICA_ERROR_INTERNAL == 6);
static_assert(MICA_CPU == 0 && MICA_CUDA == 1);
static_assert(MICA_NONE == 0 && MICA_FP32 == 1 && MICA_FP16 == 2 && MICA_BF16 == 3 && MICA_BOOL == 4 &&
              MICA_INT32 == 5);
static_assert(MICA_FORWARD == 0 && MICA_BACKWARD == 1);
static_assert(MICA_CAUSAL_NONE == 0 && MICA_CAUSAL_BOTTOM_RIGHT == 1 && MICA_CAUSAL_TOP_LEFT == 2);
static_assert(MICA_DIAGONAL_FROM_CAUSAL == 0 && MICA_DIAGONAL_BOTTOM_RIGHT == 1 && MICA_DIAGONAL_TOP_LEFT == 2);
static_assert(MICA_CU_SEQLENS_Q == 1 && MICA_CU_SEQLENS_K == 2 && MICA_SEQUSED_Q == 4 && MICA_SEQUSED_K == 8);
static_assert(MICA_CACHE_BATCH_IDX == 16 && MICA_CACHE_LEFTPAD == 32);

extern "C" const char* c99_five_lines(float* largest_error);
extern "C" const char* c99_bad_pass(void);

TEST(Abi, C99CallerComputesAttention) {
  float largest_error = -1;
  EXPECT_STREQ(c99_five_lines(&largest_error), "");
  EXPECT_GE(largest_error, 0);
  EXPECT_LE(largest_error, 1e-6f);
}

TEST(Abi, PassOutOfRange) { EXPECT_STREQ(c99_bad_pass(), "pass is 7, want MICA_FORWARD (0) or MICA_BACKWARD (1)"); }

TEST(Abi, VersionAndNames) {
  EXPECT_EQ(mica_abi_version(), MICA_ABI_VERSION);
  int major = -1, minor = -1, patch = -1;
  EXPECT_EQ(std::sscanf(mica_version(), "%d.%d.%d", &major, &minor, &patch), 3);
  EXPECT_EQ(major, MICA_VERSION_MAJOR);
  EXPECT_EQ(minor, MICA_VERSION_MINOR);
  EXPECT_EQ(patch, MICA_VERSION_PATCH);
  EXPECT_EQ(MICA_VERSION_NUMBER, major * 10000 + minor * 100 + patch);
  EXPECT_STREQ(mica_status_name(MICA_OK), "ok");
  EXPECT_STREQ(mica_status_name(MICA_ERROR_INVALID), "invalid");
  EXPECT_STREQ(mica_status_name(MICA_ERROR_UNSUPPORTED), "unsupported");
  EXPECT_STREQ(mica_status_name(MICA_ERROR_NO_DEVICE), "no device");
  EXPECT_STREQ(mica_status_name(MICA_ERROR_OUT_OF_MEMORY), "out of memory");
  EXPECT_STREQ(mica_status_name(MICA_ERROR_DEVICE), "device error");
  EXPECT_STREQ(mica_status_name(MICA_ERROR_INTERNAL), "internal error");
}

TEST(Abi, InitialisersAreNeutral) {
  const mica_attention a = MICA_ATTENTION_INIT;
  EXPECT_EQ(a.struct_bytes, sizeof a);
  EXPECT_EQ(a.device.backend, MICA_CPU);
  EXPECT_EQ(a.mask.causal, MICA_CAUSAL_NONE);
  EXPECT_EQ(a.mask.window_left, MICA_UNLIMITED);
  EXPECT_EQ(a.mask.window_right, MICA_UNLIMITED);
  EXPECT_EQ(a.score.scale, 0);
  EXPECT_EQ(a.gradients.dq.dtype, MICA_NONE);
  const mica_bindings x = MICA_BINDINGS_INIT;
  EXPECT_EQ(x.struct_bytes, sizeof x);
  EXPECT_EQ(x.workspace, nullptr);
}

TEST(Abi, DevicesAndThreads) {
  EXPECT_EQ(mica_device_count(MICA_CPU), 1);
  const char* description = mica_device_description({MICA_CPU, 0});
  ASSERT_NE(description, nullptr);
  EXPECT_NE(std::string(description).find("thread"), std::string::npos) << description;
  EXPECT_EQ(mica_device_description({MICA_CPU, 1}), nullptr);
  EXPECT_STREQ(mica_last_error(), "device.ordinal is 1, want 0 to 0 (backend cpu)");
  EXPECT_EQ(mica_device_description({9, 0}), nullptr);
  EXPECT_STREQ(mica_last_error(), "device.backend is 9, want MICA_CPU (0) or MICA_CUDA (1)");
  EXPECT_EQ(mica_set_num_threads(-1), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), "num_threads is -1, want 0 (all) to 1024");
  EXPECT_EQ(mica_set_num_threads(1025), MICA_ERROR_INVALID);
  EXPECT_EQ(mica_set_num_threads(3), MICA_OK);
  EXPECT_EQ(mica_get_num_threads(), 3);
  EXPECT_EQ(mica_set_num_threads(0), MICA_OK);
  EXPECT_GE(mica_get_num_threads(), 1);
  EXPECT_STREQ(mica_threads_from(), "its own: no OpenMP runtime is loaded");
  int pool = 0;
  EXPECT_EQ(mica_set_thread_pool(nullptr, &pool), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), "run is null and pool is not, want a function, or null for both");
}

TEST(Abi, ListsTheKernelThatAPlanTakes) {
  struct Seen {
    std::string first;
    int total = 0;
  } seen;
  const mica_attention a = describe();
  ASSERT_EQ(mica_list_kernels(
                &a, MICA_FORWARD,
                [](void* context, const char* kernel, const char* why_not) {
                  Seen& s = *static_cast<Seen*>(context);
                  ++s.total;
                  if (!*why_not && s.first.empty()) s.first = kernel;
                },
                &seen),
            MICA_OK);
  mica_plan* plan = nullptr;
  ASSERT_EQ(mica_plan_create(&a, MICA_FORWARD, &plan), MICA_OK);
  EXPECT_EQ(seen.first, mica_plan_kernel(plan));
  EXPECT_GT(seen.total, 1);
  EXPECT_GE(mica_plan_splits(plan), 1);
  mica_plan_destroy(plan);
}

}  // namespace
}  // namespace mica::testing_api
