// SPDX-License-Identifier: Apache-2.0
// Pieces that the parameters of several kernels share.
#pragma once

#include <cstdint>

#include "base/pointers.h"
#include "core/problem.h"
#include "cuda/kernels/params.h"
#include "mica/mica.h"

namespace mica {

// Of a tensor that is there: never 0, so that one may divide by it.
inline i32 element_bytes(i32 dtype) { return max_of(dtype_bytes(dtype), 1); }

inline RowsArg rows_arg(const Tensor& t) { return RowsArg{nullptr, t.stride[0], t.stride[1], t.stride[2]}; }

inline PairsArg pairs_arg(const Tensor& t) {
  constexpr i32 kBroadcastSize = 0x7fffffff;
  PairsArg a = {};
  if (t.dtype == MICA_NONE) return a;
  a.dtype = t.dtype;
  a.rows = t.shape[2] == 1 ? kBroadcastSize : i32(t.shape[2]);
  a.keys = t.shape[3] == 1 ? kBroadcastSize : i32(t.shape[3]);
  a.stride_batch = t.stride[0];
  a.stride_head = t.stride[1];
  a.stride_row = t.stride[2];
  a.stride_key = t.stride[3];
  a.vectorised_by_2 = t.stride[3] == 1 && t.stride[0] % 2 == 0 && t.stride[1] % 2 == 0 && t.stride[2] % 2 == 0;
  return a;
}
// Few callers promise an alignment of masks and biases, and most have it: the address itself is asked.
inline void bind_pairs(PairsArg& a, const Tensor& t, const void* address) {
  a.data = const_cast<void*>(t.dtype == MICA_NONE ? nullptr : address);
  a.vectorised_by_2 = a.vectorised_by_2 && reinterpret_cast<std::uintptr_t>(a.data) % (2 * element_bytes(t.dtype)) == 0;
}

// An address that was bound for an absent tensor is not looked at.
template <class T>
T* if_present(const Tensor& t, T* address) {
  return t.dtype == MICA_NONE ? nullptr : address;
}

inline float* in_workspace(const mica_bindings& x, u64 offset) {
  return reinterpret_cast<float*>(static_cast<char*>(x.workspace) + offset);
}

inline bool is_packed_q(const Problem& p) { return (p.vectors & MICA_CU_SEQLENS_Q) != 0; }
inline bool is_packed_k(const Problem& p) { return (p.vectors & MICA_CU_SEQLENS_K) != 0; }

// Query rows of one head, as partial results and row statistics count them: of the packed whole, or of all slots.
inline i64 rows_of_head(const Problem& p) { return is_packed_q(p) ? p.total_q : i64(p.batch) * p.max_len_q; }

inline i32 query_tiles(const Problem& p, i32 tile_q) {
  return is_packed_q(p) ? i32(packed_tile_count(p.total_q, p.batch, tile_q)) : ceil_div(p.max_len_q, tile_q);
}

// Rows with q's axes in the workspace, in q's type: dense, each row of a head at a multiple of 16 bytes.
inline RowsArg workspace_rows(const Problem& p, i32 dim) {
  const i64 head = round_up<i64>(dim, 16 / element_bytes(p.dtype));
  return RowsArg{nullptr, is_packed_q(p) ? 0 : i64(p.max_len_q) * p.heads_q * head, p.heads_q * head, head};
}

inline DropoutArg dropout_arg(const Problem& p) {
  DropoutArg a = {};
  a.threshold = p.dropout > 0 ? keep_threshold(p.dropout) : 65536u;
  a.rescale = 1.0f / (1.0f - p.dropout);
  a.place = p.dropout_place;
  return a;
}
inline void bind_dropout(DropoutArg& a, const Problem& p, const mica_bindings& x) {
  a.seed = x.dropout_seed;
  a.offset = x.dropout_offset;
  a.rng_state = p.rng_from_memory ? reinterpret_cast<const i64*>(x.rng_state) : nullptr;
}

// Kernels read through RowsArg too; only outputs are written.
inline void* writable(const void* address) { return const_cast<void*>(address); }

}  // namespace mica
