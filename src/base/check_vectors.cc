// SPDX-License-Identifier: Apache-2.0
#include "base/check_vectors.h"

#include "base/status.h"

namespace mica {
namespace {

mica_status check_cumulative(const char* name, const i32* values, i32 batch, i64 total, bool only_differences) {
  if (!only_differences && (values[0] < 0 || values[0] > total))
    return fail(MICA_ERROR_INVALID, "%s[0] is %d, want 0 to %lld", name, values[0], total);
  for (i32 b = 0; b < batch; ++b) {
    if (values[b + 1] < values[b])
      return fail(MICA_ERROR_INVALID, "%s[%d] is %d, want at least %d (= %s[%d])", name, b + 1, values[b + 1],
                  values[b], name, b);
    if (!only_differences && values[b + 1] > total)
      return fail(MICA_ERROR_INVALID, "%s[%d] is %d, want at most %lld (the rows of the tensor)", name, b + 1,
                  values[b + 1], total);
    if (i64(values[b + 1]) - values[b] > MICA_MAX_SEQLEN)
      return fail(MICA_ERROR_INVALID, "%s[%d] is %d, want at most 2^29 rows after %s[%d]", name, b + 1, values[b + 1],
                  name, b);
  }
  return MICA_OK;
}

mica_status check_element(const char* name, i32 b, i32 value, i64 high) {
  if (value < 0 || value > high) return fail(MICA_ERROR_INVALID, "%s[%d] is %d, want 0 to %lld", name, b, value, high);
  return MICA_OK;
}

mica_status check_pages(const SequenceTable& t, const Sequence& s, i32 b) {
  const i32 begin = s.leftpad / t.page_size;
  const i32 end = s.len_k > 0 ? (s.leftpad + s.len_k - 1) / t.page_size + 1 : begin;
  for (i32 page = begin; page < end; ++page) {
    const i32 value = t.block_table[b * t.block_table_stride_batch + page * t.block_table_stride_page];
    if (value < 0 || value >= t.slots_k)
      return fail(MICA_ERROR_INVALID, "block_table[%d][%d] is %d, want 0 to %d", b, page, value, t.slots_k - 1);
  }
  return MICA_OK;
}

}  // namespace

mica_status check_vectors(const Problem& p, const SequenceTable& t) {
  const bool paged = t.page_size > 0;
  mica_status status = MICA_OK;
  if (p.batch == 0) return MICA_OK;
  if (t.cu_seqlens_q) status = check_cumulative("cu_seqlens_q", t.cu_seqlens_q, p.batch, t.total_q, false);
  if (status != MICA_OK) return status;
  if (t.cu_seqlens_k) status = check_cumulative("cu_seqlens_k", t.cu_seqlens_k, p.batch, t.total_k, paged);
  if (status != MICA_OK) return status;
  for (i32 b = 0; b < p.batch; ++b) {
    if (t.cu_seqlens_k && paged && t.cu_seqlens_k[b + 1] - t.cu_seqlens_k[b] > t.slot_len_k)
      return fail(MICA_ERROR_INVALID, "cu_seqlens_k[%d] is %d, want at most %d keys after cu_seqlens_k[%d]", b + 1,
                  t.cu_seqlens_k[b + 1], t.slot_len_k, b);
    const Sequence s = sequence_of(t, b);
    if (t.seqused_q) status = check_element("seqused_q", b, t.seqused_q[b], s.slot_len_q);
    if (status == MICA_OK && t.seqused_k)
      status = check_element("seqused_k", b, t.seqused_k[b], s.slot_len_k - t.len_new);
    if (status == MICA_OK && t.cache_batch_idx)
      status = check_element("cache_batch_idx", b, t.cache_batch_idx[b], t.slots_k - 1);
    if (status == MICA_OK && t.cache_leftpad)
      status = check_element("cache_leftpad", b, t.cache_leftpad[b],
                             t.seqused_k ? t.seqused_k[b] : s.slot_len_k - t.len_new);
    if (status == MICA_OK && t.block_table) status = check_pages(t, s, b);
    if (status != MICA_OK) return status;
  }
  return MICA_OK;
}

}  // namespace mica
