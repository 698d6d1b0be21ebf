// SPDX-License-Identifier: Apache-2.0
// The bindings as the core wants them.
#pragma once

#include "core/sequence.h"
#include "mica/mica.h"

namespace mica {

// Only what the problem says is there: an address that was bound for an absent vector is not looked at.
inline SequenceTable sequence_table(const Problem& p, const mica_bindings& x) {
  SequenceTable t = sequence_shapes(p);
  t.cu_seqlens_q = p.vectors & MICA_CU_SEQLENS_Q ? x.cu_seqlens_q : nullptr;
  t.cu_seqlens_k = p.vectors & MICA_CU_SEQLENS_K ? x.cu_seqlens_k : nullptr;
  t.seqused_q = p.vectors & MICA_SEQUSED_Q ? x.seqused_q : nullptr;
  t.seqused_k = p.vectors & MICA_SEQUSED_K ? x.seqused_k : nullptr;
  t.cache_batch_idx = p.vectors & MICA_CACHE_BATCH_IDX ? x.cache_batch_idx : nullptr;
  t.cache_leftpad = p.vectors & MICA_CACHE_LEFTPAD ? x.cache_leftpad : nullptr;
  t.block_table = p.page_size > 0 ? x.block_table : nullptr;
  return t;
}

}  // namespace mica
