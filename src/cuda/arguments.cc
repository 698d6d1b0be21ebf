// SPDX-License-Identifier: Apache-2.0
#include "cuda/arguments.h"

#include "base/pointers.h"

namespace mica {
namespace {

RowsArg rows_arg(const Tensor& t) { return RowsArg{nullptr, t.stride[0], t.stride[1], t.stride[2]}; }

constexpr i32 kEverywhere = 0x7fffffff;

PairsArg pairs_arg(const Tensor& t) {
  PairsArg a = {};
  if (t.dtype == MICA_NONE) return a;
  a.dtype = t.dtype;
  a.rows = t.shape[2] == 1 ? kEverywhere : i32(t.shape[2]);
  a.keys = t.shape[3] == 1 ? kEverywhere : i32(t.shape[3]);
  a.stride_batch = t.stride[0];
  a.stride_head = t.stride[1];
  a.stride_row = t.stride[2];
  a.stride_key = t.stride[3];
  return a;
}

// An address that was bound for an absent tensor is not looked at.
template <class T>
T* if_present(const Tensor& t, T* address) {
  return t.dtype == MICA_NONE ? nullptr : address;
}

// Kernels read through RowsArg too; only outputs are written.
void* writable(const void* address) { return const_cast<void*>(address); }

}  // namespace

ForwardParams forward_params(const Problem& p, const KernelRow& row, const Splits& splits) {
  ForwardParams a = {};
  a.q = rows_arg(p.q);
  a.k = rows_arg(p.k);
  a.v = rows_arg(p.v);
  a.o = rows_arg(p.o);
  a.lse_stride_batch = p.lse.stride[0];
  a.lse_stride_head = p.lse.stride[1];
  a.lse_stride_row = p.lse.stride[2];
  a.batch = p.batch;
  a.heads_q = p.heads_q;
  a.group = p.group;
  a.dim_qk = p.dim_qk;
  a.dim_v = p.dim_v;
  a.packed_q = (p.vectors & MICA_CU_SEQLENS_Q) != 0;
  a.tiles_q = a.packed_q ? i32(packed_tile_count(p.total_q, p.batch, row.tile_q)) : ceil_div(p.max_len_q, row.tile_q);
  a.features = features_of(p);
  a.band = BandArg{p.bottom_right, p.window_left, p.window_right};
  a.score = score_of(p);
  a.sinks_dtype = p.sinks.dtype;
  a.sinks_stride = p.sinks.stride[0];
  a.alibi_stride_batch = p.alibi.stride[0];
  a.alibi_stride_head = p.alibi.stride[1];
  a.bias = pairs_arg(p.bias);
  a.boolean = pairs_arg(p.boolean);
  a.dropout.threshold = p.dropout > 0 ? keep_threshold(p.dropout) : 65536u;
  a.dropout.rescale = 1.0f / (1.0f - p.dropout);
  a.splits = splits;
  a.partial_rows = a.packed_q ? p.total_q : i64(p.batch) * p.max_len_q;
  return a;
}

void bind_forward(ForwardParams& a, const Problem& p, const mica_bindings& x, const WorkspaceLayout& layout) {
  a.q.data = writable(x.q);
  a.k.data = x.k;
  a.v.data = x.v;
  a.o.data = x.o;
  a.lse = if_present(p.lse, x.lse);
  a.sequences = sequence_table(p, x);
  a.sinks = if_present(p.sinks, x.sinks);
  a.alibi = if_present(p.alibi, x.alibi);
  a.bias.data = writable(if_present(p.bias, x.bias));
  a.boolean.data = writable(if_present(p.boolean, x.boolean_mask));
  a.dropout.seed = x.dropout_seed;
  a.dropout.offset = x.dropout_offset;
  a.dropout.rng_state = p.rng_from_memory ? reinterpret_cast<const i64*>(x.rng_state) : nullptr;
  if (a.splits.num_splits > 1) {
    char* workspace = static_cast<char*>(x.workspace);
    a.partial_o = reinterpret_cast<float*>(workspace + layout.partial_o);
    a.partial_lse = reinterpret_cast<float*>(workspace + layout.partial_lse);
  }
}

}  // namespace mica
