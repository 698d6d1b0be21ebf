// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/arguments_backward.h"

#include "cuda/argument_parts.h"
#include "cuda/kernels/parts/backward_drawn_sm90.h"
#include "cuda/tensor_maps.h"

namespace mica {

BackwardPrepareParams backward_prepare_params(const Problem& p, i64 first_zeros, i64 others_begin, i64 others_end) {
  BackwardPrepareParams a = {};
  a.o = rows_arg(p.o);
  a.d_o = rows_arg(p.d_o);
  a.o_dtype = p.o.dtype;
  a.d_o_dtype = p.d_o.dtype;
  a.unaligned = !rows_are_aligned(p.o) || !rows_are_aligned(p.d_o);
  a.converted = workspace_rows(p, p.dim_v);
  a.converted_dtype = p.dtype;
  a.lse_stride_batch = p.lse.stride[0];
  a.lse_stride_head = p.lse.stride[1];
  a.lse_stride_row = p.lse.stride[2];
  a.d_lse_stride_batch = p.d_lse.stride[0];
  a.d_lse_stride_head = p.d_lse.stride[1];
  a.d_lse_stride_row = p.d_lse.stride[2];
  a.stat_rows = rows_of_head(p);
  a.first_zeros = first_zeros;
  a.others_begin = others_begin;
  a.other_zeros = others_end - others_begin;
  a.batch = p.batch;
  a.heads_q = p.heads_q;
  a.dim_v = p.dim_v;
  a.packed_q = is_packed_q(p);
  a.rows_per_batch = a.packed_q ? i32(p.total_q) : p.max_len_q;
  a.heads_k = p.heads_k;
  a.k = rows_arg(p.k);
  a.v = rows_arg(p.v);
  a.keys_dtype = p.dtype;
  a.dim_qk = p.dim_qk;
  return a;
}

void bind(BackwardPrepareParams& a, const Problem& p, const mica_bindings& x, const WorkspaceLayout& layout) {
  a.o.data = x.o;
  a.d_o.data = writable(x.d_o);
  a.converted.data = p.d_o.dtype == p.dtype ? nullptr : in_workspace(x, layout.d_o);
  a.lse = x.lse;
  a.d_lse = if_present(p.d_lse, x.d_lse);
  a.row_lse = in_workspace(x, layout.row_lse);
  a.row_delta = in_workspace(x, layout.row_delta);
  a.k.data = x.k;
  a.v.data = x.v;
  if (a.measures) {
    a.row_norm = in_workspace(x, layout.row_norm);
    a.key_norms = reinterpret_cast<KeyNorms*>(in_workspace(x, layout.key_norms));
  }
  a.zeros = in_workspace(x, layout.dq_accumulator);
  a.packed_order = a.tile_k > 0 ? reinterpret_cast<i32*>(in_workspace(x, layout.packed_order)) : nullptr;
  a.sequences = sequence_table(p, x);
}

BackwardParams backward_params(const Problem& p, const KernelRow& row) {
  BackwardParams a = {};
  a.q = rows_arg(p.q);
  a.k = rows_arg(p.k);
  a.v = rows_arg(p.v);
  a.d_o = p.d_o.dtype == p.dtype ? rows_arg(p.d_o) : workspace_rows(p, p.dim_v);
  a.dk = rows_arg(p.dk);
  a.dv = rows_arg(p.dv);
  a.dk_dtype = p.dk.dtype;
  a.dv_dtype = p.dv.dtype;
  a.stat_rows = rows_of_head(p);
  a.batch = p.batch;
  a.heads_q = p.heads_q;
  a.heads_k = p.heads_k;
  a.group = p.group;
  a.part_heads = p.group;
  a.section_heads = 1;
  a.dim_qk = p.dim_qk;
  a.dim_v = p.dim_v;
  a.slices = row.traits.slice_width ? ceil_div(max_of(p.dim_qk, p.dim_v), row.traits.slice_width) : 1;
  a.dq_columns = row.traits.slice_width ? round_up(p.dim_qk, row.traits.slice_width) : row.dim_qk;
  a.packed_q = is_packed_q(p);
  a.packed_k = is_packed_k(p);
  a.tiles_q = query_tiles(p, row.tile_q);
  a.tiles_k = a.packed_k ? i32(packed_tile_count(p.total_k, p.batch, row.tile_k)) : ceil_div(p.max_len_k, row.tile_k);
  a.by_tiles_k = divisor_of(max_of(a.tiles_k, 1));
  a.by_heads_k = divisor_of(max_of(a.heads_k, 1));
  a.by_last_heads = divisor_of(1);
  a.features = features_of(p);
  a.band = BandArg{p.bottom_right, p.shift, p.window_left, p.window_right, p.chunk, p.by_chunk, p.chunk_phase};
  a.score = score_of(p);
  a.alibi_stride_batch = p.alibi.stride[0];
  a.alibi_stride_head = p.alibi.stride[1];
  a.bias = pairs_arg(p.bias);
  a.boolean = pairs_arg(p.boolean);
  a.dropout = dropout_arg(p);
  return a;
}

void bind(BackwardParams& a, const Problem& p, const mica_bindings& x, const WorkspaceLayout& layout) {
  a.q.data = writable(x.q);
  a.k.data = x.k;
  a.v.data = x.v;
  a.d_o.data = p.d_o.dtype == p.dtype ? writable(x.d_o) : in_workspace(x, layout.d_o);
  a.dk.data = if_present(p.dk, x.dk);
  a.dv.data = if_present(p.dv, x.dv);
  a.dq_accumulator = p.dq.dtype == MICA_NONE ? nullptr : in_workspace(x, layout.dq_accumulator);
  if (p.deterministic) a.dq_semaphores = reinterpret_cast<i32*>(in_workspace(x, layout.dq_semaphores));
  a.row_lse = in_workspace(x, layout.row_lse);
  a.row_delta = in_workspace(x, layout.row_delta);
  a.sequences = sequence_table(p, x);
  a.alibi = if_present(p.alibi, x.alibi);
  bind_pairs(a.bias, p.bias, x.bias);
  bind_pairs(a.boolean, p.boolean, x.boolean_mask);
  bind_dropout(a.dropout, p, x);
}

mica_status backward_maps_params(const BackwardParams& backward, const Problem& p, const KernelRow& row,
                                 BackwardMapsParams& params) {
  params.backward = backward;
  // A dO of another type is read from the workspace, where it has q's axes.
  RowsShape d_o = p.d_o.dtype == p.dtype ? rows_shape(p.d_o) : rows_shape(p.q);
  d_o.dim = p.dim_v;
  d_o.strides = backward.d_o;
  mica_status status = encode_map(rows_shape(p.q), row.tile_q, params.q);
  const bool draws = row.course == Course::DRAWN;
  const i32 key_columns = draws ? backward_drawn_key_columns(row.dim_qk) : 64;
  if (status == MICA_OK) status = encode_map(rows_shape(p.k), row.tile_k, key_columns, true, params.k);
  // Each consumer's rows of V are asked for as soon as the last ones are done with.
  const bool holds_values = backward_holds_values(draws, row.dim_v);
  if (status == MICA_OK)
    status = encode_map(rows_shape(p.v), draws ? row.tile_k / 2 : row.tile_k, holds_values ? row.dim_v : 64,
                        !holds_values, params.v);
  if (status == MICA_OK) status = encode_map(d_o, row.tile_q, params.d_o);
  // Gradients of another type, and what is neither aligned nor small enough for a map, leave from the registers.
  const auto encode_gradient = [&](const Tensor& tensor, MappedRows& mapped) {
    const RowsShape shape = rows_shape(tensor);
    if (status == MICA_OK && shape.dtype == p.dtype && !why_no_map(shape)[0])
      status = encode_map(shape, kWarpRows, mapped);
  };
  encode_gradient(p.dk, params.dk);
  encode_gradient(p.dv, params.dv);
  return status;
}

mica_status bind(BackwardMapsParams& a, const Problem& p, const mica_bindings& x, const WorkspaceLayout& layout) {
  bind(a.backward, p, x, layout);
  mica_status status = bind_map(a.q, a.backward.q.data);
  if (status == MICA_OK) status = bind_map(a.k, a.backward.k.data);
  if (status == MICA_OK) status = bind_map(a.v, a.backward.v.data);
  if (status == MICA_OK) status = bind_map(a.d_o, a.backward.d_o.data);
  if (status == MICA_OK && a.dk.box_rows > 0) status = bind_map(a.dk, a.backward.dk.data);
  if (status == MICA_OK && a.dv.box_rows > 0) status = bind_map(a.dv, a.backward.dv.data);
  if (a.work_epoch != 0) {
    a.work_counter = reinterpret_cast<u64*>(in_workspace(x, layout.work_counter));
    a.work_epoch = next_work_epoch();
  }
  if (a.takes_in_order) a.packed_order = reinterpret_cast<const i32*>(in_workspace(x, layout.packed_order));
  if (a.stores_dq_first) a.dq_turns = reinterpret_cast<u32*>(in_workspace(x, layout.dq_turns));
  if (a.clears_ahead > 0) a.heads_cleared = reinterpret_cast<i32*>(in_workspace(x, layout.heads_cleared));
  if (a.counts_done) a.heads_done = reinterpret_cast<i32*>(in_workspace(x, layout.heads_done));
  if (a.sums_integers) {
    a.backward.dq_semaphores = nullptr;
    a.key_norms = reinterpret_cast<const KeyNorms*>(in_workspace(x, layout.key_norms));
    a.head_norms = reinterpret_cast<KeyNorms*>(in_workspace(x, layout.head_norms));
    a.row_norm = in_workspace(x, layout.row_norm);
    a.dq_order = reinterpret_cast<i32*>(in_workspace(x, layout.dq_turns));
  }
  if (a.tells_peers) a.key_peers = reinterpret_cast<KeyPeers*>(in_workspace(x, layout.key_peers));
  if (a.whole_heads) {
    a.backward.dq_semaphores = nullptr;  // a head's key tiles follow one another anyway
    a.dq = rows_arg(p.dq);
    a.dq.data = if_present(p.dq, x.dq);
  }
  if (a.parts > 1) {
    if (layout.dk_accumulator > layout.key_semaphores)  // else they have no turns
      a.key_semaphores = reinterpret_cast<i32*>(in_workspace(x, layout.key_semaphores));
    a.dk_accumulator = p.dk.dtype == MICA_NONE ? nullptr : in_workspace(x, layout.dk_accumulator);
    a.dv_accumulator = p.dv.dtype == MICA_NONE ? nullptr : in_workspace(x, layout.dv_accumulator);
  }
  return status;
}

static SummedRows summed_rows(const Tensor& tensor, i32 dim, i32 columns, float scale) {
  SummedRows a = {};
  a.rows = rows_arg(tensor);
  a.dtype = tensor.dtype;
  a.unaligned = !rows_are_aligned(tensor);
  a.dim = dim;
  a.columns = columns;
  a.scale = scale;
  return a;
}

BackwardFinishParams backward_finish_params(const Problem& p, const BackwardParams& backward, i32 tile_q) {
  BackwardFinishParams a = {};
  a.dq = summed_rows(p.dq, p.dim_qk, backward.dq_columns, p.scale);
  a.batch = p.batch;
  a.heads_q = p.heads_q;
  a.tiles_q = backward.tiles_q;
  a.packed_q = backward.packed_q;
  a.tile_q = tile_q;
  a.group = p.group;
  a.stat_rows = backward.stat_rows;
  return a;
}

BackwardFinishParams backward_finish_keys_params(const Problem& p, const BackwardParams& backward, const KernelRow& row,
                                                 i64 key_blocks) {
  constexpr i32 kElements = 8192;  // that a block of 256 threads has under way at once
  BackwardFinishParams a = {};
  if (p.dk.dtype) a.dq = summed_rows(p.dk, p.dim_qk, row.dim_qk, p.scale);
  if (p.dv.dtype) a.dv = summed_rows(p.dv, p.dim_v, row.dim_v, 1.0f);
  a.batch = p.batch;
  a.heads_q = p.heads_k;
  a.tiles_q = backward.tiles_k;
  a.tile_q = row.tile_k;
  a.of_keys = ceil_div(row.tile_k * max_of(row.dim_qk, row.dim_v), kElements);
  a.dk_blocks = p.dk.dtype ? i32(key_blocks) * a.of_keys : 0;
  return a;
}

void bind(BackwardFinishParams& a, const Problem& p, const mica_bindings& x, const WorkspaceLayout& layout) {
  a.dq.rows.data = a.of_keys == 0 ? x.dq : x.dk;
  a.dq.sums = in_workspace(x, a.of_keys == 0 ? layout.dq_accumulator : layout.dk_accumulator);
  if (a.stores_dq_first) a.dq_turns = reinterpret_cast<const u32*>(in_workspace(x, layout.dq_turns));
  if (a.counts_done) a.heads_done = reinterpret_cast<const i32*>(in_workspace(x, layout.heads_done));
  if (a.tells_peers) a.key_peers = reinterpret_cast<const KeyPeers*>(in_workspace(x, layout.key_peers));
  if (a.sums_integers) {
    a.dq_parts = reinterpret_cast<const u32*>(in_workspace(x, layout.dq_turns));
    a.row_norm = in_workspace(x, layout.row_norm);
    a.row_delta = in_workspace(x, layout.row_delta);
    a.head_norms = reinterpret_cast<const KeyNorms*>(in_workspace(x, layout.head_norms));
  }
  a.sequences = sequence_table(p, x);
  if (a.of_keys == 0) return;
  a.dv.rows.data = x.dv;
  a.dv.sums = in_workspace(x, layout.dv_accumulator);
  const i32 rows = a.sequences.slot_len_k;
  a.sequences = {};
  a.sequences.slot_len_q = rows;
}

BackwardBiasParams backward_bias_params(const BackwardParams& backward, const Problem& p) {
  BackwardBiasParams a = {};
  a.backward = backward;
  a.dtype = p.d_bias.dtype;
  a.batch = i32(p.d_bias.shape[0]);
  a.heads = i32(p.d_bias.shape[1]);
  a.rows = i32(p.d_bias.shape[2]);
  a.keys = i32(p.d_bias.shape[3]);
  a.stride_batch = p.d_bias.stride[0];
  a.stride_head = p.d_bias.stride[1];
  a.stride_row = p.d_bias.stride[2];
  a.stride_key = p.d_bias.stride[3];
  return a;
}

void bind(BackwardBiasParams& a, const Problem& p, const mica_bindings& x, const WorkspaceLayout& layout) {
  bind(a.backward, p, x, layout);
  a.d_bias = x.d_bias;
  a.vectorised_by_8 = a.rows > 1 && a.keys > 1 && a.keys % 8 == 0 && a.stride_key == 1 && a.stride_row % 8 == 0 &&
                      a.stride_head % 8 == 0 && a.stride_batch % 8 == 0 &&
                      reinterpret_cast<std::uintptr_t>(x.d_bias) % 16 == 0;
}

BackwardSinksParams backward_sinks_params(const Problem& p) {
  BackwardSinksParams a = {};
  a.lse_stride_batch = p.lse.stride[0];
  a.lse_stride_head = p.lse.stride[1];
  a.lse_stride_row = p.lse.stride[2];
  a.stat_rows = rows_of_head(p);
  a.sinks_dtype = p.sinks.dtype;
  a.sinks_stride = p.sinks.stride[0];
  a.d_sinks_dtype = p.d_sinks.dtype;
  a.d_sinks_stride = p.d_sinks.stride[0];
  a.batch = p.batch;
  return a;
}

void bind(BackwardSinksParams& a, const Problem& p, const mica_bindings& x, const WorkspaceLayout& layout) {
  a.lse = x.lse;
  a.row_delta = in_workspace(x, layout.row_delta);
  a.sinks = x.sinks;
  a.d_sinks = x.d_sinks;
  a.sequences = sequence_table(p, x);
}

}  // namespace mica
