// SPDX-License-Identifier: Apache-2.0
// One bad call per rule of src/api/validate.cc, with its exact message.
#include <fstream>
#include <functional>
#include <sstream>

#include "tests/api/description.h"

namespace mica::testing_api {
namespace {

struct BadCall {
  const char* name;
  const char* message;
  mica_status status;
  mica_pass pass;
  std::function<void(mica_attention&)> spoil;  // from describe() or, in backward, describe_backward()
};

constexpr mica_pass kForward = MICA_FORWARD, kBackward = MICA_BACKWARD;
constexpr mica_status kInvalid = MICA_ERROR_INVALID, kUnsupported = MICA_ERROR_UNSUPPORTED;
constexpr int64_t k2To40 = int64_t{1} << 40, k2To30 = int64_t{1} << 30;

void pack(mica_attention& a, int64_t batch) {
  a.q = dense(MICA_FP32, {1, 10, 4, 8});
  a.o = dense(MICA_FP32, {1, 10, 4, 6});
  a.lse = dense(MICA_FP32, {1, 4, 10, 1});
  a.k = dense(MICA_FP32, {1, 14, 2, 8});
  a.v = dense(MICA_FP32, {1, 14, 2, 6});
  a.sequences.vectors = MICA_CU_SEQLENS_Q | MICA_CU_SEQLENS_K;
  a.sequences.batch = batch;
}

// 5 pages of 4 rows, 3 for each of the 2 sequences.
void page(mica_attention& a) {
  a.k = dense(MICA_FP32, {5, 4, 2, 8});
  a.v = dense(MICA_FP32, {5, 4, 2, 6});
  a.sequences.block_table = dense(MICA_INT32, {2, 3, 1, 1});
}

void append(mica_attention& a, int64_t rows = 3) {
  a.append.k_new = dense(MICA_FP32, {2, rows, 2, 8});
  a.append.v_new = dense(MICA_FP32, {2, rows, 2, 6});
  a.sequences.vectors |= MICA_SEQUSED_K;
}

void rotate(mica_attention& a, int64_t positions = 7, int64_t half = 4) {
  append(a);
  a.append.rotary_cos = dense(MICA_FP32, {positions, half, 1, 1});
  a.append.rotary_sin = a.append.rotary_cos;
}

// k and v, and q where all is asked for, in e4m3.
void quantise(mica_attention& a, bool all) {
  a.k.dtype = a.v.dtype = MICA_FP8_E4M3;
  if (all) a.q.dtype = MICA_FP8_E4M3;
}

// Nine keys and values that all sequences share.
void share(mica_attention& a) {
  a.k_prefix = dense(MICA_FP32, {1, 9, 2, 8});
  a.v_prefix = dense(MICA_FP32, {1, 9, 2, 6});
}

// A query of the values' own.
void ask_values(mica_attention& a) { a.qv = dense(MICA_FP32, {2, 5, 4, 6}); }

// clang-format off
const BadCall kBadCalls[] = {
  {"struct_bytes", "struct_bytes is 8, want 2216 (sizeof(mica_attention); use MICA_ATTENTION_INIT)", kInvalid, kForward,
   [](mica_attention& a) { a.struct_bytes = 8; }},
  {"struct_bytes_of_a_later_header", "struct_bytes is 2224, want at most 2216: the program was compiled with the header of a later Mica",
   kInvalid, kForward, [](mica_attention& a) { a.struct_bytes = 2224; }},
  {"abi_version", "abi_version is 9, want 1 (use MICA_ATTENTION_INIT)", kInvalid, kForward,
   [](mica_attention& a) { a.abi_version = 9; }},

  // Every tensor.
  {"dtype_absent", "q.dtype is 0, want a mica_dtype", kInvalid, kForward, [](mica_attention& a) { a.q.dtype = 0; }},
  {"dtype_unknown", "k.dtype is 77, want a mica_dtype", kInvalid, kForward, [](mica_attention& a) { a.k.dtype = 77; }},
  {"dtype_negative", "v.dtype is -1, want a mica_dtype", kInvalid, kForward, [](mica_attention& a) { a.v.dtype = -1; }},
  {"alignment_odd", "q.alignment is 12, want 0 or a power of two from 4 to 4096", kInvalid, kForward,
   [](mica_attention& a) { a.q.alignment = 12; }},
  {"alignment_small", "q.alignment is 2, want 0 or a power of two from 4 to 4096", kInvalid, kForward,
   [](mica_attention& a) { a.q.alignment = 2; }},
  {"alignment_large", "o.alignment is 8192, want 0 or a power of two from 4 to 4096", kInvalid, kForward,
   [](mica_attention& a) { a.o.alignment = 8192; }},
  {"alignment_negative", "q.alignment is -2147483648, want 0 or a power of two from 4 to 4096", kInvalid, kForward,
   [](mica_attention& a) { a.q.alignment = INT32_MIN; }},
  {"shape_negative", "q.shape[1] is -5, want 0 or more", kInvalid, kForward, [](mica_attention& a) { a.q.shape[1] = -5; }},
  {"shape_huge", "k.shape[1] is 9223372036854775807, which makes more than 2^48 elements", kInvalid, kForward,
   [](mica_attention& a) { a.k.shape[1] = INT64_MAX; }},
  {"shape_product_wraps", "k.shape[1] is 1099511627776, which makes more than 2^48 elements", kInvalid, kForward,
   [](mica_attention& a) { a.k.shape[0] = k2To40, a.k.shape[1] = k2To40, a.k.shape[2] = k2To40; }},
  {"stride_huge", "q.stride[0] is 281474976710656, which reaches past 2^48 elements", kInvalid, kForward,
   [](mica_attention& a) { a.q.stride[0] = int64_t{1} << 48; }},
  {"stride_most_negative", "q.stride[0] is -9223372036854775808, which reaches past 2^48 elements", kInvalid, kForward,
   [](mica_attention& a) { a.q.stride[0] = INT64_MIN; }},

  // q, k, v.
  {"q_type", "q.dtype is bool, want fp32, fp16, bf16 or e4m3", kInvalid, kForward, [](mica_attention& a) { a.q.dtype = MICA_BOOL; }},
  {"k_type", "k.dtype is bf16, want fp32 (= q.dtype) or e4m3", kInvalid, kForward, [](mica_attention& a) { a.k.dtype = MICA_BF16; }},
  {"v_type", "v.dtype is fp16, want fp32 (= k.dtype)", kInvalid, kForward, [](mica_attention& a) { a.v.dtype = MICA_FP16; }},
  {"q_not_dense", "q.stride[3] is 2, want 1 (the last dimension must be dense)", kInvalid, kForward,
   [](mica_attention& a) { a.q.stride[3] = 2; }},
  {"k_not_dense", "k.stride[3] is -1, want 1 (the last dimension must be dense)", kInvalid, kForward,
   [](mica_attention& a) { a.k.stride[3] = -1; }},
  {"v_not_dense", "v.stride[3] is 0, want 1 (the last dimension must be dense)", kInvalid, kForward,
   [](mica_attention& a) { a.v.stride[3] = 0; }},
  {"dim_zero", "q.shape[3] is 0, want 1 to 576", kInvalid, kForward, [](mica_attention& a) { a.q.shape[3] = 0; }},
  {"dim_large", "q.shape[3] is 577, want 1 to 576", kInvalid, kForward, [](mica_attention& a) { a.q.shape[3] = 577; }},
  {"dim_differs", "k.shape[3] is 96, want 8 (= q.shape[3])", kInvalid, kForward, [](mica_attention& a) { a.k.shape[3] = 96; }},
  {"dim_v_large", "v.shape[3] is 513, want 1 to 512", kInvalid, kForward, [](mica_attention& a) { a.v.shape[3] = 513; }},
  {"heads_none", "q.shape[2] is 0, want 1 to 65535 heads", kInvalid, kForward, [](mica_attention& a) { a.q.shape[2] = 0; }},
  {"heads_many", "q.shape[2] is 65536, want 1 to 65535 heads", kInvalid, kForward,
   [](mica_attention& a) { a.q.shape[2] = 65536; }},
  {"heads_k", "k.shape[2] is 3, want a divisor of 4 (= q.shape[2])", kInvalid, kForward,
   [](mica_attention& a) { a.k.shape[2] = 3; }},
  {"v_rows", "v.shape[1] is 8, want 7 (= k.shape[1])", kInvalid, kForward, [](mica_attention& a) { a.v.shape[1] = 8; }},

  // Sequences.
  {"vectors_unknown", "sequences.vectors is 0x40, want bits of mica_vectors (0x3f)", kInvalid, kForward,
   [](mica_attention& a) { a.sequences.vectors = 0x40; }},
  {"batch_negative", "sequences.batch is -1, want 0 or more", kInvalid, kForward,
   [](mica_attention& a) { a.sequences.batch = -1; }},
  {"batch_huge", "sequences.batch is 1073741824, want batch * heads below 2^31", kInvalid, kForward,
   [](mica_attention& a) { pack(a, k2To30); }},
  {"packed_q_slots", "q.shape[0] is 2, want 1 (q is packed by cu_seqlens_q)", kInvalid, kForward,
   [](mica_attention& a) { pack(a, 2); a.q.shape[0] = 2; }},
  {"q_batch", "q.shape[0] is 2, want 3 (= sequences.batch)", kInvalid, kForward,
   [](mica_attention& a) { a.sequences.batch = 3; }},
  {"block_table_type", "sequences.block_table.dtype is fp32, want int32", kInvalid, kForward,
   [](mica_attention& a) { page(a); a.sequences.block_table.dtype = MICA_FP32; }},
  {"block_table_batch", "sequences.block_table.shape[0] is 3, want 2 (= sequences.batch)", kInvalid, kForward,
   [](mica_attention& a) { page(a); a.sequences.block_table.shape[0] = 3; }},
  {"page_size_zero", "k.shape[1] is 0, want 1 or more (the page size)", kInvalid, kForward,
   [](mica_attention& a) { page(a); a.k.shape[1] = a.v.shape[1] = 0; }},
  {"pages_too_many", "sequences.block_table.shape[1] is 536870912, want at most 2^29 keys in all its pages of 4", kInvalid,
   kForward, [](mica_attention& a) { page(a); a.sequences.block_table = dense(MICA_INT32, {2, 536870912, 1, 1}); }},
  {"pages_none", "k.shape[0] is 0, want 1 or more pages", kInvalid, kForward,
   [](mica_attention& a) { page(a); a.k.shape[0] = a.v.shape[0] = 0; }},
  {"paged_batch_idx", "sequences.vectors has cache_batch_idx, which block_table makes meaningless", kInvalid, kForward,
   [](mica_attention& a) { page(a); a.sequences.vectors = MICA_CACHE_BATCH_IDX; }},
  {"packed_k_slots", "k.shape[0] is 2, want 1 (k is packed by cu_seqlens_k)", kInvalid, kForward,
   [](mica_attention& a) { a.sequences.vectors = MICA_CU_SEQLENS_K; }},
  {"packed_k_batch_idx", "sequences.vectors has cache_batch_idx, which cu_seqlens_k makes meaningless", kInvalid, kForward,
   [](mica_attention& a) { pack(a, 2); a.sequences.vectors |= MICA_CACHE_BATCH_IDX; }},
  {"no_slots", "k.shape[0] is 0, want 1 or more cache slots", kInvalid, kForward,
   [](mica_attention& a) { a.sequences.vectors = MICA_CACHE_BATCH_IDX; a.k.shape[0] = a.v.shape[0] = 0; }},
  {"k_batch", "k.shape[0] is 3, want 2 (the batch)", kInvalid, kForward,
   [](mica_attention& a) { a.k.shape[0] = a.v.shape[0] = 3; }},
  {"slots_many", "k.shape[0] is 2147483648, want below 2^31", kInvalid, kForward,
   [](mica_attention& a) {
     a.sequences.vectors = MICA_CACHE_BATCH_IDX;
     a.k = dense(MICA_FP32, {int64_t{1} << 31, 1, 2, 8}), a.v = dense(MICA_FP32, {int64_t{1} << 31, 1, 2, 6});
   }},
  {"q_long", "q.shape[1] is 536870913, want at most 536870912", kInvalid, kForward,
   [](mica_attention& a) { a.q = dense(MICA_FP32, {2, 536870913, 4, 8}); }},
  {"k_long", "k.shape[1] is 536870913, want at most 536870912", kInvalid, kForward,
   [](mica_attention& a) { a.k = dense(MICA_FP32, {2, 536870913, 2, 8}), a.v = dense(MICA_FP32, {2, 536870913, 2, 6}); }},
  {"q_packed_long", "q.shape[1] is 2147483648, want at most 2147483647", kInvalid, kForward,
   [](mica_attention& a) { pack(a, 2); a.q = dense(MICA_FP32, {1, int64_t{1} << 31, 4, 8}); }},
  {"max_seqlen_q", "sequences.max_seqlen_q is -3, want 0 to 536870912", kInvalid, kForward,
   [](mica_attention& a) { a.sequences.max_seqlen_q = -3; }},
  {"max_seqlen_k", "sequences.max_seqlen_k is 536870913, want 0 to 536870912", kInvalid, kForward,
   [](mica_attention& a) { a.sequences.max_seqlen_k = 536870913; }},

  // Outputs.
  {"o_absent", "o.dtype is absent, want fp32 (= q.dtype) or fp32", kInvalid, kForward, [](mica_attention& a) { a.o.dtype = 0; }},
  {"o_type", "o.dtype is bf16, want fp32 (= q.dtype) or fp32", kInvalid, kForward,
   [](mica_attention& a) { a.o.dtype = MICA_BF16; }},
  {"o_not_dense", "o.stride[3] is 5, want 1 (the last dimension must be dense)", kInvalid, kForward,
   [](mica_attention& a) { a.o.stride[3] = 5; }},
  {"o_rows", "o.shape[1] is 6, want 5 (= q.shape[1])", kInvalid, kForward, [](mica_attention& a) { a.o.shape[1] = 6; }},
  {"o_dim", "o.shape[3] is 8, want 6 (= v.shape[3])", kInvalid, kForward, [](mica_attention& a) { a.o.shape[3] = 8; }},
  {"o_overlaps", "o.stride[1] is 20, want at least 24 (an output may not overlap itself)", kInvalid, kForward,
   [](mica_attention& a) { a.o.stride[1] = 20; }},
  {"o_overlaps_by_zero", "o.stride[0] is 0, want at least 1 (an output may not overlap itself)", kInvalid, kForward,
   [](mica_attention& a) { a.o.stride[0] = 0; }},
  {"lse_type", "lse.dtype is bf16, want fp32", kInvalid, kForward, [](mica_attention& a) { a.lse.dtype = MICA_BF16; }},
  {"lse_heads", "lse.shape[1] is 5, want 4 (= q.shape[2])", kInvalid, kForward,
   [](mica_attention& a) { a.lse = dense(MICA_FP32, {2, 5, 4, 1}); }},
  {"lse_overlaps", "lse.stride[2] is 0, want at least 1 (an output may not overlap itself)", kInvalid, kForward,
   [](mica_attention& a) { a.lse.stride[2] = 0; }},
  {"lse_absent_backward", "lse.dtype is absent, want fp32 (backward reads what forward wrote)", kInvalid, kBackward,
   [](mica_attention& a) { a.lse.dtype = 0; }},
  {"probs_backward", "probs.dtype is fp32, want absent in backward", kInvalid, kBackward,
   [](mica_attention& a) { a.probs = dense(MICA_FP32, {2, 4, 5, 7}); }},
  {"probs_type", "probs.dtype is fp16, want fp32", kInvalid, kForward,
   [](mica_attention& a) { a.probs = dense(MICA_FP16, {2, 4, 5, 7}); }},
  {"probs_shape", "probs.shape[3] is 1, want 7 (= k.shape[1])", kInvalid, kForward,
   [](mica_attention& a) { a.probs = dense(MICA_FP32, {2, 4, 5, 1}); }},

  // Mask.
  {"causal", "mask.causal is 3, want a mica_causal (0 to 2)", kInvalid, kForward, [](mica_attention& a) { a.mask.causal = 3; }},
  {"diagonal", "mask.diagonal is -1, want a mica_diagonal (0 to 2)", kInvalid, kForward,
   [](mica_attention& a) { a.mask.diagonal = -1; }},
  {"window_left", "mask.window_left is -2, want 0 or more, or MICA_UNLIMITED (-1)", kInvalid, kForward,
   [](mica_attention& a) { a.mask.window_left = -2; }},
  {"window_right", "mask.window_right is -9, want 0 or more, or MICA_UNLIMITED (-1)", kInvalid, kForward,
   [](mica_attention& a) { a.mask.window_right = -9; }},
  {"window_right_causal", "mask.window_right is 4, want 0 or MICA_UNLIMITED (causal hides what lies to the right)", kInvalid,
   kForward, [](mica_attention& a) { a.mask.causal = 1, a.mask.window_right = 4; }},
  {"diagonal_against_causal", "mask.diagonal is 2, want 1 (the alignment that mask.causal names)", kInvalid, kForward,
   [](mica_attention& a) { a.mask.causal = 1, a.mask.diagonal = 2; }},
  {"last_keys_without_a_mask", "mask_last_keys is 3, want 0 or 0 (= mask.boolean.shape[3])", kInvalid, kForward,
   [](mica_attention& a) { a.mask_last_keys = 3; }},
  {"last_keys_of_another_mask", "mask_last_keys is 4, want 0 or 5 (= mask.boolean.shape[3])", kInvalid, kForward,
   [](mica_attention& a) { a.mask.boolean = dense(MICA_BOOL, {2, 1, 5, 5}), a.mask_last_keys = 4; }},
  {"last_keys_rows", "mask.boolean.shape[2] is 4, want 1 or 5 (= q.shape[1])", kInvalid, kForward,
   [](mica_attention& a) { a.mask.boolean = dense(MICA_BOOL, {2, 1, 4, 5}), a.mask_last_keys = 5; }},
  {"last_keys_many", "mask_last_keys is 536870913, want at most 536870912", kInvalid, kForward,
   [](mica_attention& a) {
     a.mask_last_keys = MICA_MAX_SEQLEN + 1;
     a.mask.boolean = dense(MICA_BOOL, {1, 1, 5, a.mask_last_keys});
   }},
  {"last_keys_backward", "mask_last_keys is 5, but it is for inference and has no gradient", kUnsupported, kBackward,
   [](mica_attention& a) { a.mask.boolean = dense(MICA_BOOL, {2, 1, 5, 5}), a.mask_last_keys = 5; }},
  {"prefix_keys_alone", "v_prefix is absent, want it together with k_prefix", kInvalid, kForward,
   [](mica_attention& a) { a.k_prefix = dense(MICA_FP32, {1, 9, 2, 8}); }},
  {"prefix_values_alone", "k_prefix is absent, want it together with v_prefix", kInvalid, kForward,
   [](mica_attention& a) { a.v_prefix = dense(MICA_FP32, {1, 9, 2, 6}); }},
  {"prefix_for_each_sequence", "k_prefix.shape[0] is 2, want 1 (every sequence has the same)", kInvalid, kForward,
   [](mica_attention& a) { share(a); a.k_prefix = dense(MICA_FP32, {2, 9, 2, 8}); }},
  {"prefix_heads", "k_prefix.shape[2] is 4, want 2 (= k.shape[2])", kInvalid, kForward,
   [](mica_attention& a) { share(a); a.k_prefix = dense(MICA_FP32, {1, 9, 4, 8}); }},
  {"prefix_dim", "v_prefix.shape[3] is 8, want 6 (= v.shape[3])", kInvalid, kForward,
   [](mica_attention& a) { share(a); a.v_prefix = dense(MICA_FP32, {1, 9, 2, 8}); }},
  {"prefix_lengths", "v_prefix.shape[1] is 8, want 9 (= k_prefix.shape[1])", kInvalid, kForward,
   [](mica_attention& a) { share(a); a.v_prefix = dense(MICA_FP32, {1, 8, 2, 6}); }},
  {"prefix_dtype", "k_prefix.dtype is bf16, want fp32 (= q.dtype)", kInvalid, kForward,
   [](mica_attention& a) { share(a); a.k_prefix.dtype = MICA_BF16; }},
  {"prefix_not_dense", "k_prefix.stride[3] is 2, want 1 (the last dimension must be dense)", kInvalid, kForward,
   [](mica_attention& a) { share(a); a.k_prefix.stride[3] = 2; }},
  {"prefix_window", "mask.window_left is given with k_prefix, want it absent: every row sees the whole prefix", kInvalid, kForward,
   [](mica_attention& a) { share(a); a.mask.window_left = 3, a.mask.diagonal = 1; }},
  {"prefix_window_right", "mask.window_right is given with k_prefix, want it absent: every row sees the whole prefix", kInvalid, kForward,
   [](mica_attention& a) { share(a); a.mask.window_right = 3, a.mask.diagonal = 1; }},
  {"prefix_top_left", "mask.causal of the top left is given with k_prefix, want it absent: the prefix comes before every row", kInvalid,
   kForward, [](mica_attention& a) { share(a); a.mask.causal = MICA_CAUSAL_TOP_LEFT; }},
  {"prefix_chunk", "attention_chunk is given with k_prefix, want it absent: every row sees the whole prefix", kInvalid, kForward,
   [](mica_attention& a) { share(a); a.mask.causal = 1, a.attention_chunk = 4; }},
  {"prefix_alibi", "score.alibi is given with k_prefix, want it absent: it would count the prefix's keys", kInvalid, kForward,
   [](mica_attention& a) { share(a); a.mask.diagonal = 1, a.score.alibi = dense(MICA_FP32, {1, 4, 1, 1}); }},
  {"prefix_bias", "score.bias is given with k_prefix, want it absent: every row sees the whole prefix", kInvalid, kForward,
   [](mica_attention& a) { share(a); a.score.bias = dense(MICA_FP32, {1, 1, 5, 7}); }},
  {"prefix_dropout", "dropout.probability is given with k_prefix, want it absent: it is for inference", kInvalid, kForward,
   [](mica_attention& a) { share(a); a.dropout.probability = 0.5f; }},
  {"prefix_probs", "probs is given with k_prefix, want it absent: they would be of both parts", kInvalid, kForward,
   [](mica_attention& a) { share(a); a.probs = dense(MICA_FP32, {2, 4, 5, 7}); }},
  {"prefix_shift", "place.shift is given with k_prefix, want it absent: every row sees the whole prefix", kInvalid, kForward,
   [](mica_attention& a) { share(a); a.place.shift = 2; }},
  {"prefix_invariant", "control.batch_invariant is given with k_prefix, want it absent: the sequences are computed together", kInvalid,
   kForward, [](mica_attention& a) { share(a); a.control.batch_invariant = 1; }},
  {"prefix_seqused_q", "seqused_q is given with k_prefix, want it absent: the rows of all sequences are rows of one", kInvalid, kForward,
   [](mica_attention& a) { share(a); a.sequences.vectors = MICA_SEQUSED_Q; }},
  {"prefix_rotary", "append.rotary_cos is given with k_prefix, want it absent: q would have to be turned for the prefix: turn it before",
   kInvalid, kForward,
   [](mica_attention& a) {
     share(a);
     a.sequences.vectors = MICA_SEQUSED_K;
     a.append.k_new = dense(MICA_FP32, {2, 1, 2, 8}), a.append.v_new = dense(MICA_FP32, {2, 1, 2, 6});
     a.append.rotary_cos = a.append.rotary_sin = dense(MICA_FP32, {7, 4, 1, 1});
   }},
  {"prefix_rows_unevenly_spaced",
   "q.stride[0] is 200, want 160 with k_prefix (= q.shape[1] * q.stride[1]: all rows evenly spaced)", kInvalid, kForward,
   [](mica_attention& a) { share(a); a.q.stride[0] = 200; }},
  {"prefix_many_keys", "k_prefix.shape[1] is 536870913, want at most 536870912", kInvalid, kForward,
   [](mica_attention& a) {
     a.k_prefix = dense(MICA_FP32, {1, MICA_MAX_SEQLEN + 1, 2, 8}), a.v_prefix = dense(MICA_FP32, {1, MICA_MAX_SEQLEN + 1, 2, 6});
   }},
  {"prefix_many_rows", "q.shape[0] is 107374183, want at most 2^29 rows in all with k_prefix", kInvalid, kForward,
   [](mica_attention& a) {
     share(a);
     for (mica_tensor* t : {&a.q, &a.k, &a.v, &a.o, &a.lse}) t->shape[0] = 107374183;
   }},
  {"qv_dim", "qv.shape[3] is 8, want 6 (= v.shape[3])", kInvalid, kForward,
   [](mica_attention& a) { a.qv = dense(MICA_FP32, {2, 5, 4, 8}); }},
  {"qv_rows", "qv.shape[1] is 4, want 5 (= q.shape[1])", kInvalid, kForward,
   [](mica_attention& a) { a.qv = dense(MICA_FP32, {2, 4, 4, 6}); }},
  {"qv_batch", "qv.shape[0] is 1, want 2 (= q.shape[0])", kInvalid, kForward,
   [](mica_attention& a) { a.qv = dense(MICA_FP32, {1, 5, 4, 6}); }},
  {"qv_heads", "qv.shape[2] is 2, want 4 (= q.shape[2])", kInvalid, kForward,
   [](mica_attention& a) { a.qv = dense(MICA_FP32, {2, 5, 2, 6}); }},
  {"qv_dtype", "qv.dtype is bf16, want fp32 (= q.dtype)", kInvalid, kForward,
   [](mica_attention& a) { ask_values(a); a.qv.dtype = MICA_BF16; }},
  {"qv_alignment", "qv.alignment is 3, want 0 or a power of two from 4 to 4096", kInvalid, kForward,
   [](mica_attention& a) { ask_values(a); a.qv.alignment = 3; }},
  {"qv_not_dense", "qv.stride[3] is 2, want 1 (the last dimension must be dense)", kInvalid, kForward,
   [](mica_attention& a) { ask_values(a); a.qv.stride[3] = 2; }},
  {"qv_fp8", "qv is given and k.dtype is e4m3, want fp32, fp16 or bf16", kInvalid, kForward,
   [](mica_attention& a) { ask_values(a); quantise(a, false); }},
  {"qv_too_wide", "qv.shape[3] is 512, want at most 476 (with q.shape[3] 576 in all)", kInvalid, kForward,
   [](mica_attention& a) {
     a.q = dense(MICA_FP32, {2, 5, 4, 100}), a.k = dense(MICA_FP32, {2, 7, 2, 100}), a.v = dense(MICA_FP32, {2, 7, 2, 512});
     a.o = a.qv = dense(MICA_FP32, {2, 5, 4, 512});
   }},
  {"qv_dropout", "dropout.probability is given with qv, want it absent", kInvalid, kForward,
   [](mica_attention& a) { ask_values(a); a.dropout.probability = 0.5f; }},
  {"qv_probs", "probs is given with qv, want it absent", kInvalid, kForward,
   [](mica_attention& a) { ask_values(a); a.probs = dense(MICA_FP32, {2, 4, 5, 7}); }},
  {"qv_prefix", "k_prefix is given with qv, want it absent", kInvalid, kForward,
   [](mica_attention& a) { ask_values(a); share(a); a.k_prefix = dense(MICA_FP32, {1, 9, 2, 8}); }},
  {"qv_rotary", "append.rotary_cos.shape[1] is 5, want 1 to 4 (half the rotary dimension, at most q.shape[3] / 2)", kInvalid,
   kForward, [](mica_attention& a) { ask_values(a); rotate(a, 7, 5); }},
  {"qv_backward", "qv is given, but it is for inference and has no gradient", kUnsupported, kBackward,
   [](mica_attention& a) { ask_values(a); }},
  {"prefix_backward", "k_prefix is given, but it is for inference and has no gradient", kUnsupported, kBackward,
   [](mica_attention& a) { share(a); }},
  {"chunk_negative", "attention_chunk is -1, want 0 (no chunks) to 536870912", kInvalid, kForward,
   [](mica_attention& a) { a.attention_chunk = -1; }},
  {"chunk_beyond_the_longest", "attention_chunk is 536870913, want 0 (no chunks) to 536870912", kInvalid, kForward,
   [](mica_attention& a) { a.mask.causal = 1, a.attention_chunk = MICA_MAX_SEQLEN + 1; }},
  {"chunk_diagonal",
   "mask.diagonal is 0, want MICA_DIAGONAL_BOTTOM_RIGHT (1) or MICA_DIAGONAL_TOP_LEFT (2), since there are chunks",
   kInvalid, kForward, [](mica_attention& a) { a.attention_chunk = 4; }},
  {"chunk_key_step", "place.key_step is 2, want 0 or 1 with attention_chunk", kInvalid, kForward,
   [](mica_attention& a) { a.mask.causal = 1, a.attention_chunk = 4, a.place.key_step = 2; }},
  {"diagonal_unnamed_window",
   "mask.diagonal is 0, want MICA_DIAGONAL_BOTTOM_RIGHT (1) or MICA_DIAGONAL_TOP_LEFT (2), since there is a window",
   kInvalid, kForward, [](mica_attention& a) { a.mask.window_left = 4; }},
  {"diagonal_unnamed_alibi",
   "mask.diagonal is 0, want MICA_DIAGONAL_BOTTOM_RIGHT (1) or MICA_DIAGONAL_TOP_LEFT (2), since there is ALiBi",
   kInvalid, kForward, [](mica_attention& a) { a.score.alibi = dense(MICA_FP32, {1, 4, 1, 1}); }},
  {"mask_type", "mask.boolean.dtype is int32, want bool", kInvalid, kForward,
   [](mica_attention& a) { a.mask.boolean = dense(MICA_INT32, {2, 4, 5, 7}); }},
  {"mask_shape", "mask.boolean.shape[2] is 2, want 1 or 5 (= q.shape[1])", kInvalid, kForward,
   [](mica_attention& a) { a.mask.boolean = dense(MICA_BOOL, {2, 4, 2, 7}); }},

  // Score.
  {"scale_nan", "score.scale is nan, want a number of magnitude at most 1e30 (0: 1/sqrt(dim))", kInvalid, kForward,
   [](mica_attention& a) { a.score.scale = std::numeric_limits<float>::quiet_NaN(); }},
  {"scale_infinite", "score.scale is -inf, want a number of magnitude at most 1e30 (0: 1/sqrt(dim))", kInvalid, kForward,
   [](mica_attention& a) { a.score.scale = -kInf; }},
  {"softcap_negative", "score.softcap is -1, want 0 (none) or a positive number up to 1e30", kInvalid, kForward,
   [](mica_attention& a) { a.score.softcap = -1; }},
  {"softcap_nan", "score.softcap is nan, want 0 (none) or a positive number up to 1e30", kInvalid, kForward,
   [](mica_attention& a) { a.score.softcap = std::numeric_limits<float>::quiet_NaN(); }},
  {"softcap_tiny", "score.softcap is 1e-35, want it larger: scale / softcap is beyond 1e30", kInvalid, kForward,
   [](mica_attention& a) { a.score.softcap = 1e-35f; }},
  {"softcap_huge", "score.softcap is 1e+30, want it smaller, or 0 (none): scale / softcap is below 1e-37", kInvalid,
   kForward, [](mica_attention& a) { a.score.scale = -1e-8f, a.score.softcap = 1e30f; }},
  {"alibi_type", "score.alibi.dtype is bf16, want fp32", kInvalid, kForward,
   [](mica_attention& a) { a.mask.causal = 1, a.score.alibi = dense(MICA_BF16, {1, 4, 1, 1}); }},
  {"alibi_shape", "score.alibi.shape[0] is 3, want 1 or 2 (the batch)", kInvalid, kForward,
   [](mica_attention& a) { a.mask.causal = 1, a.score.alibi = dense(MICA_FP32, {3, 4, 1, 1}); }},
  {"bias_type", "score.bias.dtype is int32, want fp32, fp16 or bf16", kInvalid, kForward,
   [](mica_attention& a) { a.score.bias = dense(MICA_INT32, {2, 4, 5, 7}); }},
  {"bias_shape", "score.bias.shape[1] is 2, want 1 or 4 (= q.shape[2])", kInvalid, kForward,
   [](mica_attention& a) { a.score.bias = dense(MICA_FP32, {2, 2, 5, 7}); }},
  {"sinks_type", "score.sinks.dtype is bool, want fp32, fp16 or bf16", kInvalid, kForward,
   [](mica_attention& a) { a.score.sinks = dense(MICA_BOOL, {4, 1, 1, 1}); }},
  {"sinks_shape", "score.sinks.shape[0] is 2, want 4 (= q.shape[2])", kInvalid, kForward,
   [](mica_attention& a) { a.score.sinks = dense(MICA_FP32, {2, 1, 1, 1}); }},

  // Append.
  {"interleaved", "append.rotary_interleaved is 2, want 0 or 1", kInvalid, kForward,
   [](mica_attention& a) { a.append.rotary_interleaved = 2; }},
  {"v_new_absent", "append.v_new is absent, want it together with append.k_new", kInvalid, kForward,
   [](mica_attention& a) { append(a); a.append.v_new.dtype = 0; }},
  {"k_new_absent", "append.k_new is absent, want it together with append.v_new", kInvalid, kForward,
   [](mica_attention& a) { append(a); a.append.k_new.dtype = 0; }},
  {"rotary_sin_absent", "append.rotary_sin is absent, want it together with append.rotary_cos", kInvalid, kForward,
   [](mica_attention& a) { rotate(a); a.append.rotary_sin.dtype = 0; }},
  {"rotary_alone", "append.rotary_cos is given, want append.k_new with it (rotary turns q and the new keys)", kInvalid, kForward,
   [](mica_attention& a) { rotate(a); a.append.k_new.dtype = a.append.v_new.dtype = 0; }},
  {"k_new_type", "append.k_new.dtype is bf16, want fp32 (= q.dtype)", kInvalid, kForward,
   [](mica_attention& a) { append(a); a.append.k_new.dtype = MICA_BF16; }},
  {"v_new_type", "append.v_new.dtype is bf16, want fp32 (= q.dtype)", kInvalid, kForward,
   [](mica_attention& a) { append(a); a.append.v_new.dtype = MICA_BF16; }},
  {"k_new_not_dense", "append.k_new.stride[3] is 2, want 1 (the last dimension must be dense)", kInvalid, kForward,
   [](mica_attention& a) { append(a); a.append.k_new.stride[3] = 2; }},
  {"k_new_batch", "append.k_new.shape[0] is 1, want 2 (the batch)", kInvalid, kForward,
   [](mica_attention& a) { append(a); a.append.k_new.shape[0] = 1; }},
  {"v_new_rows", "append.v_new.shape[1] is 2, want 3 (= append.k_new.shape[1])", kInvalid, kForward,
   [](mica_attention& a) { append(a); a.append.v_new.shape[1] = 2; }},
  {"append_nowhere", "sequences.vectors lacks seqused_k, want it with append.k_new (where to write)", kInvalid, kForward,
   [](mica_attention& a) { append(a); a.sequences.vectors = 0; }},
  {"append_packed", "sequences.vectors has cu_seqlens_k, want a cache to append to", kInvalid, kForward,
   [](mica_attention& a) { pack(a, 2); append(a); }},
  {"append_too_much", "append.k_new.shape[1] is 8, want at most 7 (the capacity of the cache)", kInvalid, kForward,
   [](mica_attention& a) { append(a, 8); }},
  {"append_overlaps", "k.stride[2] is 0, want at least 1 (an output may not overlap itself)", kInvalid, kForward,
   [](mica_attention& a) { append(a); a.k.stride[2] = 0; }},
  {"append_overlaps_v", "v.stride[0] is 1, want at least 6 (an output may not overlap itself)", kInvalid, kForward,
   [](mica_attention& a) { append(a); a.v.stride[0] = 1; }},
  {"rotary_type", "append.rotary_cos.dtype is bf16, want fp32 (= q.dtype) or fp32", kInvalid, kForward,
   [](mica_attention& a) { rotate(a); a.append.rotary_cos.dtype = a.append.rotary_sin.dtype = MICA_BF16; }},
  {"rotary_types_differ", "append.rotary_sin.dtype is bf16, want fp32 (= append.rotary_cos.dtype)", kInvalid, kForward,
   [](mica_attention& a) { rotate(a); a.append.rotary_sin.dtype = MICA_BF16; }},
  {"rotary_wide",
   "append.rotary_cos.shape[1] is 5, want 1 to 4 (half the rotary dimension, at most q.shape[3] / 2)", kInvalid, kForward,
   [](mica_attention& a) { rotate(a, 7, 5); }},
  {"rotary_short", "append.rotary_cos.shape[0] is 6, want at least 7 (the capacity of the cache)", kInvalid, kForward,
   [](mica_attention& a) { rotate(a, 6); }},
  {"rotary_sin_shape", "append.rotary_sin.shape[0] is 8, want 7 (= append.rotary_cos.shape[0])", kInvalid, kForward,
   [](mica_attention& a) { rotate(a); a.append.rotary_sin.shape[0] = 8; }},

  // Dropout and control.
  {"dropout_one", "dropout.probability is 1, want 0 <= p < 1", kInvalid, kForward,
   [](mica_attention& a) { a.dropout.probability = 1; }},
  {"dropout_nan", "dropout.probability is nan, want 0 <= p < 1", kInvalid, kForward,
   [](mica_attention& a) { a.dropout.probability = std::numeric_limits<float>::quiet_NaN(); }},
  {"rng_flag", "dropout.rng_from_memory is 2, want 0 or 1", kInvalid, kForward,
   [](mica_attention& a) { a.dropout.rng_from_memory = 2; }},

  // e4m3 and its factors.
  {"fp8_keys_of_another_type", "k.dtype is fp16, want e4m3 (= q.dtype)", kInvalid, kForward,
   [](mica_attention& a) { quantise(a, true); a.k.dtype = MICA_FP16; }},
  {"fp8_values_of_another_type", "v.dtype is fp32, want e4m3 (= k.dtype)", kInvalid, kForward,
   [](mica_attention& a) { quantise(a, false); a.v.dtype = MICA_FP32; }},
  {"fp8_output", "o.dtype is e4m3, want bf16, fp16 or fp32 (q is e4m3)", kInvalid, kForward,
   [](mica_attention& a) { quantise(a, true); a.o.dtype = MICA_FP8_E4M3; }},
  {"fp8_output_absent", "o.dtype is absent, want bf16, fp16 or fp32", kInvalid, kForward,
   [](mica_attention& a) { quantise(a, true); a.o.dtype = MICA_NONE; }},
  {"fp8_bias", "score.bias.dtype is e4m3, want fp32, fp16 or bf16", kInvalid, kForward,
   [](mica_attention& a) { a.score.bias = dense(MICA_FP8_E4M3, {1, 1, 1, 1}); }},
  {"fp8_rotary", "append.rotary_cos is given, want q and k_new of 16 or 32 bits with it (q is e4m3)", kInvalid, kForward,
   [](mica_attention& a) { rotate(a); quantise(a, true); a.append.k_new.dtype = a.append.v_new.dtype = MICA_FP8_E4M3; }},
  {"fp8_append", "append.k_new.dtype is e4m3, want fp32 (= q.dtype)", kInvalid, kForward,
   [](mica_attention& a) { append(a); quantise(a, false); a.append.k_new.dtype = MICA_FP8_E4M3; }},
  {"fp8_backward", "k.dtype is e4m3, which has no backward", kUnsupported, kBackward,
   [](mica_attention& a) { quantise(a, false); }},
  {"descale_without_fp8", "quantisation.k_descale is given and k.dtype is fp32, want e4m3", kInvalid, kForward,
   [](mica_attention& a) { a.quantisation.k_descale = dense(MICA_FP32, {2, 2, 1, 1}); }},
  {"descale_of_queries", "quantisation.q_descale is given and q.dtype is fp32, want e4m3", kInvalid, kForward,
   [](mica_attention& a) { quantise(a, false); a.quantisation.q_descale = dense(MICA_FP32, {1, 1, 1, 1}); }},
  {"descale_dtype", "quantisation.v_descale.dtype is bf16, want fp32", kInvalid, kForward,
   [](mica_attention& a) { quantise(a, true); a.quantisation.v_descale = dense(MICA_BF16, {2, 2, 1, 1}); }},
  {"descale_sequences", "quantisation.q_descale.shape[0] is 3, want 1 or 2 (the batch)", kInvalid, kForward,
   [](mica_attention& a) { quantise(a, true); a.quantisation.q_descale = dense(MICA_FP32, {3, 2, 1, 1}); }},
  {"descale_heads", "quantisation.q_descale.shape[1] is 4, want 1 or 2 (= k.shape[2])", kInvalid, kForward,
   [](mica_attention& a) { quantise(a, true); a.quantisation.q_descale = dense(MICA_FP32, {2, 4, 1, 1}); }},
  {"descale_per_page", "quantisation.per_page is 1, want sequences.block_table with it", kInvalid, kForward,
   [](mica_attention& a) { quantise(a, true); a.quantisation.per_page = 1; }},
  {"descale_per_page_flag", "quantisation.per_page is 2, want 0 or 1", kInvalid, kForward,
   [](mica_attention& a) { a.quantisation.per_page = 2; }},
  {"descale_pages", "quantisation.k_descale.shape[0] is 3, want 1 or 4 (= k.shape[0], the pages)", kInvalid, kForward,
   [](mica_attention& a) {
     quantise(a, false);
     a.k.shape[0] = a.v.shape[0] = 4;
     a.sequences.block_table = dense(MICA_INT32, {2, 2, 1, 1});
     a.quantisation.per_page = 1;
     a.quantisation.k_descale = dense(MICA_FP32, {3, 2, 1, 1});
   }},
  {"descale_per_page_of_nothing", "quantisation.per_page is 1, want k_descale or v_descale with it", kInvalid, kForward,
   [](mica_attention& a) {
     quantise(a, false);
     a.k.shape[0] = a.v.shape[0] = 4;
     a.sequences.block_table = dense(MICA_INT32, {2, 2, 1, 1});
     a.quantisation.per_page = 1;
   }},
  {"descale_reserved", "quantisation.reserved is 5, want 0", kInvalid, kForward,
   [](mica_attention& a) { a.quantisation.reserved = 5; }},

  // A piece's place in a larger call.
  {"place_shift", "place.shift is -268435457, want at most 2^28 either way", kInvalid, kForward,
   [](mica_attention& a) { a.place.shift = -268435457; }},
  {"place_shift_append", "place.shift is 3, want 0 with append.k_new", kInvalid, kForward,
   [](mica_attention& a) { append(a); a.place.shift = 3; }},
  {"place_row_first", "place.row_first is -1, want 0 to 2^31 - 1", kInvalid, kForward,
   [](mica_attention& a) { a.place.row_first = -1; }},
  {"place_key_step", "place.key_step is 1073741824, want 0 or more, and the last of 7 places below 2^31", kInvalid,
   kForward, [](mica_attention& a) { a.place.key_step = k2To30; }},
  {"place_head_first", "place.head_first is -1, want 0 to 2^31 - 1", kInvalid, kForward,
   [](mica_attention& a) { a.place.head_first = -1; }},
  {"place_heads", "place.heads is 5, want at least 6 (= place.head_first + q.shape[2])", kInvalid, kForward,
   [](mica_attention& a) { a.place.head_first = 2; a.place.heads = 5; }},
  {"place_batch_first", "place.batch_first is 1073741824, want 0 or more, and sequences * heads of the whole below 2^31",
   kInvalid, kForward, [](mica_attention& a) { a.place.batch_first = k2To30; }},
  {"deterministic_flag", "control.deterministic is -1, want 0 or 1", kInvalid, kForward,
   [](mica_attention& a) { a.control.deterministic = -1; }},
  {"batch_invariant_flag", "control.batch_invariant is 3, want 0 or 1", kInvalid, kForward,
   [](mica_attention& a) { a.control.batch_invariant = 3; }},
  {"splits_many", "control.num_splits is 257, want 0 (choose) to 256", kInvalid, kForward,
   [](mica_attention& a) { a.control.num_splits = 257; }},
  {"splits_backward", "control.num_splits is 2, want 0 or 1 in backward", kInvalid, kBackward,
   [](mica_attention& a) { a.control.num_splits = 2; }},
  {"splits_probs", "control.num_splits is 2, want 0 or 1 with probs", kInvalid, kForward,
   [](mica_attention& a) { a.control.num_splits = 2, a.probs = dense(MICA_FP32, {2, 4, 5, 7}); }},
  {"pieces_unknown", "control.pieces is 6, want 0 to 5 (mica_pieces)", kInvalid, kBackward,
   [](mica_attention& a) { a.control.pieces = 6; }},
  {"pieces_forward", "control.pieces is 1, want 0 but in backward with gradients.dq", kInvalid, kForward,
   [](mica_attention& a) { a.control.pieces = MICA_PIECES_FIRST; }},
  {"pieces_without_dq", "control.pieces is 2, want 0 but in backward with gradients.dq", kInvalid, kBackward,
   [](mica_attention& a) {
     a.control.pieces = MICA_PIECES_NEXT;
     a.gradients.dq = {};
   }},
  {"pieces_on_a_cpu", "control.pieces is 1, want 0 but on a GPU", kUnsupported, kBackward,
   [](mica_attention& a) { a.control.pieces = MICA_PIECES_FIRST; }},
  {"reserved_sequences", "sequences.reserved is 4294967295, want 0", kInvalid, kForward,
   [](mica_attention& a) { a.sequences.reserved = UINT32_MAX; }},
  {"reserved_append", "append.reserved is 1, want 0", kInvalid, kForward, [](mica_attention& a) { a.append.reserved = 1; }},

  // Gradients.
  {"gradients_forward", "gradients.dq is given, want it absent in forward", kInvalid, kForward,
   [](mica_attention& a) { a.gradients.dq = a.q; }},
  {"append_backward", "append.k_new is given, but append writes in place and has no gradient", kUnsupported, kBackward,
   [](mica_attention& a) { append(a); }},
  {"paged_backward", "sequences.block_table is given, but two sequences may share keys there: no gradient is defined",
   kUnsupported, kBackward, [](mica_attention& a) { page(a); }},
  {"batch_idx_backward", "cache_batch_idx is given, but two sequences may share keys there: no gradient is defined",
   kUnsupported, kBackward, [](mica_attention& a) { a.sequences.vectors = MICA_CACHE_BATCH_IDX; }},
  {"d_o_absent", "gradients.d_o.dtype is absent, want fp32 (= q.dtype) or fp32", kInvalid, kBackward,
   [](mica_attention& a) { a.gradients.d_o.dtype = 0; }},
  {"d_o_shape", "gradients.d_o.shape[3] is 8, want 6 (= v.shape[3])", kInvalid, kBackward,
   [](mica_attention& a) { a.gradients.d_o = a.q; }},
  {"d_lse_shape", "gradients.d_lse.shape[2] is 4, want 5 (= q.shape[1])", kInvalid, kBackward,
   [](mica_attention& a) { a.gradients.d_lse = dense(MICA_FP32, {2, 4, 4, 1}); }},
  {"dq_overlaps", "gradients.dq.stride[0] is 0, want at least 1 (an output may not overlap itself)", kInvalid, kBackward,
   [](mica_attention& a) { a.gradients.dq.stride[0] = 0; }},
  {"dk_type", "gradients.dk.dtype is bf16, want fp32 (= q.dtype) or fp32", kInvalid, kBackward,
   [](mica_attention& a) { a.gradients.dk.dtype = MICA_BF16; }},
  {"dk_shape", "gradients.dk.shape[1] is 6, want 7 (= k.shape)", kInvalid, kBackward,
   [](mica_attention& a) { a.gradients.dk.shape[1] = 6; }},
  {"dv_not_dense", "gradients.dv.stride[3] is 3, want 1 (the last dimension must be dense)", kInvalid, kBackward,
   [](mica_attention& a) { a.gradients.dv.stride[3] = 3; }},
  {"d_bias_alone", "gradients.d_bias is given, want score.bias with it", kInvalid, kBackward,
   [](mica_attention& a) { a.gradients.d_bias = dense(MICA_FP32, {2, 4, 5, 7}); }},
  {"d_bias_type", "gradients.d_bias.dtype is int32, want fp32, fp16 or bf16", kInvalid, kBackward,
   [](mica_attention& a) {
     a.score.bias = dense(MICA_FP32, {2, 4, 5, 7}), a.gradients.d_bias = dense(MICA_INT32, {2, 4, 5, 7});
   }},
  {"d_bias_shape", "gradients.d_bias.shape[0] is 2, want 1 (= score.bias.shape)", kInvalid, kBackward,
   [](mica_attention& a) {
     a.score.bias = dense(MICA_FP32, {1, 4, 5, 7}), a.gradients.d_bias = dense(MICA_FP32, {2, 4, 5, 7});
   }},
  {"d_sinks_alone", "gradients.d_sinks is given, want score.sinks with it", kInvalid, kBackward,
   [](mica_attention& a) { a.gradients.d_sinks = dense(MICA_FP32, {4, 1, 1, 1}); }},
  {"d_sinks_type", "gradients.d_sinks.dtype is bool, want fp32, fp16 or bf16", kInvalid, kBackward,
   [](mica_attention& a) {
     a.score.sinks = dense(MICA_FP32, {4, 1, 1, 1}), a.gradients.d_sinks = dense(MICA_BOOL, {4, 1, 1, 1});
   }},
  {"d_sinks_shape", "gradients.d_sinks.shape[0] is 1, want 4 (= q.shape[2])", kInvalid, kBackward,
   [](mica_attention& a) {
     a.score.sinks = dense(MICA_FP32, {4, 1, 1, 1}), a.gradients.d_sinks = dense(MICA_FP32, {1, 1, 1, 1});
   }},
  {"no_gradient", "gradients has no output, want at least one of dq, dk, dv, d_bias, d_sinks", kInvalid, kBackward,
   [](mica_attention& a) { a.gradients.dq.dtype = a.gradients.dk.dtype = a.gradients.dv.dtype = 0; }},

  // The device.
  {"backend", "device.backend is 5, want MICA_CPU (0) or MICA_CUDA (1)", kInvalid, kForward,
   [](mica_attention& a) { a.device.backend = 5; }},
  {"ordinal", "device.ordinal is 3, want 0 to 0 (backend cpu)", MICA_ERROR_NO_DEVICE, kForward,
   [](mica_attention& a) { a.device.ordinal = 3; }},
};
// clang-format on

class Validate : public testing::TestWithParam<BadCall> {};

TEST_P(Validate, RefusesWithItsMessage) {
  const BadCall& bad = GetParam();
  mica_attention a = bad.pass == MICA_FORWARD ? describe() : describe_backward();
  bad.spoil(a);
  mica_plan* plan = reinterpret_cast<mica_plan*>(&a);  // must be replaced
  EXPECT_EQ(mica_plan_create(&a, bad.pass, &plan), bad.status);
  EXPECT_STREQ(mica_last_error(), bad.message);
  EXPECT_EQ(plan, nullptr);
  EXPECT_EQ(mica_list_kernels(
                &a, bad.pass, [](void*, const char*, const char*) { ADD_FAILURE() << "visited"; }, nullptr),
            bad.status);
  EXPECT_STREQ(mica_last_error(), bad.message);
}

INSTANTIATE_TEST_SUITE_P(Rule, Validate, testing::ValuesIn(kBadCalls),
                         [](const testing::TestParamInfo<BadCall>& info) { return std::string(info.param.name); });

TEST(ValidateBase, WhatTheBadCallsStartFromIsLegal) {
  for (const mica_pass pass : {MICA_FORWARD, MICA_BACKWARD}) {
    const mica_attention a = pass == MICA_FORWARD ? describe() : describe_backward();
    mica_plan* plan = nullptr;
    EXPECT_EQ(mica_plan_create(&a, pass, &plan), MICA_OK) << mica_last_error();
    EXPECT_NE(plan, nullptr);
    mica_plan_destroy(plan);
  }
  for (const auto& change : {+[](mica_attention& a) { pack(a, 2); }, +[](mica_attention& a) { page(a); },
                             +[](mica_attention& a) { rotate(a); }}) {
    mica_attention a = describe();
    change(a);
    mica_plan* plan = nullptr;
    EXPECT_EQ(mica_plan_create(&a, MICA_FORWARD, &plan), MICA_OK) << mica_last_error();
    mica_plan_destroy(plan);
  }
}

// Every tensor at once: a paged cache with append, rotary and all that shapes a score; and backward with every
// gradient.
mica_attention describe_everything(mica_pass pass) {
  mica_attention a = pass == MICA_FORWARD ? describe() : describe_backward();
  if (pass == MICA_FORWARD) page(a), rotate(a, 12);
  const int64_t keys = pass == MICA_FORWARD ? 12 : 7;
  a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
  a.mask.boolean = dense(MICA_BOOL, {2, 4, 5, keys});
  a.score.alibi = dense(MICA_FP32, {2, 4, 1, 1});
  a.score.bias = dense(MICA_FP32, {2, 4, 5, keys});
  a.score.sinks = dense(MICA_FP32, {4, 1, 1, 1});
  if (pass == MICA_FORWARD)
    a.probs = dense(MICA_FP32, {2, 4, 5, keys});
  else
    a.gradients.d_lse = a.lse, a.gradients.d_bias = a.score.bias, a.gradients.d_sinks = a.score.sinks;
  return a;
}

// What a tensor must fulfil beside being a tensor.
enum Duty : unsigned { kDense = 1, kShaped = 2, kWritten = 4 };
struct Named {
  const char* name;
  mica_pass pass;
  unsigned duties;
  mica_tensor& (*of)(mica_attention&);
};
#define NAMED(field, pass, duties)                                                   \
  {                                                                                  \
#field, pass, duties, [](mica_attention & a) -> mica_tensor& { return a.field; } \
  }
const Named kTensors[] = {
    NAMED(q, kForward, kDense),
    NAMED(k, kForward, kDense | kWritten),
    NAMED(v, kForward, kDense | kShaped | kWritten),
    NAMED(o, kForward, kDense | kShaped | kWritten),
    NAMED(lse, kForward, kShaped | kWritten),
    NAMED(probs, kForward, kShaped | kWritten),
    NAMED(mask.boolean, kForward, kShaped),
    NAMED(score.alibi, kForward, kShaped),
    NAMED(score.bias, kForward, kShaped),
    NAMED(score.sinks, kForward, kShaped),
    NAMED(sequences.block_table, kForward, kShaped),
    NAMED(append.k_new, kForward, kDense | kShaped),
    NAMED(append.v_new, kForward, kDense | kShaped),
    NAMED(append.rotary_cos, kForward, 0),
    NAMED(append.rotary_sin, kForward, kShaped),
    NAMED(o, kBackward, kDense | kShaped),
    NAMED(lse, kBackward, kShaped),
    NAMED(gradients.d_o, kBackward, kDense | kShaped),
    NAMED(gradients.d_lse, kBackward, kShaped),
    NAMED(gradients.dq, kBackward, kDense | kShaped | kWritten),
    NAMED(gradients.dk, kBackward, kDense | kShaped | kWritten),
    NAMED(gradients.dv, kBackward, kDense | kShaped | kWritten),
    NAMED(gradients.d_bias, kBackward, kShaped | kWritten),
    NAMED(gradients.d_sinks, kBackward, kShaped | kWritten),
};

TEST(ValidateTensors, EachIsHeldToItsDuties) {
  for (const Named& t : kTensors) {
    const auto message_of = [&t](auto spoil) -> std::string {
      mica_attention a = describe_everything(t.pass);
      spoil(t.of(a));
      mica_plan* plan = nullptr;
      const mica_status status = mica_plan_create(&a, t.pass, &plan);
      mica_plan_destroy(plan);
      return status == MICA_OK ? "" : mica_last_error();
    };
    const auto begins = [&t](const std::string& message, const std::string& what) {
      EXPECT_EQ(message.rfind(t.name + what, 0), 0u) << t.name << what << ", got: " << message;
    };
    EXPECT_EQ(message_of([](mica_tensor&) {}), "");
    begins(message_of([](mica_tensor& x) { x.dtype = 99; }), ".dtype is 99, want a mica_dtype");
    begins(message_of([](mica_tensor& x) { x.alignment = 3; }), ".alignment is 3, want 0 or a power of two from ");
    begins(message_of([](mica_tensor& x) { x.shape[1] = -1; }), ".shape[1] is -1, want 0 or more");
    if (t.duties & kDense)
      begins(message_of([](mica_tensor& x) { x.stride[3] = 2; }), ".stride[3] is 2, want 1 (the last dimension");
    if (t.duties & kShaped) begins(message_of([](mica_tensor& x) { x.shape[0] += 7; }), ".shape[0] is ");
    if (t.duties & kWritten)
      begins(message_of([](mica_tensor& x) { x.stride[0] = 0; }),
             ".stride[0] is 0, want at least 1 (an output may not");
  }
}

TEST(ValidateNull, ArgumentsThemselves) {
  const mica_attention a = describe();
  EXPECT_EQ(mica_plan_create(&a, MICA_FORWARD, nullptr), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), "plan is null, want where to put the plan");
  mica_plan* plan = reinterpret_cast<mica_plan*>(&plan);
  EXPECT_EQ(mica_plan_create(nullptr, MICA_FORWARD, &plan), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), "attention is null, want a description");
  EXPECT_EQ(plan, nullptr);
  EXPECT_EQ(mica_list_kernels(nullptr, MICA_FORWARD, nullptr, nullptr), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), "attention is null, want a description");
  EXPECT_EQ(mica_list_kernels(&a, MICA_FORWARD, nullptr, nullptr), MICA_ERROR_INVALID);
  EXPECT_STREQ(mica_last_error(), "visit is null, want a function");
  mica_plan_destroy(nullptr);
  EXPECT_EQ(mica_plan_workspace(nullptr), 0u);
  EXPECT_STREQ(mica_plan_kernel(nullptr), "");
  EXPECT_EQ(mica_plan_splits(nullptr), 0);
}

// "k.shape[%d] is %lld" matches "k.shape[3] is 96": literal pieces in order, anything where a % directive stands.
bool matches_format(const std::string& format, const std::string& text) {
  size_t at = 0;
  std::string piece;
  const auto found = [&] {
    const size_t where = text.find(piece, at);
    if (where == std::string::npos) return false;
    at = where + piece.size();
    piece.clear();
    return true;
  };
  for (size_t n = 0; n < format.size(); ++n) {
    if (format[n] != '%') {
      piece += format[n];
      continue;
    }
    if (!found()) return false;
    n = format.find_first_of("dsugpx", n + 1);
  }
  return found();
}

// Every format string that follows `invalid(` or `fail(` in the source, adjacent literals joined.
std::vector<std::string> formats_in(const std::string& source) {
  std::vector<std::string> formats;
  for (const std::string call : {"invalid(", "fail(MICA_ERROR_UNSUPPORTED,"})
    for (size_t at = source.find(call); at != std::string::npos; at = source.find(call, at + 1)) {
      size_t n = source.find_first_not_of(" \n", at + call.size());
      std::string format;
      while (n < source.size() && source[n] == '"') {
        const size_t end = source.find('"', n + 1);
        format += source.substr(n + 1, end - n - 1);
        n = source.find_first_not_of(" \n", end + 1);
      }
      if (!format.empty()) formats.push_back(format);
    }
  return formats;
}

// A rule without a bad call here is a rule nobody tried.
TEST(ValidateRules, EachHasABadCall) {
  std::ifstream file(MICA_VALIDATE_SOURCE);
  std::stringstream source;
  source << file.rdbuf();
  const std::vector<std::string> formats = formats_in(source.str());
  ASSERT_GT(formats.size(), 70u);
  for (const std::string& format : formats) {
    if (format.rfind("bindings.", 0) == 0 || format.rfind("pass is", 0) == 0) continue;  // bindings_test.cc, abi_c99.c
    bool is_covered = false;
    for (const BadCall& bad : kBadCalls) is_covered |= matches_format(format, bad.message);
    EXPECT_TRUE(is_covered) << format;
  }
}

}  // namespace
}  // namespace mica::testing_api
