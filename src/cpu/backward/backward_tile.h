// SPDX-License-Identifier: Apache-2.0
// One pair of tiles in backward: from the products Q K^T and dO V^T to P and dS. The main pass and the pass for dBias
// share it.
#pragma once

#include <string.h>

#include "cpu/backward/backward_plan.h"
#include "cpu/backward/backward_rows.h"
#include "cpu/dropout.h"
#include "cpu/score_row.h"

namespace MICA_NS {

// Rows [row_begin, row_end) of a head, and what the row passes found out about them.
struct QueryRows {
  i32 head, begin, end;
  const float *delta, *reference;  // of row `begin`
};

// Keys [begin, end), of which no row of the query tile at hand sees those from seen_end on. test_band: some pair may be
// hidden by the band.
struct KeyTile {
  i32 begin, end, seen_end;
  bool test_band;
};

// The key tile t of a band and what rows [row_begin, row_end), which `tiles` is of, see of it.
HWY_INLINE KeyTile key_tile(const Band& band, i32 row_begin, i32 row_end, const TileRange& tiles, i32 t, i32 tile_k) {
  const i32 begin = t * tile_k, end = min_of(begin + tile_k, band.len_k);
  return KeyTile{begin, end, clamp_to(keys_of_any_row(band, row_begin, row_end).end, begin, end),
                 t < tiles.full_begin || t >= tiles.full_end};
}

// dst (cols x rows, as A: zero up to padded_rows) = the transpose of src (rows x cols), in blocks of kBlock x kBlock.
// Both have room for whole blocks. A block is transposed by interleaving its first half with its second, log2(kBlock)
// times.
template <class Element>
inline void transpose_elements(Element* dst, i64 ld_dst, const Element* src, i64 ld_src, i32 rows, i32 padded_rows,
                               i32 cols) {
  constexpr i32 kBlock = 16 / sizeof(Element);
  const hn::FixedTag<Element, kBlock> tag;
  using Line = hn::Vec<decltype(tag)>;
  for (i32 row = 0; row < padded_rows; row += kBlock) {
    i32 col = 0;
    if constexpr (kIsFloat<Element> && kLanes > kBlock) {  // as many columns as a vector has
      const auto line = [&](i32 r, i32 c) { return row + r < rows ? load(src + (row + r) * ld_src + c) : set(0); };
      for (; col + kLanes <= cols; col += kLanes)
        store_transposed(FloatTag(), line(0, col), line(1, col), line(2, col), line(3, col), dst + col * ld_dst + row,
                         ld_dst);
    }
    for (; col < cols; col += kBlock) {
      Line x[kBlock], y[kBlock];
#pragma GCC unroll 8
      for (i32 r = 0; r < kBlock; ++r)
        x[r] = row + r < rows ? hn::LoadU(tag, src + (row + r) * ld_src + col) : hn::Zero(tag);
#pragma GCC unroll 3
      for (i32 round = kBlock; round > 1; round /= 2) {
#pragma GCC unroll 4
        for (i32 r = 0; r < kBlock / 2; ++r) {
          y[2 * r] = hn::InterleaveLower(tag, x[r], x[r + kBlock / 2]);
          y[2 * r + 1] = hn::InterleaveUpper(tag, x[r], x[r + kBlock / 2]);
        }
#pragma GCC unroll 8
        for (i32 r = 0; r < kBlock; ++r) x[r] = y[r];
      }
#pragma GCC unroll 8
      for (i32 r = 0; r < kBlock; ++r) hn::StoreU(x[r], tag, dst + (col + r) * ld_dst + row);
    }
  }
}

template <class E>
class BackwardTile {
 public:
  using Element = typename E::Element;
  static constexpr i32 kStripRows = 32 / E::kRows * E::kRows;

  BackwardTile(const CpuCall& call, const BackwardScratch<E>& scratch) : call_(call), p_(*call.problem), m_(scratch) {}

  void enter_sequence(const Sequence& s, i32 b) {
    sequence_ = s;
    b_ = b;
    scoring_ = scoring_of(call_, s, b);
  }

  QueryRows query_rows(i32 head, i32 begin, i32 end) const {
    const BackwardPlan& plan = call_.plan->backward;
    const i64 first = head * plan.rows + padded_row_begin(p_, sequence_, b_, plan.tile_q) + begin;
    return QueryRows{head, begin, end, reinterpret_cast<const float*>(call_.workspace + plan.delta.offset) + first,
                     reinterpret_cast<const float*>(call_.workspace + plan.reference.offset) + first};
  }

  // Q and dO of a query tile as A.
  void load_queries(const QueryRows& rows) {
    const auto row_at = [&](const void* base, const Tensor& t) {
      return [this, base, &t, &rows](i32 r) -> const void* {
        return query_row(base, t, sequence_, rows.head, rows.begin + r);
      };
    };
    pack_a(m_.q, m_.ld_q, row_at(call_.x->q, p_.q), p_.q.dtype, rows.end - rows.begin, p_.dim_qk);
    pack_a(m_.d_o, m_.ld_d_o, row_at(call_.x->d_o, p_.d_o), p_.d_o.dtype, rows.end - rows.begin, p_.dim_v);
  }

  // K^T and V^T of a key tile as B.
  auto key_row_at(const void* base, const Tensor& t, i32 head_k, i32 begin) const {
    return [this, base, &t, head_k, begin](i32 j) -> const void* {
      const i64 row = key_row_offset(*call_.sequences, sequence_, b_, begin + j, t.stride[0], t.stride[1]);
      return static_cast<const char*>(base) + (row + head_k * t.stride[2]) * dtype_bytes(t.dtype);
    };
  }
  void load_keys(Element* k_transposed, Element* v_transposed, i32 head_k, const KeyTile& keys) {
    const i32 count = keys.end - keys.begin;
    E::pack_b_transposed(k_transposed, key_row_at(call_.x->k, p_.k, head_k, keys.begin), p_.dtype, p_.dim_qk, count);
    E::pack_b_transposed(v_transposed, key_row_at(call_.x->v, p_.v, head_k, keys.begin), p_.dtype, p_.dim_v, count);
  }

  // s: P as dropped and scaled by dropout; d_p: dS, times the derivative of the score unless that is not wanted; d_s:
  // the same as A. They have the keys up to seen_end, then zeros up to a multiple of kLanes; d_s up to the tile's end.
  void differentiate(const QueryRows& rows, const KeyTile& keys, const Element* k_transposed,
                     const Element* v_transposed, bool times_derivative) {
    const i32 num_rows = rows.end - rows.begin, num_keys = keys.seen_end - keys.begin;
    const i32 packed_keys = round_up(keys.end - keys.begin, E::kDepth);
    const bool is_plain = scoring_.is_plain && p_.dropout == 0 && times_derivative;
    // In strips, so that the scores of a strip are still in the first-level cache when they are looked at.
    for (i32 strip = 0; strip < num_rows; strip += kStripRows) {
      const i32 end = min_of(strip + kStripRows, num_rows);
      E::multiply(m_.q + strip * m_.ld_q, m_.ld_q, k_transposed, m_.s + strip * m_.ld_s, m_.ld_s, end - strip, num_keys,
                  p_.dim_qk, false);
      E::multiply(m_.d_o + strip * m_.ld_d_o, m_.ld_d_o, v_transposed, m_.d_p + strip * m_.ld_s, m_.ld_s, end - strip,
                  num_keys, p_.dim_v, false);
      for (i32 r = strip; r < end; ++r) {
        if (is_plain)
          plain_row(rows, keys, r);
        else
          row(rows, keys, r, times_derivative);
        for (i32 c = round_up(num_keys, kLanes); c < packed_keys; ++c) m_.d_s[r * m_.ld_d_s + c] = 0;
      }
    }
  }

 private:
  // Scale alone, no dropout.
  void plain_row(const QueryRows& rows, const KeyTile& keys, i32 r) {
    const i32 count = round_up(keys.seen_end - keys.begin, kLanes);
    Range visible = {0, count};
    if (keys.test_band || keys.seen_end - keys.begin != count) {
      const Range range = keys_of_row(scoring_.band, rows.begin + r);
      visible.begin = clamp_to(range.begin - keys.begin, 0, count);
      visible.end = clamp_to(range.end - keys.begin, visible.begin, count);
    }
    float* s = m_.s + r * m_.ld_s;
    float* d_p = m_.d_p + r * m_.ld_s;
    Element* d_s = m_.d_s + r * m_.ld_d_s;
    const Vector reference = set(-rows.reference[r]), delta = set(rows.delta[r]);
    const Vector scale = set(scoring_.score.scale), scale_log2 = set(scoring_.score.scale_log2);
    const auto element = [&](i32 c) {
      const Vector p = VectorMath::exp2(hn::MulAdd(load(s + c), scale_log2, reference));
      const Vector d = hn::Mul(hn::Mul(p, hn::Sub(load(d_p + c), delta)), scale);
      store(p, s + c);
      store(d, d_p + c);
      if (!kIsFloat<Element>) store_elements(d_s + c, d);
    };
    const auto clear = [&](i32 begin, i32 end) {
      for (i32 c = begin; c < end; ++c) {
        s[c] = d_p[c] = 0;
        if (!kIsFloat<Element>) d_s[c] = 0;
      }
    };
    const i32 begin = visible.begin / kLanes * kLanes, end = round_up(visible.end, kLanes);
    for (i32 c = begin; c < end; c += kLanes) element(c);
    clear(0, visible.begin);
    clear(visible.end, count);
  }

  // Every option.
  void row(const QueryRows& rows, const KeyTile& keys, i32 r, bool times_derivative) {
    const i32 count = round_up(keys.seen_end - keys.begin, kLanes);
    float* s = m_.s + r * m_.ld_s;
    float* d_p = m_.d_p + r * m_.ld_s;
    Element* d_s = m_.d_s + r * m_.ld_d_s;
    float product[kMaxTileK], factor[kMaxTileK];
    memcpy(product, s, sizeof(float) * u32(count));
    score_row(scoring_, s, rows.head, rows.begin + r, keys.begin, count,
              keys.test_band || keys.seen_end - keys.begin != count);
    const bool dropout = p_.dropout > 0;
    if (dropout) {
      for (i32 c = 0; c < count; c += kLanes) store(set(1 / (1 - p_.dropout)), factor + c);
      drop_row(call_.philox, p_, b_, rows.head, rows.begin + r, keys.begin, factor, count);
    }
    const Vector reference = set(rows.reference[r]), delta = set(rows.delta[r]);
    for (i32 c = 0; c < count; c += kLanes) {
      Vector p = VectorMath::exp2(hn::Sub(load(s + c), reference));
      Vector d = load(d_p + c);
      if (dropout) d = hn::Mul(d, load(factor + c));
      d = hn::Mul(p, hn::Sub(d, delta));
      if (times_derivative) d = hn::Mul(d, score_derivative<VectorMath>(scoring_.score, load(product + c)));
      if (dropout) p = hn::Mul(p, load(factor + c));
      store(p, s + c);
      store(d, d_p + c);
      if (!kIsFloat<Element>) store_elements(d_s + c, d);
    }
  }

  const CpuCall& call_;
  const Problem& p_;
  const BackwardScratch<E>& m_;
  Sequence sequence_;
  Scoring scoring_;
  i32 b_;
};

}  // namespace MICA_NS
