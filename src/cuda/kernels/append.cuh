// SPDX-License-Identifier: Apache-2.0
// Before attention over a cache: writes new keys and values into it, and rotates new keys and queries by their
// positions (rotary embedding). A cache of e4m3 takes them divided by its factors. A block owns one row, all heads:
// first batch * len_new key rows, then the query rows, which go to the workspace.
#pragma once

#include "device/ptx.cuh"
#include "kernels/params.h"

namespace mica {

// Element `column` of the row at `offset`, rotated by the angle of a position.
MICA_DEVICE float rotated(const AppendParams& p, const void* data, i64 offset, i32 column, i64 position) {
  const float own = load_as_float(data, offset + column, p.dtype);
  if (column >= p.rotary_dim) return own;
  const i32 half = p.rotary_dim / 2;
  const bool is_first = p.rotary_interleaved ? column % 2 == 0 : column < half;
  const i32 pair = p.rotary_interleaved ? column / 2 : column % half;
  const i32 distance = p.rotary_interleaved ? 1 : half;
  const float other = load_as_float(data, offset + (is_first ? column + distance : column - distance), p.dtype);
  const i64 at = clamp_to<i64>(position, 0, p.rotary_positions - 1);
  const float cosine = load_as_float(p.cos, at * p.cos_stride_position + pair * p.cos_stride_pair, p.rotary_dtype);
  const float sine = load_as_float(p.sin, at * p.sin_stride_position + pair * p.sin_stride_pair, p.rotary_dtype);
  return is_first ? own * cosine - other * sine : other * sine + own * cosine;
}

MICA_DEVICE void copy_element(void* to, i64 to_index, const void* from, i64 from_index, i32 dtype) {
  if (dtype_bytes(dtype) == 4)
    static_cast<u32*>(to)[to_index] = static_cast<const u32*>(from)[from_index];
  else if (dtype_bytes(dtype) == 1)
    static_cast<u8*>(to)[to_index] = static_cast<const u8*>(from)[from_index];
  else
    static_cast<u16*>(to)[to_index] = static_cast<const u16*>(from)[from_index];
}

MICA_DEVICE void append_row(const AppendParams& p, i32 b, i32 t) {
  const Sequence s = sequence_of(p.sequences, b);
  const i32 key = s.append_begin + t;
  const i64 position = i64(s.leftpad) + key;
  const i64 k_row = key_row_offset(p.sequences, s, b, key, p.k.stride_batch, p.k.stride_row);
  const i64 v_row = key_row_offset(p.sequences, s, b, key, p.v.stride_batch, p.v.stride_row);
  const i64 k_new_row = b * p.k_new.stride_batch + t * p.k_new.stride_row;
  const i64 v_new_row = b * p.v_new.stride_batch + t * p.v_new.stride_row;
  const i32 slot = p.by_page ? clamp_to(paged_row(p.sequences, s, b, key).entry, 0, p.sequences.slots_k - 1) : b;
  for (i32 i = threadIdx.x; i < p.heads_k * p.dim_qk; i += blockDim.x) {
    const i32 head = i / p.dim_qk, column = i % p.dim_qk;
    const i64 from = k_new_row + head * p.k_new.stride_head, to = k_row + head * p.k.stride_head + column;
    if (p.quantises)
      static_cast<u8*>(p.k.data)[to] =
          float_to_e4m3(rotated(p, p.k_new.data, from, column, position) / descale_at(p.k_descale, slot, head));
    else if (p.rotary_dim > 0)
      store_float(p.k.data, to, p.dtype, rotated(p, p.k_new.data, from, column, position));
    else
      copy_element(p.k.data, to, p.k_new.data, from + column, p.dtype);
  }
  for (i32 i = threadIdx.x; i < p.heads_k * p.dim_v; i += blockDim.x) {
    const i32 head = i / p.dim_v, column = i % p.dim_v;
    const i64 from = v_new_row + head * p.v_new.stride_head + column, to = v_row + head * p.v.stride_head + column;
    if (p.quantises)
      static_cast<u8*>(p.v.data)[to] =
          float_to_e4m3(load_as_float(p.v_new.data, from, p.dtype) / descale_at(p.v_descale, slot, head));
    else
      copy_element(p.v.data, to, p.v_new.data, from, p.dtype);
  }
}

// slot_row counts the rows of q: of all slots, or packed.
MICA_DEVICE void rotate_query_row(const AppendParams& p, i64 slot_row) {
  const bool packed = p.sequences.cu_seqlens_q != nullptr;
  const i32 b = packed ? sequence_of_packed_row(p.sequences.cu_seqlens_q, p.batch, slot_row)
                       : i32(slot_row / p.sequences.slot_len_q);
  const Sequence s = sequence_of(p.sequences, b);
  const i64 row = packed ? slot_row - s.q_begin : slot_row % p.sequences.slot_len_q;
  if (row < 0 || row >= s.slot_len_q) return;
  const i64 position = i64(s.leftpad) + s.append_begin + (p.rotate_along ? row : 0);
  const i64 from = query_row_offset(s, i32(row), p.q.stride_batch, p.q.stride_row);
  const i64 to = query_row_offset(s, i32(row), p.q_rotated.stride_batch, p.q_rotated.stride_row);
  for (i32 i = threadIdx.x; i < p.heads_q * p.dim_qk; i += blockDim.x) {
    const i32 head = i / p.dim_qk, column = i % p.dim_qk;
    store_float(p.q_rotated.data, to + head * p.q_rotated.stride_head + column, p.dtype,
                rotated(p, p.q.data, from + head * p.q.stride_head, column, position));
  }
}

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::AppendParams params) {
  mica::griddepcontrol_launch_dependents();
  mica::griddepcontrol_wait();
  const mica::i32 key_rows = params.batch * params.sequences.len_new;
  const mica::i32 index = blockIdx.x;
  if (index < key_rows)
    mica::append_row(params, index / params.sequences.len_new, index % params.sequences.len_new);
  else
    mica::rotate_query_row(params, index - key_rows);
}
