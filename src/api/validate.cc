// SPDX-License-Identifier: Apache-2.0
#include "api/validate.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "api/overlap.h"
#include "base/status.h"
#include "core/types.h"

namespace mica {
namespace {

#define MICA_RETURN_IF_FAILED(expression)                                             \
  do {                                                                                \
    if (const mica_status status_ = (expression); status_ != MICA_OK) return status_; \
  } while (0)

mica_status invalid(const char* message) { return fail(MICA_ERROR_INVALID, "%s", message); }
template <class... Arguments>
mica_status invalid(const char* format, Arguments... arguments) {
  return fail(MICA_ERROR_INVALID, format, arguments...);
}

const char* dtype_name(i32 dtype) {
  switch (dtype) {
    case MICA_NONE: return "absent";
    case MICA_FP32: return "fp32";
    case MICA_FP16: return "fp16";
    case MICA_BF16: return "bf16";
    case MICA_BOOL: return "bool";
    case MICA_INT32: return "int32";
    case MICA_FP8_E4M3: return "e4m3";
    default: return "unknown";
  }
}

bool is_float(i32 dtype) { return dtype == MICA_FP32 || dtype == MICA_FP16 || dtype == MICA_BF16; }

// A dimension that a tensor must have: exactly `size`, or also 1 where it broadcasts, or at least `size`.
enum class Fit { kExact, kBroadcast, kAtLeast };
struct Want {
  i64 size;
  const char* meaning;  // "= q.shape[2]"
  Fit fit = Fit::kExact;
};

bool present(const mica_tensor& t) { return t.dtype != MICA_NONE; }

// Numbers that every tensor must get right: type, alignment, sizes, strides that no 64-bit offset overflows.
mica_status check_tensor(const char* name, const mica_tensor& t, Tensor& out) {
  if (dtype_bytes(t.dtype) == 0) return invalid("%s.dtype is %d, want a mica_dtype", name, t.dtype);
  const i32 element = dtype_bytes(t.dtype);
  const i32 alignment = t.alignment == 0 ? element : t.alignment;
  if (alignment < element || alignment > 4096 || (alignment & (alignment - 1)))
    return invalid("%s.alignment is %d, want 0 or a power of two from %d to 4096", name, t.alignment, element);
  out.dtype = t.dtype;
  out.alignment = alignment;
  constexpr i64 kMaxElements = i64(1) << 48;
  i64 elements = 1, reach = 0;
  for (int axis = 0; axis < 4; ++axis) {
    const i64 size = t.shape[axis], stride = t.stride[axis];
    if (size < 0) return invalid("%s.shape[%d] is %lld, want 0 or more", name, axis, (long long)size);
    if (size > 0 && elements > kMaxElements / size)
      return invalid("%s.shape[%d] is %lld, which makes more than 2^48 elements", name, axis, (long long)size);
    elements *= size > 0 ? size : 1;
    const i64 magnitude = stride < 0 ? -(stride + 1) : stride;
    if (size > 1 && magnitude > (kMaxElements - reach) / size)
      return invalid("%s.stride[%d] is %lld, which reaches past 2^48 elements", name, axis, (long long)stride);
    if (size > 1) reach += magnitude * size;
    out.shape[axis] = size;
    out.stride[axis] = size > 1 ? stride : 0;
  }
  return MICA_OK;
}

mica_status check_shape(const char* name, const Tensor& t, const Want (&want)[4]) {
  for (int axis = 0; axis < 4; ++axis) {
    const i64 got = t.shape[axis];
    const Want& w = want[axis];
    const bool fits =
        got == w.size || (w.fit == Fit::kBroadcast && got == 1) || (w.fit == Fit::kAtLeast && got > w.size);
    if (fits) continue;
    const char* prefix = w.fit == Fit::kBroadcast ? "1 or " : (w.fit == Fit::kAtLeast ? "at least " : "");
    return invalid("%s.shape[%d] is %lld, want %s%lld (%s)", name, axis, (long long)got, prefix, (long long)w.size,
                   w.meaning);
  }
  return MICA_OK;
}

mica_status check_dense_last(const char* name, const mica_tensor& t) {
  if (t.shape[3] > 1 && t.stride[3] != 1)
    return invalid("%s.stride[3] is %lld, want 1 (the last dimension must be dense)", name, (long long)t.stride[3]);
  return MICA_OK;
}

// Outputs: no two index tuples may share an element. True when the strides, sorted, each step over what lies inside.
mica_status check_no_overlap(const char* name, const Tensor& t) {
  for (const i64 size : t.shape)
    if (size == 0) return MICA_OK;
  int order[4] = {3, 2, 1, 0};  // of equal strides, the inner axis is taken to be right
  for (int a = 0; a < 4; ++a)
    for (int b = a + 1; b < 4; ++b) {
      const i64 x = t.stride[order[a]], y = t.stride[order[b]];
      if ((y < 0 ? -y : y) < (x < 0 ? -x : x)) {
        const int swap = order[a];
        order[a] = order[b];
        order[b] = swap;
      }
    }
  i64 extent = 1;
  for (const int axis : order) {
    if (t.shape[axis] == 1) continue;
    const i64 step = t.stride[axis] < 0 ? -t.stride[axis] : t.stride[axis];
    if (step < extent)
      return invalid("%s.stride[%d] is %lld, want at least %lld (an output may not overlap itself)", name, axis,
                     (long long)t.stride[axis], (long long)extent);
    extent = step * (t.shape[axis] - 1) + extent;
  }
  return MICA_OK;
}

mica_status check_flag(const char* name, i32 value) {
  if (value != 0 && value != 1) return invalid("%s is %d, want 0 or 1", name, value);
  return MICA_OK;
}

mica_status check_float_dtype(const char* name, i32 dtype, i32 wanted) {
  if (wanted == MICA_FP8_E4M3 && !is_float(dtype))
    return invalid("%s.dtype is %s, want bf16, fp16 or fp32 (q is e4m3)", name, dtype_name(dtype));
  if (wanted == MICA_FP8_E4M3) return MICA_OK;
  if (dtype != wanted && dtype != MICA_FP32)
    return invalid("%s.dtype is %s, want %s (= q.dtype) or fp32", name, dtype_name(dtype), dtype_name(wanted));
  return MICA_OK;
}

// The description under scrutiny and the normalised problem being filled; each step relies on those before it.
struct Validation {
  const mica_attention& a;
  Problem& p;

  bool has(u32 vector) const { return (p.vectors & vector) != 0; }

  mica_status qkv();
  mica_status sequences();
  mica_status lengths();
  mica_status outputs();
  mica_status band();
  mica_status score();
  mica_status append();
  mica_status dropout_and_control();
  mica_status place();
  mica_status quantisation();
  mica_status prefix();
  mica_status second_query();
  mica_status gradients();
  mica_status same_as_q(const char* name, const mica_tensor& t, Tensor& out, i64 dim, const char* dim_meaning);
  mica_status rows_by_heads(const char* name, const mica_tensor& t, Tensor& out);
  mica_status pairs(const char* name, const mica_tensor& t, Tensor& out, Fit fit);
  mica_status last_pairs();
};

mica_status Validation::qkv() {
  MICA_RETURN_IF_FAILED(check_tensor("q", a.q, p.q));
  MICA_RETURN_IF_FAILED(check_tensor("k", a.k, p.k));
  MICA_RETURN_IF_FAILED(check_tensor("v", a.v, p.v));
  if (!is_float(p.q.dtype) && p.q.dtype != MICA_FP8_E4M3)
    return invalid("q.dtype is %s, want fp32, fp16, bf16 or e4m3", dtype_name(p.q.dtype));
  if (p.k.dtype != p.q.dtype && p.k.dtype != MICA_FP8_E4M3)
    return invalid("k.dtype is %s, want %s (= q.dtype)%s", dtype_name(p.k.dtype), dtype_name(p.q.dtype),
                   p.q.dtype == MICA_FP8_E4M3 ? "" : " or e4m3");
  if (p.v.dtype != p.k.dtype)
    return invalid("v.dtype is %s, want %s (= k.dtype)", dtype_name(p.v.dtype), dtype_name(p.k.dtype));
  MICA_RETURN_IF_FAILED(check_dense_last("q", a.q));
  MICA_RETURN_IF_FAILED(check_dense_last("k", a.k));
  MICA_RETURN_IF_FAILED(check_dense_last("v", a.v));
  const i64 dim = p.q.shape[3], dim_v = p.v.shape[3], heads_q = p.q.shape[2], heads_k = p.k.shape[2];
  if (dim < 1 || dim > MICA_MAX_DIM_QK)
    return invalid("q.shape[3] is %lld, want 1 to %d", (long long)dim, MICA_MAX_DIM_QK);
  if (p.k.shape[3] != dim)
    return invalid("k.shape[3] is %lld, want %lld (= q.shape[3])", (long long)p.k.shape[3], (long long)dim);
  if (dim_v < 1 || dim_v > MICA_MAX_DIM_V)
    return invalid("v.shape[3] is %lld, want 1 to %d", (long long)dim_v, MICA_MAX_DIM_V);
  if (heads_q < 1 || heads_q > 65535) return invalid("q.shape[2] is %lld, want 1 to 65535 heads", (long long)heads_q);
  if (heads_k < 1 || heads_q % heads_k != 0)
    return invalid("k.shape[2] is %lld, want a divisor of %lld (= q.shape[2])", (long long)heads_k, (long long)heads_q);
  for (int axis = 0; axis < 3; ++axis)
    if (p.v.shape[axis] != p.k.shape[axis])
      return invalid("v.shape[%d] is %lld, want %lld (= k.shape[%d])", axis, (long long)p.v.shape[axis],
                     (long long)p.k.shape[axis], axis);
  p.dtype = p.q.dtype;
  p.dim_qk = i32(dim + (present(a.qv) ? dim_v : 0));
  p.dim_v = i32(dim_v);
  p.heads_q = i32(heads_q);
  p.heads_k = i32(heads_k);
  p.group = i32(heads_q / heads_k);
  return MICA_OK;
}

mica_status Validation::sequences() {
  const mica_sequences& s = a.sequences;
  constexpr u32 kKnown = MICA_CU_SEQLENS_Q | MICA_CU_SEQLENS_K | MICA_SEQUSED_Q | MICA_SEQUSED_K |
                         MICA_CACHE_BATCH_IDX | MICA_CACHE_LEFTPAD;
  if (s.vectors & ~kKnown)
    return invalid("sequences.vectors is 0x%x, want bits of mica_vectors (0x%x)", s.vectors, kKnown);
  p.vectors = s.vectors;
  const bool packed_q = has(MICA_CU_SEQLENS_Q), packed_k = has(MICA_CU_SEQLENS_K), paged = present(s.block_table);
  if (s.batch < 0) return invalid("sequences.batch is %lld, want 0 or more", (long long)s.batch);
  // Packed and empty is legal: no sequences at all.
  const i64 batch = packed_q || s.batch > 0 ? s.batch : p.q.shape[0];
  if (batch > 2147483647 / p.heads_q)
    return invalid("sequences.batch is %lld, want batch * heads below 2^31", (long long)batch);
  p.batch = i32(batch);
  if (packed_q && p.q.shape[0] != 1)
    return invalid("q.shape[0] is %lld, want 1 (q is packed by cu_seqlens_q)", (long long)p.q.shape[0]);
  if (!packed_q && p.q.shape[0] != batch)
    return invalid("q.shape[0] is %lld, want %lld (= sequences.batch)", (long long)p.q.shape[0], (long long)batch);

  if (paged) {
    MICA_RETURN_IF_FAILED(check_tensor("sequences.block_table", s.block_table, p.block_table));
    if (p.block_table.dtype != MICA_INT32)
      return invalid("sequences.block_table.dtype is %s, want int32", dtype_name(p.block_table.dtype));
    MICA_RETURN_IF_FAILED(
        check_shape("sequences.block_table", p.block_table,
                    {{batch, "= sequences.batch"}, {p.block_table.shape[1], "any"}, {1, "unused"}, {1, "unused"}}));
    if (p.k.shape[1] < 1) return invalid("k.shape[1] is 0, want 1 or more (the page size)");
    if (p.block_table.shape[1] > MICA_MAX_SEQLEN || p.k.shape[1] > MICA_MAX_SEQLEN ||
        p.block_table.shape[1] * p.k.shape[1] > MICA_MAX_SEQLEN)
      return invalid("sequences.block_table.shape[1] is %lld, want at most 2^29 keys in all its pages of %lld",
                     (long long)p.block_table.shape[1], (long long)p.k.shape[1]);
    if (p.k.shape[0] < 1 && batch * p.block_table.shape[1] > 0) return invalid("k.shape[0] is 0, want 1 or more pages");
    if (has(MICA_CACHE_BATCH_IDX))
      return invalid("sequences.vectors has cache_batch_idx, which block_table makes meaningless");
    p.page_size = i32(p.k.shape[1]);
    p.max_pages = i32(p.block_table.shape[1]);
  } else if (packed_k) {
    if (p.k.shape[0] != 1)
      return invalid("k.shape[0] is %lld, want 1 (k is packed by cu_seqlens_k)", (long long)p.k.shape[0]);
    if (has(MICA_CACHE_BATCH_IDX))
      return invalid("sequences.vectors has cache_batch_idx, which cu_seqlens_k makes meaningless");
  } else if (has(MICA_CACHE_BATCH_IDX)) {
    if (p.k.shape[0] < 1 && batch > 0) return invalid("k.shape[0] is 0, want 1 or more cache slots");
  } else if (p.k.shape[0] != batch) {
    return invalid("k.shape[0] is %lld, want %lld (the batch)", (long long)p.k.shape[0], (long long)batch);
  }
  if (p.k.shape[0] > 2147483647) return invalid("k.shape[0] is %lld, want below 2^31", (long long)p.k.shape[0]);
  p.slots_k = i32(p.k.shape[0]);
  return MICA_OK;
}

mica_status Validation::lengths() {
  const mica_sequences& s = a.sequences;
  const bool packed_q = has(MICA_CU_SEQLENS_Q), packed_k = has(MICA_CU_SEQLENS_K) && p.page_size == 0;
  const i64 limit = packed_q ? 2147483647 : MICA_MAX_SEQLEN;
  if (p.q.shape[1] > limit)
    return invalid("q.shape[1] is %lld, want at most %lld", (long long)p.q.shape[1], (long long)limit);
  const i64 limit_k = packed_k ? 2147483647 : MICA_MAX_SEQLEN;
  if (p.k.shape[1] > limit_k)
    return invalid("k.shape[1] is %lld, want at most %lld", (long long)p.k.shape[1], (long long)limit_k);
  if (s.max_seqlen_q < 0 || s.max_seqlen_q > MICA_MAX_SEQLEN)
    return invalid("sequences.max_seqlen_q is %lld, want 0 to %d", (long long)s.max_seqlen_q, MICA_MAX_SEQLEN);
  if (s.max_seqlen_k < 0 || s.max_seqlen_k > MICA_MAX_SEQLEN)
    return invalid("sequences.max_seqlen_k is %lld, want 0 to %d", (long long)s.max_seqlen_k, MICA_MAX_SEQLEN);

  p.total_q = packed_q ? p.q.shape[1] : p.q.shape[1] * p.batch;
  p.max_len_q = i32(packed_q ? min_of<i64>(p.q.shape[1], MICA_MAX_SEQLEN) : p.q.shape[1]);
  if (p.page_size > 0) {
    p.max_len_k = p.max_pages * p.page_size;
    p.total_k = i64(p.max_len_k) * p.batch;
  } else {
    p.total_k = packed_k ? p.k.shape[1] : p.k.shape[1] * p.slots_k;
    p.max_len_k = i32(packed_k ? min_of<i64>(p.k.shape[1], MICA_MAX_SEQLEN) : p.k.shape[1]);
  }
  p.hint_len_q = s.max_seqlen_q > 0 ? i32(min_of<i64>(s.max_seqlen_q, p.max_len_q)) : p.max_len_q;
  p.hint_len_k = s.max_seqlen_k > 0 ? i32(min_of<i64>(s.max_seqlen_k, p.max_len_k)) : p.max_len_k;
  return MICA_OK;
}

// A tensor with q's axes and another last dimension: o and the gradients of q's side.
mica_status Validation::same_as_q(const char* name, const mica_tensor& t, Tensor& out, i64 dim,
                                  const char* dim_meaning) {
  MICA_RETURN_IF_FAILED(check_tensor(name, t, out));
  MICA_RETURN_IF_FAILED(check_float_dtype(name, out.dtype, p.dtype));
  MICA_RETURN_IF_FAILED(check_dense_last(name, t));
  return check_shape(name, out,
                     {{p.q.shape[0], "= q.shape[0]"},
                      {p.q.shape[1], "= q.shape[1]"},
                      {p.q.shape[2], "= q.shape[2]"},
                      {dim, dim_meaning}});
}

// lse and d_lse.
mica_status Validation::rows_by_heads(const char* name, const mica_tensor& t, Tensor& out) {
  MICA_RETURN_IF_FAILED(check_tensor(name, t, out));
  if (out.dtype != MICA_FP32) return invalid("%s.dtype is %s, want fp32", name, dtype_name(out.dtype));
  return check_shape(
      name, out,
      {{p.q.shape[0], "= q.shape[0]"}, {p.heads_q, "= q.shape[2]"}, {p.q.shape[1], "= q.shape[1]"}, {1, "unused"}});
}

// mask, bias, their gradient and probs: (batch, hq, sq, sk). Packed or paged lengths are not known here: what lies
// outside the shape counts as hidden (mask) or 0 (bias).
mica_status Validation::pairs(const char* name, const mica_tensor& t, Tensor& out, Fit fit) {
  MICA_RETURN_IF_FAILED(check_tensor(name, t, out));
  const bool packed_q = has(MICA_CU_SEQLENS_Q);
  const bool cached_k = has(MICA_CU_SEQLENS_K) || p.page_size > 0 || has(MICA_SEQUSED_K);
  const Want rows = packed_q ? Want{out.shape[2], "any"} : Want{p.max_len_q, "= q.shape[1]", fit};
  const Want keys = cached_k ? Want{out.shape[3], "any"} : Want{p.max_len_k, "= k.shape[1]", fit};
  return check_shape(name, out, {{p.batch, "the batch", fit}, {p.heads_q, "= q.shape[2]", fit}, rows, keys});
}

// A mask of the last keys of each sequence: as many as it has.
mica_status Validation::last_pairs() {
  MICA_RETURN_IF_FAILED(check_tensor("mask.boolean", a.mask.boolean, p.boolean));
  const bool packed_q = p.vectors & MICA_CU_SEQLENS_Q;
  const Want rows = packed_q ? Want{p.boolean.shape[2], "any"} : Want{p.max_len_q, "= q.shape[1]", Fit::kBroadcast};
  MICA_RETURN_IF_FAILED(check_shape("mask.boolean", p.boolean,
                                    {{p.batch, "the batch", Fit::kBroadcast},
                                     {p.heads_q, "= q.shape[2]", Fit::kBroadcast},
                                     rows,
                                     {a.mask_last_keys, "= mask_last_keys"}}));
  if (a.mask_last_keys > MICA_MAX_SEQLEN)
    return invalid("mask_last_keys is %lld, want at most %d", (long long)a.mask_last_keys, MICA_MAX_SEQLEN);
  p.mask_last_keys = i32(a.mask_last_keys);
  return MICA_OK;
}

mica_status Validation::outputs() {
  if (!present(a.o) && p.dtype == MICA_FP8_E4M3) return invalid("o.dtype is absent, want bf16, fp16 or fp32");
  if (!present(a.o)) return invalid("o.dtype is absent, want %s (= q.dtype) or fp32", dtype_name(p.dtype));
  MICA_RETURN_IF_FAILED(same_as_q("o", a.o, p.o, p.dim_v, "= v.shape[3]"));
  if (present(a.lse)) MICA_RETURN_IF_FAILED(rows_by_heads("lse", a.lse, p.lse));
  if (p.pass == MICA_BACKWARD) {
    if (!present(a.lse)) return invalid("lse.dtype is absent, want fp32 (backward reads what forward wrote)");
    if (present(a.probs)) return invalid("probs.dtype is %s, want absent in backward", dtype_name(a.probs.dtype));
    return MICA_OK;
  }
  MICA_RETURN_IF_FAILED(check_no_overlap("o", p.o));
  if (present(a.lse)) MICA_RETURN_IF_FAILED(check_no_overlap("lse", p.lse));
  if (present(a.probs)) {
    MICA_RETURN_IF_FAILED(pairs("probs", a.probs, p.probs, Fit::kExact));
    if (p.probs.dtype != MICA_FP32) return invalid("probs.dtype is %s, want fp32", dtype_name(p.probs.dtype));
    MICA_RETURN_IF_FAILED(check_no_overlap("probs", p.probs));
  }
  return MICA_OK;
}

mica_status Validation::band() {
  const mica_mask& m = a.mask;
  if (m.causal < MICA_CAUSAL_NONE || m.causal > MICA_CAUSAL_TOP_LEFT)
    return invalid("mask.causal is %d, want a mica_causal (0 to 2)", m.causal);
  if (m.diagonal < MICA_DIAGONAL_FROM_CAUSAL || m.diagonal > MICA_DIAGONAL_TOP_LEFT)
    return invalid("mask.diagonal is %d, want a mica_diagonal (0 to 2)", m.diagonal);
  if (m.window_left < MICA_UNLIMITED)
    return invalid("mask.window_left is %lld, want 0 or more, or MICA_UNLIMITED (-1)", (long long)m.window_left);
  if (m.window_right < MICA_UNLIMITED)
    return invalid("mask.window_right is %lld, want 0 or more, or MICA_UNLIMITED (-1)", (long long)m.window_right);
  if (m.causal && m.window_right > 0)
    return invalid("mask.window_right is %lld, want 0 or MICA_UNLIMITED (causal hides what lies to the right)",
                   (long long)m.window_right);
  if (m.causal && m.diagonal && m.causal != m.diagonal)
    return invalid("mask.diagonal is %d, want %d (the alignment that mask.causal names)", m.diagonal, m.causal);
  const bool windowed = m.window_left != MICA_UNLIMITED || m.window_right != MICA_UNLIMITED;
  const bool has_alibi = present(a.score.alibi);
  const i32 diagonal = m.causal ? m.causal : m.diagonal;
  if (a.attention_chunk < 0 || a.attention_chunk > MICA_MAX_SEQLEN)
    return invalid("attention_chunk is %lld, want 0 (no chunks) to %d", (long long)a.attention_chunk, MICA_MAX_SEQLEN);
  p.chunk = i32(a.attention_chunk);
  if ((windowed || p.chunk > 0 || has_alibi) && !diagonal)
    return invalid("mask.diagonal is 0, want MICA_DIAGONAL_BOTTOM_RIGHT (1) or MICA_DIAGONAL_TOP_LEFT (2), since %s",
                   windowed      ? "there is a window"
                   : p.chunk > 0 ? "there are chunks"
                                 : "there is ALiBi");
  p.causal = m.causal != MICA_CAUSAL_NONE;
  p.bottom_right = diagonal == MICA_DIAGONAL_BOTTOM_RIGHT;
  p.window_left = i32(m.window_left == MICA_UNLIMITED ? MICA_MAX_SEQLEN : min_of<i64>(m.window_left, MICA_MAX_SEQLEN));
  p.window_right =
      p.causal ? 0
               : i32(m.window_right == MICA_UNLIMITED ? MICA_MAX_SEQLEN : min_of<i64>(m.window_right, MICA_MAX_SEQLEN));
  if (a.mask_last_keys != 0 && (!present(m.boolean) || a.mask_last_keys != m.boolean.shape[3]))
    return invalid("mask_last_keys is %lld, want 0 or %lld (= mask.boolean.shape[3])", (long long)a.mask_last_keys,
                   (long long)(present(m.boolean) ? m.boolean.shape[3] : 0));
  if (a.mask_last_keys > 0 && p.pass == MICA_BACKWARD)
    return fail(MICA_ERROR_UNSUPPORTED, "mask_last_keys is %lld, but it is for inference and has no gradient",
                (long long)a.mask_last_keys);
  if (present(m.boolean)) {
    MICA_RETURN_IF_FAILED(a.mask_last_keys > 0 ? last_pairs()
                                               : pairs("mask.boolean", m.boolean, p.boolean, Fit::kBroadcast));
    if (p.boolean.dtype != MICA_BOOL)
      return invalid("mask.boolean.dtype is %s, want bool", dtype_name(p.boolean.dtype));
  }
  return MICA_OK;
}

mica_status Validation::score() {
  const mica_score& s = a.score;
  constexpr float kLargest = 1e30f;  // leaves room for factors such as log2(e)
  if (!(std::fabs(s.scale) <= kLargest))
    return invalid("score.scale is %g, want a number of magnitude at most 1e30 (0: 1/sqrt(dim))", s.scale);
  p.scale = s.scale != 0 ? s.scale : 1.0f / std::sqrt(float(p.dim_qk));
  if (!(s.softcap >= 0 && s.softcap <= kLargest))
    return invalid("score.softcap is %g, want 0 (none) or a positive number up to 1e30", s.softcap);
  if (s.softcap > 0 && !(std::fabs(p.scale) / s.softcap <= kLargest))
    return invalid("score.softcap is %g, want it larger: scale / softcap is beyond 1e30", s.softcap);
  constexpr float kLeast = 1e-37f;  // fp32 holds fewer bits of what is below, and at last none: every score would be 0
  if (s.softcap > 0 && std::fabs(p.scale) / s.softcap < kLeast)
    return invalid("score.softcap is %g, want it smaller, or 0 (none): scale / softcap is below 1e-37", s.softcap);
  p.softcap = s.softcap;
  if (present(s.alibi)) {
    MICA_RETURN_IF_FAILED(check_tensor("score.alibi", s.alibi, p.alibi));
    if (p.alibi.dtype != MICA_FP32) return invalid("score.alibi.dtype is %s, want fp32", dtype_name(p.alibi.dtype));
    MICA_RETURN_IF_FAILED(check_shape(
        "score.alibi", p.alibi,
        {{p.batch, "the batch", Fit::kBroadcast}, {p.heads_q, "= q.shape[2]"}, {1, "unused"}, {1, "unused"}}));
  }
  if (present(s.bias)) {
    MICA_RETURN_IF_FAILED(pairs("score.bias", s.bias, p.bias, Fit::kBroadcast));
    if (!is_float(p.bias.dtype))
      return invalid("score.bias.dtype is %s, want fp32, fp16 or bf16", dtype_name(p.bias.dtype));
  }
  if (present(s.sinks)) {
    MICA_RETURN_IF_FAILED(check_tensor("score.sinks", s.sinks, p.sinks));
    if (!is_float(p.sinks.dtype))
      return invalid("score.sinks.dtype is %s, want fp32, fp16 or bf16", dtype_name(p.sinks.dtype));
    MICA_RETURN_IF_FAILED(check_shape("score.sinks", p.sinks,
                                      {{p.heads_q, "= q.shape[2]"}, {1, "unused"}, {1, "unused"}, {1, "unused"}}));
  }
  return MICA_OK;
}

mica_status Validation::append() {
  const mica_append& n = a.append;
  MICA_RETURN_IF_FAILED(check_flag("append.rotary_interleaved", n.rotary_interleaved));
  if (present(n.k_new) != present(n.v_new))
    return invalid("append.%s is absent, want it together with append.%s", present(n.k_new) ? "v_new" : "k_new",
                   present(n.k_new) ? "k_new" : "v_new");
  if (present(n.rotary_cos) != present(n.rotary_sin))
    return invalid("append.%s is absent, want it together with append.%s",
                   present(n.rotary_cos) ? "rotary_sin" : "rotary_cos",
                   present(n.rotary_cos) ? "rotary_cos" : "rotary_sin");
  if (present(n.rotary_cos) && !present(n.k_new))
    return invalid("append.rotary_cos is given, want append.k_new with it (rotary turns q and the new keys)");
  if (!present(n.k_new)) return MICA_OK;

  MICA_RETURN_IF_FAILED(check_tensor("append.k_new", n.k_new, p.k_new));
  MICA_RETURN_IF_FAILED(check_tensor("append.v_new", n.v_new, p.v_new));
  MICA_RETURN_IF_FAILED(check_dense_last("append.k_new", n.k_new));
  MICA_RETURN_IF_FAILED(check_dense_last("append.v_new", n.v_new));
  if (p.k_new.dtype != p.dtype)
    return invalid("append.k_new.dtype is %s, want %s (= q.dtype)", dtype_name(p.k_new.dtype), dtype_name(p.dtype));
  if (p.v_new.dtype != p.dtype)
    return invalid("append.v_new.dtype is %s, want %s (= q.dtype)", dtype_name(p.v_new.dtype), dtype_name(p.dtype));
  const i64 rows = p.k_new.shape[1];
  MICA_RETURN_IF_FAILED(check_shape(
      "append.k_new", p.k_new,
      {{p.batch, "the batch"}, {rows, "any"}, {p.heads_k, "= k.shape[2]"}, {p.k.shape[3], "= k.shape[3]"}}));
  MICA_RETURN_IF_FAILED(check_shape("append.v_new", p.v_new,
                                    {{p.batch, "the batch"},
                                     {rows, "= append.k_new.shape[1]"},
                                     {p.heads_k, "= v.shape[2]"},
                                     {p.dim_v, "= v.shape[3]"}}));
  if (!has(MICA_SEQUSED_K))
    return invalid("sequences.vectors lacks seqused_k, want it with append.k_new (where to write)");
  if (has(MICA_CU_SEQLENS_K)) return invalid("sequences.vectors has cu_seqlens_k, want a cache to append to");
  if (rows > p.max_len_k)
    return invalid("append.k_new.shape[1] is %lld, want at most %d (the capacity of the cache)", (long long)rows,
                   p.max_len_k);
  MICA_RETURN_IF_FAILED(check_no_overlap("k", p.k));
  MICA_RETURN_IF_FAILED(check_no_overlap("v", p.v));
  p.len_new = i32(rows);
  if (!present(n.rotary_cos)) return MICA_OK;
  if (p.dtype == MICA_FP8_E4M3)
    return invalid("append.rotary_cos is given, want q and k_new of 16 or 32 bits with it (q is e4m3)");

  MICA_RETURN_IF_FAILED(check_tensor("append.rotary_cos", n.rotary_cos, p.rotary_cos));
  MICA_RETURN_IF_FAILED(check_tensor("append.rotary_sin", n.rotary_sin, p.rotary_sin));
  MICA_RETURN_IF_FAILED(check_float_dtype("append.rotary_cos", p.rotary_cos.dtype, p.dtype));
  if (p.rotary_sin.dtype != p.rotary_cos.dtype)
    return invalid("append.rotary_sin.dtype is %s, want %s (= append.rotary_cos.dtype)", dtype_name(p.rotary_sin.dtype),
                   dtype_name(p.rotary_cos.dtype));
  const i64 positions = p.rotary_cos.shape[0], half = p.rotary_cos.shape[1];
  if (half < 1 || 2 * half > p.q.shape[3])
    return invalid(
        "append.rotary_cos.shape[1] is %lld, want 1 to %lld (half the rotary dimension, at most q.shape[3] / 2)",
        (long long)half, (long long)(p.q.shape[3] / 2));
  // A query row may stand past the last key when fewer keys are new than queries; positions are clamped there.
  if (positions < p.max_len_k || positions > 2147483647)
    return invalid("append.rotary_cos.shape[0] is %lld, want at least %d (the capacity of the cache)",
                   (long long)positions, p.max_len_k);
  const Want rotary[4] = {{positions, "= append.rotary_cos.shape[0]"},
                          {half, "= append.rotary_cos.shape[1]"},
                          {1, "unused"},
                          {1, "unused"}};
  MICA_RETURN_IF_FAILED(check_shape("append.rotary_cos", p.rotary_cos, rotary));
  MICA_RETURN_IF_FAILED(check_shape("append.rotary_sin", p.rotary_sin, rotary));
  p.rotary_dim = i32(2 * half);
  p.rotary_positions = i32(positions);
  p.rotary_interleaved = n.rotary_interleaved;
  return MICA_OK;
}

mica_status Validation::dropout_and_control() {
  const mica_control& c = a.control;
  if (!(a.dropout.probability >= 0 && a.dropout.probability < 1))
    return invalid("dropout.probability is %g, want 0 <= p < 1", a.dropout.probability);
  MICA_RETURN_IF_FAILED(check_flag("dropout.rng_from_memory", a.dropout.rng_from_memory));
  MICA_RETURN_IF_FAILED(check_flag("control.deterministic", c.deterministic));
  MICA_RETURN_IF_FAILED(check_flag("control.batch_invariant", c.batch_invariant));
  if (c.num_splits < 0 || c.num_splits > 256)
    return invalid("control.num_splits is %d, want 0 (choose) to 256", c.num_splits);
  if (p.pass == MICA_BACKWARD && c.num_splits > 1)
    return invalid("control.num_splits is %d, want 0 or 1 in backward", c.num_splits);
  if (c.num_splits > 1 && present(a.probs))
    return invalid("control.num_splits is %d, want 0 or 1 with probs", c.num_splits);
  if (c.pieces < MICA_PIECES_NONE || c.pieces > MICA_PIECES_BESIDE)
    return invalid("control.pieces is %d, want 0 to %d (mica_pieces)", c.pieces, MICA_PIECES_BESIDE);
  if (c.pieces != MICA_PIECES_NONE && (p.pass != MICA_BACKWARD || !present(a.gradients.dq)))
    return invalid("control.pieces is %d, want 0 but in backward with gradients.dq", c.pieces);
  if (c.pieces != MICA_PIECES_NONE && a.device.backend != MICA_CUDA)
    return fail(MICA_ERROR_UNSUPPORTED, "control.pieces is %d, want 0 but on a GPU", c.pieces);
  struct Reserved {
    const char* name;
    i64 value;
  };
  for (const Reserved& r : {Reserved{"sequences", a.sequences.reserved}, Reserved{"append", a.append.reserved}})
    if (r.value != 0) return invalid("%s.reserved is %lld, want 0", r.name, (long long)r.value);
  p.dropout = a.dropout.probability;
  p.rng_from_memory = a.dropout.rng_from_memory;
  p.num_splits = c.num_splits;
  p.deterministic = c.deterministic;
  p.batch_invariant = c.batch_invariant;
  return MICA_OK;
}

// A piece's place in a larger call. The random bits count rows, keys and heads in 32 bits.
mica_status Validation::place() {
  constexpr i64 kMostShift = i64(1) << 28, kMostPlaces = i64(1) << 31;
  const mica_place& at = a.place;
  if (at.shift < -kMostShift || at.shift > kMostShift)
    return invalid("place.shift is %lld, want at most 2^28 either way", (long long)at.shift);
  if (at.shift != 0 && present(a.append.k_new))
    return invalid("place.shift is %lld, want 0 with append.k_new", (long long)at.shift);
  p.shift = i32(at.shift);
  const struct {
    const char* name;
    i64 first, step, count;
  } axes[] = {{"row", at.row_first, at.row_step, p.max_len_q}, {"key", at.key_first, at.key_step, p.max_len_k}};
  for (const auto& axis : axes) {
    if (axis.first < 0 || axis.first >= kMostPlaces)
      return invalid("place.%s_first is %lld, want 0 to 2^31 - 1", axis.name, (long long)axis.first);
    if (axis.step < 0 || axis.step >= kMostPlaces || axis.first + max_of<i64>(axis.step, 1) * axis.count > kMostPlaces)
      return invalid("place.%s_step is %lld, want 0 or more, and the last of %lld places below 2^31", axis.name,
                     (long long)axis.step, (long long)axis.count);
  }
  if (p.chunk > 0 && at.key_step > 1)
    return invalid("place.key_step is %lld, want 0 or 1 with attention_chunk", (long long)at.key_step);
  if (p.chunk > 0) {
    p.by_chunk = divisor_of(p.chunk);
    p.chunk_phase = i32(at.key_first % p.chunk);
  }
  const i64 heads = at.heads ? at.heads : p.heads_q;
  if (at.head_first < 0 || at.head_first >= kMostPlaces)
    return invalid("place.head_first is %lld, want 0 to 2^31 - 1", (long long)at.head_first);
  if (heads < at.head_first + p.heads_q)
    return invalid("place.heads is %lld, want at least %lld (= place.head_first + q.shape[2])", (long long)at.heads,
                   (long long)at.head_first + p.heads_q);
  if (at.batch_first < 0 || at.batch_first >= kMostPlaces || heads > kMostPlaces ||
      (at.batch_first + p.batch) * heads > kMostPlaces)
    return invalid("place.batch_first is %lld, want 0 or more, and sequences * heads of the whole below 2^31",
                   (long long)at.batch_first);
  p.dropout_place = {u32(at.row_first),
                     u32(max_of<i64>(at.row_step, 1)),
                     u32(at.key_first),
                     u32(max_of<i64>(at.key_step, 1)),
                     u32(at.batch_first * heads + at.head_first),
                     u32(heads)};
  return MICA_OK;
}

mica_status Validation::quantisation() {
  const mica_quantisation& z = a.quantisation;
  MICA_RETURN_IF_FAILED(check_flag("quantisation.per_page", z.per_page));
  if (z.reserved != 0) return invalid("quantisation.reserved is %d, want 0", z.reserved);
  if (z.per_page && p.page_size == 0) return invalid("quantisation.per_page is 1, want sequences.block_table with it");
  if (z.per_page && !present(z.k_descale) && !present(z.v_descale))
    return invalid("quantisation.per_page is 1, want k_descale or v_descale with it");
  const struct {
    const char* name;
    const mica_tensor& given;
    Tensor& out;
    const char* of_name;
    i32 of_dtype;
    bool per_page;
  } factors[] = {{"quantisation.q_descale", z.q_descale, p.q_descale, "q", p.q.dtype, false},
                 {"quantisation.k_descale", z.k_descale, p.k_descale, "k", p.k.dtype, z.per_page == 1},
                 {"quantisation.v_descale", z.v_descale, p.v_descale, "v", p.v.dtype, z.per_page == 1}};
  for (const auto& f : factors) {
    if (!present(f.given)) continue;
    if (f.of_dtype != MICA_FP8_E4M3)
      return invalid("%s is given and %s.dtype is %s, want e4m3", f.name, f.of_name, dtype_name(f.of_dtype));
    MICA_RETURN_IF_FAILED(check_tensor(f.name, f.given, f.out));
    if (f.out.dtype != MICA_FP32) return invalid("%s.dtype is %s, want fp32", f.name, dtype_name(f.out.dtype));
    const Want slots = f.per_page ? Want{p.k.shape[0], "= k.shape[0], the pages", Fit::kBroadcast}
                                  : Want{p.batch, "the batch", Fit::kBroadcast};
    MICA_RETURN_IF_FAILED(check_shape(
        f.name, f.out, {slots, {p.heads_k, "= k.shape[2]", Fit::kBroadcast}, {1, "unused"}, {1, "unused"}}));
  }
  p.descale_per_page = z.per_page;
  return MICA_OK;
}

// Keys that the whole batch shares. What would show a row a part of them, or count them, is refused.
mica_status Validation::prefix() {
  if (present(a.k_prefix) != present(a.v_prefix))
    return invalid("%s is absent, want it together with %s", present(a.k_prefix) ? "v_prefix" : "k_prefix",
                   present(a.k_prefix) ? "k_prefix" : "v_prefix");
  if (!present(a.k_prefix)) return MICA_OK;
  if (p.pass == MICA_BACKWARD)
    return fail(MICA_ERROR_UNSUPPORTED, "k_prefix is given, but it is for inference and has no gradient");
  MICA_RETURN_IF_FAILED(check_tensor("k_prefix", a.k_prefix, p.k_prefix));
  MICA_RETURN_IF_FAILED(check_tensor("v_prefix", a.v_prefix, p.v_prefix));
  MICA_RETURN_IF_FAILED(check_dense_last("k_prefix", a.k_prefix));
  MICA_RETURN_IF_FAILED(check_dense_last("v_prefix", a.v_prefix));
  const i64 keys = p.k_prefix.shape[1];
  MICA_RETURN_IF_FAILED(check_shape("k_prefix", p.k_prefix,
                                    {{1, "every sequence has the same"},
                                     {keys, "any"},
                                     {p.heads_k, "= k.shape[2]"},
                                     {p.k.shape[3], "= q.shape[3]"}}));
  MICA_RETURN_IF_FAILED(check_shape("v_prefix", p.v_prefix,
                                    {{1, "every sequence has the same"},
                                     {keys, "= k_prefix.shape[1]"},
                                     {p.heads_k, "= v.shape[2]"},
                                     {p.dim_v, "= v.shape[3]"}}));
  if (keys > MICA_MAX_SEQLEN)
    return invalid("k_prefix.shape[1] is %lld, want at most %d", (long long)keys, MICA_MAX_SEQLEN);
  for (const auto& [name, tensor] : {std::pair{"k_prefix", &p.k_prefix}, std::pair{"v_prefix", &p.v_prefix}})
    if (tensor->dtype != p.dtype)
      return invalid("%s.dtype is %s, want %s (= q.dtype)", name, dtype_name(tensor->dtype), dtype_name(p.dtype));
  const struct {
    const char* name;
    bool given;
    const char* why;
  } unwanted[] = {
      {"q of e4m3", p.dtype == MICA_FP8_E4M3, "the parts are joined in q's type"},
      {"cu_seqlens_q", has(MICA_CU_SEQLENS_Q), "the rows of all sequences are rows of one"},
      {"seqused_q", has(MICA_SEQUSED_Q), "the rows of all sequences are rows of one"},
      {"mask.window_left", a.mask.window_left != MICA_UNLIMITED, "every row sees the whole prefix"},
      {"mask.window_right", a.mask.window_right != MICA_UNLIMITED, "every row sees the whole prefix"},
      {"mask.causal of the top left", a.mask.causal == MICA_CAUSAL_TOP_LEFT, "the prefix comes before every row"},
      {"attention_chunk", p.chunk > 0, "every row sees the whole prefix"},
      {"score.alibi", present(a.score.alibi), "it would count the prefix's keys"},
      {"score.bias", present(a.score.bias), "every row sees the whole prefix"},
      {"place.shift", a.place.shift != 0, "every row sees the whole prefix"},
      {"append.rotary_cos", present(a.append.rotary_cos), "q would have to be turned for the prefix: turn it before"},
      {"dropout.probability", p.dropout > 0, "it is for inference"},
      {"probs", present(a.probs), "they would be of both parts"},
      {"control.batch_invariant", p.batch_invariant != 0, "the sequences are computed together"}};
  for (const auto& u : unwanted)
    if (u.given) return invalid("%s is given with k_prefix, want it absent: %s", u.name, u.why);
  if (p.total_q > MICA_MAX_SEQLEN)
    return invalid("q.shape[0] is %lld, want at most 2^29 rows in all with k_prefix", (long long)p.q.shape[0]);
  if (p.batch > 1 && p.max_len_q > 1 && p.q.stride[0] != p.q.stride[1] * p.max_len_q)
    return invalid("q.stride[0] is %lld, want %lld with k_prefix (= q.shape[1] * q.stride[1]: all rows evenly spaced)",
                   (long long)p.q.stride[0], (long long)(p.q.stride[1] * p.max_len_q));
  return MICA_OK;
}

// q.k + qv.v: a row of q goes on with its row of qv, a row of k with its row of v.
mica_status Validation::second_query() {
  if (!present(a.qv)) return MICA_OK;
  if (p.pass == MICA_BACKWARD)
    return fail(MICA_ERROR_UNSUPPORTED, "qv is given, but it is for inference and has no gradient");
  MICA_RETURN_IF_FAILED(check_tensor("qv", a.qv, p.qv));
  MICA_RETURN_IF_FAILED(check_dense_last("qv", a.qv));
  if (p.k.dtype == MICA_FP8_E4M3) return invalid("qv is given and k.dtype is e4m3, want fp32, fp16 or bf16");
  if (p.qv.dtype != p.dtype)
    return invalid("qv.dtype is %s, want %s (= q.dtype)", dtype_name(p.qv.dtype), dtype_name(p.dtype));
  MICA_RETURN_IF_FAILED(check_shape("qv", p.qv,
                                    {{p.q.shape[0], "= q.shape[0]"},
                                     {p.q.shape[1], "= q.shape[1]"},
                                     {p.q.shape[2], "= q.shape[2]"},
                                     {p.dim_v, "= v.shape[3]"}}));
  if (p.dim_qk > MICA_MAX_DIM_QK)
    return invalid("qv.shape[3] is %d, want at most %d (with q.shape[3] %d in all)", p.dim_v,
                   MICA_MAX_DIM_QK - i32(p.q.shape[3]), MICA_MAX_DIM_QK);
  const struct {
    const char* name;
    bool given;
  } unwanted[] = {
      {"dropout.probability", p.dropout > 0}, {"probs", present(a.probs)}, {"k_prefix", present(a.k_prefix)}};
  for (const auto& u : unwanted)
    if (u.given) return invalid("%s is given with qv, want it absent", u.name);
  return MICA_OK;
}

mica_status Validation::gradients() {
  const mica_gradients& g = a.gradients;
  struct Given {
    const char* name;
    const mica_tensor& tensor;
  };
  if (p.pass == MICA_FORWARD) {
    for (const Given& t : {Given{"d_o", g.d_o}, Given{"d_lse", g.d_lse}, Given{"dq", g.dq}, Given{"dk", g.dk},
                           Given{"dv", g.dv}, Given{"d_bias", g.d_bias}, Given{"d_sinks", g.d_sinks}})
      if (present(t.tensor)) return invalid("gradients.%s is given, want it absent in forward", t.name);
    return MICA_OK;
  }
  if (p.k.dtype == MICA_FP8_E4M3) return fail(MICA_ERROR_UNSUPPORTED, "k.dtype is e4m3, which has no backward");
  if (present(a.append.k_new))
    return fail(MICA_ERROR_UNSUPPORTED, "append.k_new is given, but append writes in place and has no gradient");
  if (p.page_size > 0 || has(MICA_CACHE_BATCH_IDX))
    return fail(MICA_ERROR_UNSUPPORTED, "%s is given, but two sequences may share keys there: no gradient is defined",
                p.page_size > 0 ? "sequences.block_table" : "cache_batch_idx");
  if (!present(g.d_o))
    return invalid("gradients.d_o.dtype is absent, want %s (= q.dtype) or fp32", dtype_name(p.dtype));
  MICA_RETURN_IF_FAILED(same_as_q("gradients.d_o", g.d_o, p.d_o, p.dim_v, "= v.shape[3]"));
  if (present(g.d_lse)) MICA_RETURN_IF_FAILED(rows_by_heads("gradients.d_lse", g.d_lse, p.d_lse));
  if (present(g.dq)) {
    MICA_RETURN_IF_FAILED(same_as_q("gradients.dq", g.dq, p.dq, p.dim_qk, "= q.shape[3]"));
    MICA_RETURN_IF_FAILED(check_no_overlap("gradients.dq", p.dq));
  }
  struct KeyGradient {
    const char* name;
    const mica_tensor& given;
    Tensor& out;
    const Tensor& of;
    const char* of_name;
  };
  for (const KeyGradient& d : {KeyGradient{"gradients.dk", g.dk, p.dk, p.k, "= k.shape"},
                               KeyGradient{"gradients.dv", g.dv, p.dv, p.v, "= v.shape"}}) {
    if (!present(d.given)) continue;
    MICA_RETURN_IF_FAILED(check_tensor(d.name, d.given, d.out));
    MICA_RETURN_IF_FAILED(check_float_dtype(d.name, d.out.dtype, p.dtype));
    MICA_RETURN_IF_FAILED(check_dense_last(d.name, d.given));
    MICA_RETURN_IF_FAILED(check_shape(d.name, d.out,
                                      {{d.of.shape[0], d.of_name},
                                       {d.of.shape[1], d.of_name},
                                       {d.of.shape[2], d.of_name},
                                       {d.of.shape[3], d.of_name}}));
    MICA_RETURN_IF_FAILED(check_no_overlap(d.name, d.out));
  }
  if (present(g.d_bias)) {
    if (!present(a.score.bias)) return invalid("gradients.d_bias is given, want score.bias with it");
    MICA_RETURN_IF_FAILED(check_tensor("gradients.d_bias", g.d_bias, p.d_bias));
    if (!is_float(p.d_bias.dtype))
      return invalid("gradients.d_bias.dtype is %s, want fp32, fp16 or bf16", dtype_name(p.d_bias.dtype));
    MICA_RETURN_IF_FAILED(check_shape("gradients.d_bias", p.d_bias,
                                      {{p.bias.shape[0], "= score.bias.shape"},
                                       {p.bias.shape[1], "= score.bias.shape"},
                                       {p.bias.shape[2], "= score.bias.shape"},
                                       {p.bias.shape[3], "= score.bias.shape"}}));
    MICA_RETURN_IF_FAILED(check_no_overlap("gradients.d_bias", p.d_bias));
  }
  if (present(g.d_sinks)) {
    if (!present(a.score.sinks)) return invalid("gradients.d_sinks is given, want score.sinks with it");
    MICA_RETURN_IF_FAILED(check_tensor("gradients.d_sinks", g.d_sinks, p.d_sinks));
    if (!is_float(p.d_sinks.dtype))
      return invalid("gradients.d_sinks.dtype is %s, want fp32, fp16 or bf16", dtype_name(p.d_sinks.dtype));
    MICA_RETURN_IF_FAILED(check_shape("gradients.d_sinks", p.d_sinks,
                                      {{p.heads_q, "= q.shape[2]"}, {1, "unused"}, {1, "unused"}, {1, "unused"}}));
    MICA_RETURN_IF_FAILED(check_no_overlap("gradients.d_sinks", p.d_sinks));
  }
  if (!present(g.dq) && !present(g.dk) && !present(g.dv) && !present(g.d_bias) && !present(g.d_sinks))
    return invalid("gradients has no output, want at least one of dq, dk, dv, d_bias, d_sinks");
  return MICA_OK;
}

mica_status check_pointer(const char* name, const void* pointer, i64 alignment) {
  if (!pointer) return invalid("bindings.%s is null, want the address that the description promises", name);
  if (reinterpret_cast<std::uintptr_t>(pointer) % std::uintptr_t(alignment))
    return invalid("bindings.%s is %p, want a multiple of %lld bytes", name, pointer, (long long)alignment);
  return MICA_OK;
}

// sizeof in 0.1.0. Fields come at the end, and zero means as before: a program that was compiled with an earlier header
// has a shorter struct, of which nothing behind its end may be read.
constexpr size_t kFirstAttentionBytes = offsetof(mica_attention, place),
                 kFirstBindingsBytes = offsetof(mica_bindings, q_descale);

// What the program knows of the struct; the rest is zero. `field` is what messages call struct_bytes.
template <class Struct>
mica_status take(const Struct& given, size_t first_bytes, const char* field, const char* hint, Struct& taken) {
  if (given.struct_bytes > sizeof taken)
    return invalid("%s is %u, want at most %zu: the program was compiled with the header of a later Mica", field,
                   given.struct_bytes, sizeof taken);
  if (given.struct_bytes < first_bytes)
    return invalid("%s is %u, want %zu (%s)", field, given.struct_bytes, sizeof taken, hint);
  taken = {};
  std::memcpy(&taken, &given, given.struct_bytes);
  return MICA_OK;
}

}  // namespace

mica_status validate(const mica_attention& given, mica_pass pass, Problem& p) {
  mica_attention a = {};
  MICA_RETURN_IF_FAILED(
      take(given, kFirstAttentionBytes, "struct_bytes", "sizeof(mica_attention); use MICA_ATTENTION_INIT", a));
  if (a.abi_version != MICA_ABI_VERSION)
    return invalid("abi_version is %u, want %u (use MICA_ATTENTION_INIT)", a.abi_version, MICA_ABI_VERSION);
  if (pass != MICA_FORWARD && pass != MICA_BACKWARD)
    return invalid("pass is %d, want MICA_FORWARD (0) or MICA_BACKWARD (1)", int(pass));
  p = Problem{};
  p.pass = pass;
  Validation v{a, p};
  MICA_RETURN_IF_FAILED(v.qkv());
  MICA_RETURN_IF_FAILED(v.sequences());
  MICA_RETURN_IF_FAILED(v.lengths());
  MICA_RETURN_IF_FAILED(v.outputs());
  MICA_RETURN_IF_FAILED(v.band());
  MICA_RETURN_IF_FAILED(v.score());
  MICA_RETURN_IF_FAILED(v.append());
  MICA_RETURN_IF_FAILED(v.dropout_and_control());
  MICA_RETURN_IF_FAILED(v.place());
  MICA_RETURN_IF_FAILED(v.quantisation());
  MICA_RETURN_IF_FAILED(v.prefix());
  MICA_RETURN_IF_FAILED(v.second_query());
  return v.gradients();
}

mica_status take_bindings(const mica_bindings& given, mica_bindings& taken) {
  return take(given, kFirstBindingsBytes, "bindings.struct_bytes", "sizeof(mica_bindings); use MICA_BINDINGS_INIT",
              taken);
}

mica_status validate_bindings(const Problem& p, const mica_bindings& x, TensorSet bound, size_t workspace_bytes,
                              size_t workspace_alignment) {
  if (x.abi_version != MICA_ABI_VERSION)
    return invalid("bindings.abi_version is %u, want %u (use MICA_BINDINGS_INIT)", x.abi_version, MICA_ABI_VERSION);
  for (TensorSet rest = bound; rest; rest = without_first(rest)) {
    const BoundTensor b = first_tensor(rest, p, x);
    MICA_RETURN_IF_FAILED(check_pointer(b.name, b.address, b.tensor.alignment));
  }
  MICA_RETURN_IF_FAILED(check_overlaps(p, x, bound));
  struct Vector {
    const char* name;
    const void* pointer;
    u32 bit;
  };
  const Vector vectors[] = {{"cu_seqlens_q", x.cu_seqlens_q, MICA_CU_SEQLENS_Q},
                            {"cu_seqlens_k", x.cu_seqlens_k, MICA_CU_SEQLENS_K},
                            {"seqused_q", x.seqused_q, MICA_SEQUSED_Q},
                            {"seqused_k", x.seqused_k, MICA_SEQUSED_K},
                            {"cache_batch_idx", x.cache_batch_idx, MICA_CACHE_BATCH_IDX},
                            {"cache_leftpad", x.cache_leftpad, MICA_CACHE_LEFTPAD}};
  for (const Vector& v : vectors)
    if ((p.vectors & v.bit) && p.batch > 0) MICA_RETURN_IF_FAILED(check_pointer(v.name, v.pointer, 4));
  if (p.dropout > 0 && p.rng_from_memory) MICA_RETURN_IF_FAILED(check_pointer("rng_state", x.rng_state, 8));
  if (workspace_bytes > 0) {
    if (x.workspace_bytes < workspace_bytes)
      return invalid("bindings.workspace_bytes is %zu, want at least %zu (mica_plan_workspace)", x.workspace_bytes,
                     workspace_bytes);
    MICA_RETURN_IF_FAILED(check_pointer("workspace", x.workspace, i64(workspace_alignment)));
  }
  return MICA_OK;
}

}  // namespace mica
