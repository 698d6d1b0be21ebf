// SPDX-License-Identifier: Apache-2.0
// The bindings as the core wants them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <iterator>

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
  const Tensor& tensor;
};

// Where a tensor that a call may bind has its address in mica_bindings and its description in Problem, in bytes.
struct TensorPlace {
  u16 address, tensor;
  const char* name;
};
#define MICA_PLACE(bound, described) \
  { offsetof(mica_bindings, bound), offsetof(Problem, described), #bound }
inline constexpr TensorPlace kTensorPlaces[] = {MICA_PLACE(q, q),
                                                MICA_PLACE(k, k),
                                                MICA_PLACE(v, v),
                                                MICA_PLACE(o, o),
                                                MICA_PLACE(lse, lse),
                                                MICA_PLACE(probs, probs),
                                                MICA_PLACE(boolean_mask, boolean),
                                                MICA_PLACE(bias, bias),
                                                MICA_PLACE(alibi, alibi),
                                                MICA_PLACE(sinks, sinks),
                                                MICA_PLACE(block_table, block_table),
                                                MICA_PLACE(k_new, k_new),
                                                MICA_PLACE(v_new, v_new),
                                                MICA_PLACE(rotary_cos, rotary_cos),
                                                MICA_PLACE(rotary_sin, rotary_sin),
                                                MICA_PLACE(d_o, d_o),
                                                MICA_PLACE(d_lse, d_lse),
                                                MICA_PLACE(dq, dq),
                                                MICA_PLACE(dk, dk),
                                                MICA_PLACE(dv, dv),
                                                MICA_PLACE(d_bias, d_bias),
                                                MICA_PLACE(d_sinks, d_sinks),
                                                MICA_PLACE(q_descale, q_descale),
                                                MICA_PLACE(k_descale, k_descale),
                                                MICA_PLACE(v_descale, v_descale),
                                                MICA_PLACE(k_prefix, k_prefix),
                                                MICA_PLACE(v_prefix, v_prefix),
                                                MICA_PLACE(qv, qv)};
#undef MICA_PLACE

inline const Tensor& tensor_at(const Problem& p, const TensorPlace& place) {
  return *reinterpret_cast<const Tensor*>(reinterpret_cast<const char*>(&p) + place.tensor);
}

// A set of those tensors, by their number.
using TensorSet = u32;
static_assert(std::size(kTensorPlaces) <= 8 * sizeof(TensorSet));

inline bool is_empty(const Tensor& t) {
  return t.shape[0] == 0 || t.shape[1] == 0 || t.shape[2] == 0 || t.shape[3] == 0;
}

// Those that are there and have elements: others have no address worth asking for.
inline TensorSet tensors_of(const Problem& p) {
  TensorSet set = 0;
  for (size_t n = 0; n < std::size(kTensorPlaces); ++n) {
    const Tensor& t = tensor_at(p, kTensorPlaces[n]);
    if (t.dtype != MICA_NONE && !is_empty(t)) set |= TensorSet(1) << n;
  }
  return set;
}

// The first of a set that is not empty.
inline BoundTensor first_tensor(TensorSet set, const Problem& p, const mica_bindings& x) {
  const TensorPlace& place = kTensorPlaces[std::countr_zero(set)];
  const void* address;
  std::memcpy(&address, reinterpret_cast<const char*>(&x) + place.address, sizeof address);
  return {place.name, address, tensor_at(p, place)};
}
inline TensorSet without_first(TensorSet set) { return set & (set - 1); }

}  // namespace mica
