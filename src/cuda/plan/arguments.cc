// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/arguments.h"

#include <atomic>
#include <numeric>

#include "core/heads_as_rows.h"
#include "cuda/argument_parts.h"
#include "cuda/kernels/parts/page_blocks_sm90.h"
#include "cuda/tensor_maps.h"

namespace mica {

ForwardParams forward_params(const Problem& p, i32 tile_q, const Splits& splits) {
  ForwardParams a = {};
  a.q = p.rotary_dim > 0 ? workspace_rows(p, i32(p.q.shape[3])) : rows_arg(p.q);
  a.k = rows_arg(p.k);
  a.v = rows_arg(p.v);
  a.o = rows_arg(p.o);
  a.batch = p.batch;
  a.heads_q = p.heads_q;
  a.group = p.group;
  a.dim_qk = p.dim_qk;
  a.dim_v = p.dim_v;
  a.packed_q = is_packed_q(p);
  a.tiles_q = query_tiles(p, tile_q);
  a.section_heads = 1;
  a.lse_stride_batch = p.lse.stride[0];
  a.lse_stride_head = p.lse.stride[1];
  a.lse_stride_row = p.lse.stride[2];
  a.joined_heads = p.joined_heads;
  a.joined_rows = p.joined_heads > 0 ? p.joined_rows : kBoxRows;
  a.by_joined_heads = divisor_of(max_of(p.joined_heads, 1));
  a.features = features_of(p);
  a.band = BandArg{p.bottom_right, p.shift, p.window_left, p.window_right, p.chunk, p.by_chunk, p.chunk_phase};
  a.score = score_of(p);
  a.sinks_dtype = p.sinks.dtype;
  a.sinks_stride = p.sinks.stride[0];
  a.alibi_stride_batch = p.alibi.stride[0];
  a.alibi_stride_head = p.alibi.stride[1];
  a.bias = pairs_arg(p.bias);
  a.boolean = pairs_arg(p.boolean);
  if (p.mask_last_keys > 0) {
    a.boolean.keys = a.boolean.last_keys = p.mask_last_keys;
    a.boolean.vectorised_by_2 = 0;
  }
  a.dropout = dropout_arg(p);
  a.splits = splits;
  a.partial_rows = rows_of_head(p);
  a.o_dtype = p.o.dtype;
  return a;
}

u64 next_work_epoch() {
  static std::atomic<u64> last{0};
  constexpr u64 kEpochs = (u64(1) << 40) - 1;
  return last.fetch_add(1, std::memory_order_relaxed) % kEpochs + 1;
}

void bind(ForwardParams& a, const Problem& p, const mica_bindings& x, const WorkspaceLayout& layout) {
  a.q.data = p.rotary_dim > 0 ? in_workspace(x, layout.q_rotated) : writable(x.q);
  a.k.data = x.k;
  a.v.data = x.v;
  a.o.data = x.o;
  a.lse = layout.moves_lse ? in_workspace(x, layout.partial_lse) : if_present(p.lse, x.lse);
  a.sequences = sequence_table(p, x);
  // Kernels look up the first page before they know that there is no key: a table without pages may have no address.
  if (p.max_pages == 0) a.sequences.page_size = 0;
  a.sinks = if_present(p.sinks, x.sinks);
  a.alibi = if_present(p.alibi, x.alibi);
  bind_pairs(a.bias, p.bias, x.bias);
  bind_pairs(a.boolean, p.boolean, x.boolean_mask);
  bind_dropout(a.dropout, p, x);
  a.q_descale = descale_of(p.q_descale, x.q_descale);
  a.k_descale = descale_of(p.k_descale, x.k_descale);
  a.v_descale = descale_of(p.v_descale, x.v_descale);
  if (layout.has_parts) {
    a.partial_o = in_workspace(x, layout.partial_o);
    a.partial_lse = in_workspace(x, layout.partial_lse);
  }
  if (layout.keeps_o) a.kept_o = in_workspace(x, layout.kept_o);
  if (a.work_epoch != 0) {
    a.work_counter = reinterpret_cast<u64*>(in_workspace(x, layout.work_counter));
    a.work_epoch = next_work_epoch();
  }
}

bool v_lies_in_k(const Problem& p, const mica_bindings& x) {
  constexpr u64 kPanelColumns = 64;
  const u64 element = element_bytes(p.dtype);
  const u64 bytes = reinterpret_cast<std::uintptr_t>(x.v) - reinterpret_cast<std::uintptr_t>(x.k);  // wraps if before
  return bytes % (kPanelColumns * element) == 0 && bytes <= u64(p.dim_qk - p.dim_v) * element;
}

mica_status forward_maps_params(const ForwardParams& forward, const Problem& p, const KernelRow& row,
                                ForwardMapsParams& params) {
  params.forward = forward;
  RowsShape q = rows_shape(p.q);
  q.strides = forward.q;  // rotary: of the workspace
  // Short sequences wait for memory: what lies beside a row is another head's, which another block asks for by itself.
  constexpr i32 kMostShortKeys = 1024;
  const bool is_short = p.hint_len_k <= kMostShortKeys && p.dtype != MICA_FP8_E4M3 && !row.traits.latent;
  const Lines lines = is_short ? Lines::ONE : Lines::TWO;
  // Packed sequences have slots as long as the longest is said to be, and a tile at least; 0: no slots.
  const bool has_slots = row.traits.cuts_boxes && forward.splits.num_splits == 1;
  const i32 slot_rows_q = has_slots && is_packed_q(p) ? max_of(p.hint_len_q, row.tile_q) : 0;
  const i32 slot_rows_k = has_slots && is_packed_k(p) ? max_of(p.hint_len_k, row.tile_k) : 0;
  const auto encode_rows = [](const RowsShape& rows, i32 slot_rows, i32 box_rows, MappedRows& mapped, Lines of_box) {
    return slot_rows > 0 ? encode_packed_map(rows, slot_rows, box_rows, mapped, of_box)
                         : encode_map(rows, box_rows, mapped, of_box);
  };
  const auto encode_queries = [&](const RowsShape& rows, i32 box_rows, MappedRows& mapped, Lines of_box) {
    return p.joined_heads > 0 ? encode_joined_map(rows, p.joined_heads, box_rows, mapped, of_box)
                              : encode_rows(rows, slot_rows_q, box_rows, mapped, of_box);
  };
  const i32 box_rows_q = p.joined_heads > 0 ? joined_boxes(p.joined_heads).rows_of_box : kBoxRows;
  mica_status status = encode_queries(q, box_rows_q, params.q, lines);
  if (!fetches_rows(p, row)) {
    const i32 box_rows = p.page_size > 0 && !row.traits.latent ? std::gcd(p.page_size, row.tile_k) : row.tile_k;
    const auto encode = [&](const Tensor& tensor, i32 dim, MappedRows& mapped) {
      return row.traits.page_blocks
                 ? encode_block_map(rows_shape(tensor), box_rows, ceil_div(dim, kPanelColumns), mapped, lines)
                 : encode_rows(rows_shape(tensor), slot_rows_k, box_rows, mapped, lines);
    };
    if (status == MICA_OK) status = encode(p.k, row.dim_qk, params.k);
    if (status == MICA_OK) status = encode(p.v, row.dim_v, params.v);
  }
  // O of another type, what is neither aligned nor small enough for a map, and joined rows that no box of a warp's fits
  // leave from the registers.
  RowsShape o = rows_shape(p.o);
  if (status == MICA_OK && o.dtype == p.dtype && !why_no_map(o)[0] && forward.joined_rows == kBoxRows &&
      box_rows_q % kWarpRows == 0)
    status = encode_queries(o, kWarpRows, params.o, Lines::TWO);
  return status;
}

mica_status bind(ForwardMapsParams& a, const Problem& p, const mica_bindings& x, const WorkspaceLayout& layout) {
  bind(a.forward, p, x, layout);
  mica_status status = bind_map(a.q, a.forward.q.data);
  if (status == MICA_OK && a.k.box_rows > 0) status = bind_map(a.k, a.forward.k.data);
  if (status == MICA_OK && a.v.box_rows > 0) status = bind_map(a.v, a.forward.v.data);
  if (status == MICA_OK && a.o.box_rows > 0) status = bind_map(a.o, a.forward.o.data);
  return status;
}

void bind(QvParams& a, const Problem& p, const mica_bindings& x, const WorkspaceLayout& layout) {
  bind(static_cast<ForwardParams&>(a), p, x, layout);
  a.qv.data = writable(x.qv);
}
mica_status bind(QvMapsParams& a, const Problem& p, const mica_bindings& x, const WorkspaceLayout& layout) {
  a.qv.data = writable(x.qv);
  return bind(a.maps, p, x, layout);
}

CombineParams combine_params(const ForwardParams& forward, const Problem& p, i32 team_warps, i32 lse_heads) {
  CombineParams a = {forward, p.o.dtype, team_warps};
  a.forward.group = max_of(lse_heads, p.joined_heads);
  return a;
}

void bind(CombineParams& a, const Problem& p, const mica_bindings& x, const WorkspaceLayout& layout) {
  bind(a.forward, p, x, layout);
  if (!layout.moves_lse) return;
  a.forward.partial_lse = in_workspace(x, layout.partial_lse);
  a.forward.lse = if_present(p.lse, x.lse);
}

JoinParams join_params(const Problem& p) {
  JoinParams a = {};
  a.o = rows_arg(p.o);
  a.lse_stride_batch = p.lse.stride[0];
  a.lse_stride_head = p.lse.stride[1];
  a.lse_stride_row = p.lse.stride[2];
  a.batch = p.batch;
  a.rows = p.max_len_q;
  a.heads = p.heads_q;
  a.dim = p.dim_v;
  a.dtype = p.o.dtype;
  return a;
}

void bind(JoinParams& a, const Problem& p, const mica_bindings& x, const WorkspaceLayout& layout) {
  for (int n = 0; n < 2; ++n) {
    a.part_o[n] = in_workspace(x, layout.parts.o[n]);
    a.part_lse[n] = reinterpret_cast<const float*>(in_workspace(x, layout.parts.lse[n]));
  }
  a.o.data = x.o;
  a.lse = p.lse.dtype ? x.lse : nullptr;
}

ProbsParams probs_params(const ForwardParams& forward, const Problem& p) {
  ProbsParams a = {};
  a.forward = forward;
  a.dtype = p.dtype;
  a.keys_dtype = p.k.dtype;
  a.rows = i32(p.probs.shape[2]);
  a.keys = i32(p.probs.shape[3]);
  a.stride_batch = p.probs.stride[0];
  a.stride_head = p.probs.stride[1];
  a.stride_row = p.probs.stride[2];
  a.stride_key = p.probs.stride[3];
  return a;
}

void bind(ProbsParams& a, const Problem& p, const mica_bindings& x, const WorkspaceLayout& layout) {
  bind(a.forward, p, x, layout);
  a.probs = x.probs;
}

AppendParams append_params(const Problem& p) {
  AppendParams a = {};
  a.k = rows_arg(p.k);
  a.v = rows_arg(p.v);
  a.k_new = rows_arg(p.k_new);
  a.v_new = rows_arg(p.v_new);
  a.q = rows_arg(p.q);
  a.q_rotated = workspace_rows(p, i32(p.q.shape[3]));
  a.cos_stride_position = p.rotary_cos.stride[0];
  a.cos_stride_pair = p.rotary_cos.stride[1];
  a.sin_stride_position = p.rotary_sin.stride[0];
  a.sin_stride_pair = p.rotary_sin.stride[1];
  a.rotary_dtype = p.rotary_cos.dtype;
  a.rotary_dim = p.rotary_dim;
  a.rotary_interleaved = p.rotary_interleaved;
  a.rotary_positions = p.rotary_positions;
  a.rotate_along = is_banded(p);
  a.batch = p.batch;
  a.heads_q = p.heads_q;
  a.heads_k = p.heads_k;
  a.dim_qk = i32(p.q.shape[3]);
  a.dim_v = p.dim_v;
  a.dtype = p.dtype;
  a.quantises = p.k.dtype != p.dtype;
  a.by_page = p.descale_per_page;
  return a;
}

void bind(AppendParams& a, const Problem& p, const mica_bindings& x, const WorkspaceLayout& layout) {
  a.k.data = x.k;
  a.v.data = x.v;
  a.k_new.data = writable(x.k_new);
  a.v_new.data = writable(x.v_new);
  a.q.data = writable(x.q);
  a.q_rotated.data = p.rotary_dim > 0 ? in_workspace(x, layout.q_rotated) : nullptr;
  a.k_descale = descale_of(p.k_descale, x.k_descale);
  a.v_descale = descale_of(p.v_descale, x.v_descale);
  a.cos = if_present(p.rotary_cos, x.rotary_cos);
  a.sin = if_present(p.rotary_sin, x.rotary_sin);
  a.sequences = sequence_table(p, x);
}

}  // namespace mica
