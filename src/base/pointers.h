// SPDX-License-Identifier: Apache-2.0
// The bindings as the core wants them.
#pragma once

#include <array>

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

// A tensor of the description and the address that is bound to it.
struct BoundTensor {
  const char* name;  // in mica_bindings
  const void* address;
  const Tensor& tensor;  // dtype MICA_NONE: absent
};

inline auto bound_tensors(const Problem& p, const mica_bindings& x) {
  return std::to_array<BoundTensor>({{"q", x.q, p.q},
                                     {"k", x.k, p.k},
                                     {"v", x.v, p.v},
                                     {"o", x.o, p.o},
                                     {"lse", x.lse, p.lse},
                                     {"probs", x.probs, p.probs},
                                     {"boolean_mask", x.boolean_mask, p.boolean},
                                     {"bias", x.bias, p.bias},
                                     {"alibi", x.alibi, p.alibi},
                                     {"sinks", x.sinks, p.sinks},
                                     {"block_table", x.block_table, p.block_table},
                                     {"k_new", x.k_new, p.k_new},
                                     {"v_new", x.v_new, p.v_new},
                                     {"rotary_cos", x.rotary_cos, p.rotary_cos},
                                     {"rotary_sin", x.rotary_sin, p.rotary_sin},
                                     {"d_o", x.d_o, p.d_o},
                                     {"d_lse", x.d_lse, p.d_lse},
                                     {"dq", x.dq, p.dq},
                                     {"dk", x.dk, p.dk},
                                     {"dv", x.dv, p.dv},
                                     {"d_bias", x.d_bias, p.d_bias},
                                     {"d_sinks", x.d_sinks, p.d_sinks},
                                     {"q_descale", x.q_descale, p.q_descale},
                                     {"k_descale", x.k_descale, p.k_descale},
                                     {"v_descale", x.v_descale, p.v_descale},
                                     {"k_prefix", x.k_prefix, p.k_prefix},
                                     {"v_prefix", x.v_prefix, p.v_prefix}});
}

}  // namespace mica
