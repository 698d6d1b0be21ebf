// SPDX-License-Identifier: Apache-2.0
// Tiled forward: one tile of query rows against a range of keys.
#pragma once

#include "cpu/forward/finish.h"
#include "cpu/forward/forward_plan.h"
#include "cpu/forward/softmax_row.h"
#include "cpu/rows.h"

namespace MICA_NS {

// One thread's memory. A null base gives the sizes.
template <class E>
struct ForwardScratch {
  using Element = typename E::Element;
  Element *q, *k, *v, *p;
  float *s, *o;
  float *k_rows, *v_rows;  // of a tile of keys that are expanded
  SoftmaxState<ScalarMath>* state;
  i64 ld_q, ld_s, ld_p, ld_o;
  i64 bytes = 0;

  ForwardScratch(const Problem& problem, const CpuPlan& plan, char* base) {
    const i32 rows = round_up(plan.tile_q * plan.tile_heads, E::kRows);
    ld_q = leading_dimension(problem.dim_qk, E::kDepth);
    ld_s = leading_dimension(plan.tile_k, E::kCols);
    ld_p = leading_dimension(plan.tile_k, E::kDepth);
    ld_o = leading_dimension(problem.dim_v, E::kCols);
    q = take<Element>(base, rows * ld_q);
    s = take<float>(base, kStripRows<E> * ld_s);
    // Floats: the probabilities take the place of the products.
    constexpr bool kInPlace = kIsFloat<Element>;
    if (kInPlace) ld_p = ld_s;
    p = kInPlace ? reinterpret_cast<Element*>(s) : take<Element>(base, kStripRows<E> * ld_p);
    k = take<Element>(base, E::packed_b_elements(problem.dim_qk, plan.tile_k));
    v = take<Element>(base, E::packed_b_elements(plan.tile_k, problem.dim_v));
    o = take<float>(base, rows * ld_o);
    state = take<SoftmaxState<ScalarMath>>(base, rows);
    const bool expands = expands_keys(problem);
    k_rows = take<float>(base, expands ? i64(plan.tile_k) * problem.dim_qk : 0);
    v_rows = take<float>(base, expands ? i64(plan.tile_k) * problem.dim_v : 0);
  }

 private:
  template <class T>
  T* take(char* base, i64 count) {
    T* at = base ? reinterpret_cast<T*>(base + bytes) : nullptr;  // null: only the size is asked for
    bytes += round_up<i64>(count * i64(sizeof(T)), kLineBytes);
    return at;
  }
};

template <class E>
class ForwardWorker {
 public:
  ForwardWorker(const CpuCall& call, const ForwardTile& tile, const Sequence& sequence, char* scratch)
      : call_(call),
        p_(*call.problem),
        plan_(*call.plan),
        tile_(tile),
        sequence_(sequence),
        scoring_(scoring_of(call, sequence, tile.b)),
        rows_((min_of(tile.q_end, sequence.len_q) - tile.q_begin) * tile.heads),
        m_(p_, plan_, scratch) {}

  // The keys of tiles [key_tiles.begin, key_tiles.end), of which none is needless.
  void run(Range key_tiles) {
    load_queries();
    for (i32 r = 0; r < rows_; ++r) m_.state[r] = empty_state<ScalarMath>();
    __builtin_memset(m_.o, 0, sizeof(float) * size_t(rows_ * m_.ld_o));
    E::begin();
    for (i32 t = key_tiles.begin; t < key_tiles.end; ++t) attend(t * plan_.tile_k);
    E::end();
  }

  const float* accumulator(i32 r) const { return m_.o + r * m_.ld_o; }
  SoftmaxState<ScalarMath> state(i32 r) const { return m_.state[r]; }

 private:
  using Element = typename E::Element;

  i32 query(i32 r) const { return tile_.q_begin + r / tile_.heads; }
  i32 head(i32 r) const { return tile_.head_begin + r % tile_.heads; }

  void load_queries() {
    for (i32 r = 0; r < rows_; ++r) {
      float row[kMaxDim];
      load_query(call_, sequence_, RowPlace{tile_.b, head(r), query(r)}, row);
      pack_a_row(m_.q + r * m_.ld_q, m_.ld_q, row, p_.dim_qk);
    }
  }

  // One tile of keys. A strip of rows goes through S = Q K^T, online softmax and O = O * factor + P V while it is hot.
  void attend(i32 j_begin) {
    const i32 keys = min_of(plan_.tile_k, sequence_.len_k - j_begin);
    const i32 head_k = tile_.head_begin / p_.group;
    const KeyRows k = {call_.sequences, &sequence_, call_.x->k, &p_.k, tile_.b, head_k, j_begin};
    const KeyRows v = {call_.sequences, &sequence_, call_.x->v, &p_.v, tile_.b, head_k, j_begin};
    if (expands_keys(p_)) {
      const ExpandedRows wide_k = {m_.k_rows, p_.dim_qk}, wide_v = {m_.v_rows, p_.dim_v};
      expand_keys(call_, k, v, wide_k, wide_v, keys);
      E::pack_b_transposed(m_.k, wide_k, MICA_FP32, p_.dim_qk, keys);
      E::pack_b(m_.v, wide_v, MICA_FP32, keys, p_.dim_v);
    } else {
      E::pack_b_transposed(m_.k, k, p_.dtype, p_.dim_qk, keys);
      E::pack_b(m_.v, v, p_.dtype, keys, p_.dim_v);
    }
    for (i32 begin = 0; begin < rows_; begin += kStripRows<E>) {
      const i32 end = min_of(begin + kStripRows<E>, rows_);
      const Range any = keys_of_any_row(scoring_.band, query(begin), query(end - 1) + 1);
      if (any.begin >= j_begin + keys || any.end <= j_begin) continue;
      const Range every = keys_of_every_row(scoring_.band, query(begin), query(end - 1) + 1);
      TileKeys seen;
      seen.begin = j_begin;
      seen.count = min_of(keys, any.end - j_begin);  // keys past the diagonal need no product
      seen.test_band = every.begin > j_begin || every.end < j_begin + seen.count;
      attend_strip(begin, end - begin, seen, keys);
    }
  }

  void attend_strip(i32 row_begin, i32 rows, const TileKeys& keys, i32 packed_keys) {
    E::multiply(m_.q + row_begin * m_.ld_q, m_.ld_q, m_.k, m_.s, m_.ld_s, rows, keys.count, p_.dim_qk, false);
    const i64 ld = round_up(keys.count, E::kDepth);
    for (i32 r = 0; r < rows; ++r) {
      const RowPlace at = {tile_.b, head(row_begin + r), query(row_begin + r)};
      const float factor =
          softmax_row(call_, scoring_, at, keys, m_.s + r * m_.ld_s, m_.state[row_begin + r], m_.p + r * m_.ld_p, ld);
      if (factor != 1.0f) scale_row(m_.o + (row_begin + r) * m_.ld_o, factor, m_.ld_o);
    }
    E::multiply(m_.p, m_.ld_p, m_.v, m_.o + row_begin * m_.ld_o, m_.ld_o, rows, p_.dim_v, keys.count, true,
                packed_keys);
  }

  const CpuCall& call_;
  const Problem& p_;
  const CpuPlan& plan_;
  const ForwardTile& tile_;
  const Sequence& sequence_;
  Scoring scoring_;
  i32 rows_;
  ForwardScratch<E> m_;
};

}  // namespace MICA_NS
