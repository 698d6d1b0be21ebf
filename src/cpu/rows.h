// SPDX-License-Identifier: Apache-2.0
// Rows in and out: queries (rotated by their position where there is rotary), keys and values wherever they live, and
// append, which writes new ones into the cache.
#pragma once

#include "core/mask.h"
#include "cpu/engine/vector.h"
#include "cpu/isa/isa.h"
#include "cpu/threads/threads.h"

namespace MICA_NS {

using mica::CpuCall;
using mica::CpuPlan;
using mica::Problem;
using mica::Tensor;

// Turns the pairs of one row (floats) by the angles of a position.
inline void rotate_row(const CpuCall& call, float* row, i64 position) {
  const Problem& p = *call.problem;
  const i64 at = clamp_to<i64>(position, 0, p.rotary_positions - 1);
  const i32 half = p.rotary_dim / 2;
  for (i32 c = 0; c < half; ++c) {
    const float cosine =
        load_as_float(call.x->rotary_cos, at * p.rotary_cos.stride[0] + c * p.rotary_cos.stride[1], p.rotary_cos.dtype);
    const float sine =
        load_as_float(call.x->rotary_sin, at * p.rotary_sin.stride[0] + c * p.rotary_sin.stride[1], p.rotary_sin.dtype);
    float& x = p.rotary_interleaved ? row[2 * c] : row[c];
    float& y = p.rotary_interleaved ? row[2 * c + 1] : row[c + half];
    const float turned_x = x * cosine - y * sine;
    y = x * sine + y * cosine;
    x = turned_x;
  }
}

// The slot of the first appended key, which is also the position of query row 0.
HWY_API i64 append_position(const Sequence& s) { return i64(s.leftpad) + s.append_begin; }

HWY_API i64 query_position(const Problem& p, const Sequence& s, i32 i) {
  return append_position(s) + (is_banded(p) ? i : 0);
}

struct RowPlace {
  i32 b, head, i;
};

// A query row as floats, rotated where there is rotary, and behind it its row of qv, where there is one.
inline void load_query(const CpuCall& call, const Sequence& s, const RowPlace& at, float* row) {
  const Problem& p = *call.problem;
  const auto row_of = [&](const void* base, const Tensor& t) {
    const i64 offset = query_row_offset(s, at.i, t.stride[0], t.stride[1]) + at.head * t.stride[2];
    return static_cast<const char*>(base) + offset * dtype_bytes(p.dtype);
  };
  const char* from = row_of(call.x->q, p.q);
  const i32 dim = i32(p.q.shape[3]);
  if (p.dtype == MICA_FP8_E4M3)
    load_row_e4m3(row, from, descale_at(descale_of(p.q_descale, call.x->q_descale), at.b, at.head / p.group), dim);
  else
    load_row(row, from, p.dtype, dim);
  if (p.rotary_dim > 0) rotate_row(call, row, query_position(p, s, at.i));
  if (p.qv.dtype != MICA_NONE) load_row(row + dim, row_of(call.x->qv, p.qv), p.dtype, p.dim_v);
}

// Rows of k or v of one sequence and head, counted from key j_begin.
struct KeyRows {
  const SequenceTable* table;
  const Sequence* sequence;
  const void* base;
  const Tensor* tensor;
  i32 b, head, j_begin;

  HWY_INLINE const void* operator()(i32 j) const {
    const Tensor& t = *tensor;
    const i64 row = key_row_offset(*table, *sequence, b, j_begin + j, t.stride[0], t.stride[1]);
    return static_cast<const char*>(base) + (row + head * t.stride[2]) * dtype_bytes(t.dtype);
  }

  // Where rows [0, count) begin.
  HWY_INLINE void list(i32 count, const char** rows) const {
    if (table->page_size > 0) {
      for (i32 j = 0; j < count; ++j) rows[j] = static_cast<const char*>((*this)(j));
      return;
    }
    const char* first = static_cast<const char*>((*this)(0));
    const i64 step = tensor->stride[1] * dtype_bytes(tensor->dtype);
    for (i32 j = 0; j < count; ++j) rows[j] = first + j * step;
  }
};

// The factor of key j of sequence b.
HWY_API float key_descale(const CpuCall& call, const Descale& d, const Sequence& s, i32 b, i32 head_k, i32 j) {
  const SequenceTable& t = *call.sequences;
  const i32 slot = call.problem->descale_per_page ? clamp_to(paged_row(t, s, b, j).entry, 0, t.slots_k - 1) : b;
  return descale_at(d, slot, head_k);
}

// Whether keys and values are not multiplied where they lie but as floats of their own: e4m3, and keys that go on with
// their values.
HWY_API bool expands_keys(const Problem& p) { return p.k.dtype == MICA_FP8_E4M3 || p.qv.dtype != MICA_NONE; }

// Rows of keys or values as floats that stand one after another.
struct ExpandedRows {
  float* rows;
  i32 dim;

  HWY_INLINE const void* operator()(i32 j) const { return rows + i64(j) * dim; }

  void fill(const CpuCall& call, const KeyRows& from, const Descale& d, i32 count) const {
    for (i32 j = 0; j < count; ++j)
      load_row_e4m3(rows + i64(j) * dim, from(j),
                    key_descale(call, d, *from.sequence, from.b, from.head, from.j_begin + j), dim);
  }
  // Columns from first_column on, of rows that are no e4m3.
  void fill_columns(const KeyRows& from, i32 first_column, i32 count) const {
    for (i32 j = 0; j < count; ++j)
      load_row(rows + i64(j) * dim + first_column, from(j), from.tensor->dtype, i32(from.tensor->shape[3]));
  }
};

// Keys and values of a tile, expanded.
inline void expand_keys(const CpuCall& call, const KeyRows& k, const KeyRows& v, const ExpandedRows& wide_k,
                        const ExpandedRows& wide_v, i32 count) {
  const Problem& p = *call.problem;
  if (p.qv.dtype != MICA_NONE) {
    wide_k.fill_columns(k, 0, count);
    wide_k.fill_columns(v, i32(p.k.shape[3]), count);
    wide_v.fill_columns(v, 0, count);
    return;
  }
  wide_k.fill(call, k, descale_of(p.k_descale, call.x->k_descale), count);
  wide_v.fill(call, v, descale_of(p.v_descale, call.x->v_descale), count);
}

// dst = src / factor in e4m3.
inline void store_row_e4m3(char* dst, const float* src, float factor, i32 count) {
  for (i32 c = 0; c < count; ++c) dst[c] = char(float_to_e4m3(src[c] / factor));
}

// Rows that are read next, called in while others are multiplied.
struct NextRows {
  const char* const* rows;
  i64 step;   // bytes from a row to the one that is meant
  i32 bytes;  // of a row; 0: none
  HWY_INLINE i32 lines() const { return (bytes + 63) / 64; }
  // kLines: lines(), where it is known, up to 4; -1: it is not.
  template <i32 kLines = -1>
  HWY_INLINE void call_in(i32 j) const {
    if constexpr (kLines < 0) {
      for (i32 n = 0; n < lines(); ++n) __builtin_prefetch(rows[j] + step + 64 * n);
    } else {
      const char* row = rows[j] + step;
      if (kLines > 0) __builtin_prefetch(row);
      if (kLines > 1) __builtin_prefetch(row + 64);
      if (kLines > 2) __builtin_prefetch(row + 128);
      if (kLines > 3) __builtin_prefetch(row + 192);
    }
  }
};

inline void copy_bytes(char* dst, const char* src, i64 bytes) { __builtin_memcpy(dst, src, size_t(bytes)); }

// Writes row t of k_new and v_new of one sequence, all heads. A cache of e4m3 takes them divided by its factors, or,
// where they are e4m3 themselves, as they are.
inline void append_row(const CpuCall& call, i32 b, i32 t) {
  const Problem& p = *call.problem;
  const mica_bindings& x = *call.x;
  const Sequence s = sequence_of(*call.sequences, b);
  const i32 bytes = dtype_bytes(p.dtype), cache_bytes = dtype_bytes(p.k.dtype), dim = i32(p.k.shape[3]);
  const bool quantises = p.k.dtype != p.dtype;
  const Descale k_descale = descale_of(p.k_descale, x.k_descale), v_descale = descale_of(p.v_descale, x.v_descale);
  const i32 j = s.append_begin + t;
  const i64 k_row = key_row_offset(*call.sequences, s, b, j, p.k.stride[0], p.k.stride[1]);
  const i64 v_row = key_row_offset(*call.sequences, s, b, j, p.v.stride[0], p.v.stride[1]);
  float row[MICA_MAX_DIM_QK];
  for (i32 h = 0; h < p.heads_k; ++h) {
    const char* new_k = static_cast<const char*>(x.k_new) +
                        (b * p.k_new.stride[0] + t * p.k_new.stride[1] + h * p.k_new.stride[2]) * bytes;
    const char* new_v = static_cast<const char*>(x.v_new) +
                        (b * p.v_new.stride[0] + t * p.v_new.stride[1] + h * p.v_new.stride[2]) * bytes;
    char* k = static_cast<char*>(x.k) + (k_row + h * p.k.stride[2]) * cache_bytes;
    char* v = static_cast<char*>(x.v) + (v_row + h * p.v.stride[2]) * cache_bytes;
    if (quantises) {
      load_row(row, new_v, p.dtype, p.dim_v);
      store_row_e4m3(v, row, key_descale(call, v_descale, s, b, h, j), p.dim_v);
      load_row(row, new_k, p.dtype, dim);
      if (p.rotary_dim > 0) rotate_row(call, row, append_position(s) + t);
      store_row_e4m3(k, row, key_descale(call, k_descale, s, b, h, j), dim);
      continue;
    }
    copy_bytes(v, new_v, i64(p.dim_v) * bytes);
    if (p.rotary_dim == 0) {
      copy_bytes(k, new_k, i64(dim) * bytes);
    } else {
      load_row(row, new_k, p.dtype, dim);
      rotate_row(call, row, append_position(s) + t);
      store_row_scaled(k, row, 1.0f, p.dtype, dim);
    }
  }
}

inline void append_new_rows(const CpuCall& call) {
  if (call.problem->len_new == 0) return;
  mica::parallel_for(
      call.plan->threads, i64(call.problem->batch) * call.problem->len_new,
      [](void* context, i64 index, i32) {
        const CpuCall& c = *static_cast<const CpuCall*>(context);
        append_row(c, i32(index / c.problem->len_new), i32(index % c.problem->len_new));
      },
      const_cast<CpuCall*>(&call));
}

}  // namespace MICA_NS
