// SPDX-License-Identifier: Apache-2.0
// Tiled forward. A tile is tile_q queries of tile_heads heads that share keys: row r is query r / tile_heads of head
// r % tile_heads, so that a group with few queries still fills a matrix product.
#pragma once

#include "core/schedule.h"
#include "cpu/dropout.h"
#include "cpu/engine.h"
#include "cpu/finish.h"
#include "cpu/rotary.h"
#include "cpu/score_row.h"
#include "cpu/threads.h"

namespace MICA_NS {

// One thread's memory. A null base gives the sizes.
template <class E>
struct ForwardScratch {
  typename E::Element *q, *k, *v, *p;
  float *s, *o, *max, *sum;
  i64 ld_q, ld_s, ld_p, ld_o;
  i64 bytes;

  ForwardScratch(const Problem& problem, const CpuPlan& plan, char* base) {
    using Element = typename E::Element;
    const i32 rows = round_up(plan.tile_q * plan.tile_heads, E::kRows);
    ld_q = leading_dimension(problem.dim_qk, E::kDepth);
    ld_s = leading_dimension(plan.tile_k, E::kCols);
    ld_p = leading_dimension(plan.tile_k, E::kDepth);
    ld_o = leading_dimension(problem.dim_v, E::kCols);
    bytes = 0;
    q = take<Element>(base, rows * ld_q);
    s = take<float>(base, rows * ld_s);
    // Floats: the probabilities take the place of the scores.
    p = sizeof(Element) == sizeof(float) ? reinterpret_cast<Element*>(s) : take<Element>(base, rows * ld_p);
    if (sizeof(Element) == sizeof(float)) ld_p = ld_s;
    k = take<Element>(base, E::packed_b_elements(problem.dim_qk, plan.tile_k));
    v = take<Element>(base, E::packed_b_elements(plan.tile_k, problem.dim_v));
    o = take<float>(base, rows * ld_o);
    max = take<float>(base, rows);
    sum = take<float>(base, rows);
  }

 private:
  template <class T>
  T* take(char* base, i64 count) {
    T* at = reinterpret_cast<T*>(base + bytes);
    bytes += round_up<i64>(count * i64(sizeof(T)), kLineBytes);
    return at;
  }
};

// Where a tile is.
struct ForwardTile {
  i32 b;
  i32 head_begin;  // of tile_heads query heads
  i32 heads;
  i32 q_begin, q_end;  // rows of the sequence's slot
};

template <class E>
class ForwardWorker {
 public:
  ForwardWorker(const CpuCall& call, char* scratch)
      : call_(call), p_(*call.problem), plan_(*call.plan), m_(*call.problem, *call.plan, scratch) {}

  void run(const ForwardTile& tile) {
    tile_ = tile;
    sequence_ = sequence_of(call_.sequences, tile.b);
    scoring_ = scoring_of(call_, sequence_, tile.b);
    rows_ = (min_of(tile.q_end, sequence_.len_q) - tile.q_begin) * tile.heads;
    rows_ = max_of(rows_, 0);
    const i32 all_rows = (tile.q_end - tile.q_begin) * tile.heads;
    for (i32 r = 0; r < all_rows; ++r) {
      m_.max[r] = -infinity();
      m_.sum[r] = 0;
    }
    TileRange tiles = {};
    if (rows_ > 0) tiles = key_tiles(scoring_.band, query(0), query(rows_ - 1) + 1, plan_.tile_k);
    if (tiles.begin < tiles.end) {
      load_queries();
      E::begin();
      for (i32 t = tiles.begin; t < tiles.end; ++t)
        attend(t * plan_.tile_k, t == tiles.begin, t < tiles.full_begin || t >= tiles.full_end);
      E::end();
    }
    const Range keys = {tiles.begin * plan_.tile_k, min_of(tiles.end * plan_.tile_k, sequence_.len_k)};
    for (i32 r = 0; r < all_rows; ++r) {
      const RowPlace at = {tile_.b, head(r), query(r)};
      finish_row(call_, sequence_, at, SoftmaxState<ScalarMath>{m_.max[r], m_.sum[r]}, m_.o + r * m_.ld_o,
                 r < rows_ ? keys : Range{0, 0});
    }
  }

 private:
  using Element = typename E::Element;

  i32 query(i32 r) const { return tile_.q_begin + r / tile_.heads; }
  i32 head(i32 r) const { return tile_.head_begin + r % tile_.heads; }

  void load_queries() {
    const i32 bytes = dtype_bytes(p_.dtype);
    float row[kMaxDim];
    for (i32 r = 0; r < rows_; ++r) {
      const i64 offset =
          query_row_offset(sequence_, query(r), p_.q.stride[0], p_.q.stride[1]) + head(r) * p_.q.stride[2];
      load_row(row, static_cast<const char*>(call_.x->q) + offset * bytes, p_.dtype, p_.dim_qk);
      if (p_.rotary_dim > 0) rotate_row(call_, row, query_position(p_, sequence_, query(r)));
      pack_a_row(m_.q + r * m_.ld_q, m_.ld_q, row, p_.dim_qk);
    }
  }

  // One tile of keys: S = Q K^T, scores, online softmax, O = O * factor + P V.
  void attend(i32 j_begin, bool is_first, bool test_band) {
    const i32 keys = min_of(plan_.tile_k, sequence_.len_k - j_begin);
    const i32 bytes = dtype_bytes(p_.dtype);
    const i32 head_k = tile_.head_begin / p_.group;
    const auto row_at = [&](const void* base, const Tensor& t) {
      return [this, base, &t, j_begin, bytes, head_k](i32 j) -> const void* {
        const i64 row = key_row_offset(call_.sequences, sequence_, tile_.b, j_begin + j, t.stride[0], t.stride[1]);
        return static_cast<const char*>(base) + (row + head_k * t.stride[2]) * bytes;
      };
    };
    E::pack_b_transposed(m_.k, row_at(call_.x->k, p_.k), p_.dtype, p_.dim_qk, keys);
    E::pack_b(m_.v, row_at(call_.x->v, p_.v), p_.dtype, keys, p_.dim_v);
    E::multiply(m_.q, m_.ld_q, m_.k, m_.s, m_.ld_s, rows_, keys, p_.dim_qk, false);
    for (i32 r = 0; r < rows_; ++r) softmax_row(r, j_begin, keys, is_first, test_band);
    E::multiply(m_.p, m_.ld_p, m_.v, m_.o, m_.ld_o, rows_, p_.dim_v, keys, !is_first);
  }

  void softmax_row(i32 r, i32 j_begin, i32 keys, bool is_first, bool test_band) {
    float* s = m_.s + r * m_.ld_s;
    const i32 count = round_up(keys, kLanes);
    score_row(scoring_, s, head(r), query(r), j_begin, count, test_band || count != keys);
    if (p_.probs.dtype != MICA_NONE) keep_scores(call_, RowPlace{tile_.b, head(r), query(r)}, s, j_begin, keys);
    Vector max = set(-infinity());
    for (i32 c = 0; c < count; c += kLanes) max = hn::Max(max, load(s + c));
    SoftmaxState<ScalarMath> state = {m_.max[r], m_.sum[r]};
    const float factor = absorb<ScalarMath>(state, reduce_max(max));
    const Vector reference = set(reference_of<ScalarMath>(state.max));
    Vector sum = set(0);
    for (i32 c = 0; c < count; c += kLanes) {
      const Vector e = VectorMath::exp2(hn::Sub(load(s + c), reference));
      sum = hn::Add(sum, e);
      store(e, s + c);
    }
    state.sum += reduce_sum(sum);
    m_.max[r] = state.max;
    m_.sum[r] = state.sum;
    if (p_.dropout > 0)
      drop_row(call_.philox, keep_threshold(p_.dropout), u32(tile_.b * p_.heads_q + head(r)), query(r), j_begin, s,
               count);
    pack_a_row(m_.p + r * m_.ld_p, m_.ld_p, s, keys);
    if (!is_first && factor != 1.0f) {
      float* o = m_.o + r * m_.ld_o;
      for (i32 c = 0; c < m_.ld_o; c += kLanes) store(hn::Mul(load(o + c), set(factor)), o + c);
    }
  }

  const CpuCall& call_;
  const Problem& p_;
  const CpuPlan& plan_;
  ForwardScratch<E> m_;
  ForwardTile tile_;
  Sequence sequence_;
  Scoring scoring_;
  i32 rows_;
};

HWY_API i32 head_chunks(const Problem& p, const CpuPlan& plan) { return ceil_div(p.group, plan.tile_heads); }

// Query tiles, over all sequences.
HWY_API i64 num_query_tiles(const Problem& p, i32 tile_q) {
  if (p.vectors & MICA_CU_SEQLENS_Q) return packed_tile_count(p.total_q, p.batch, tile_q);
  return i64(p.batch) * ceil_div(p.max_len_q, tile_q);
}

template <class E>
void plan_forward(const Problem& p, CpuPlan& plan, i32& num_splits) {
  num_splits = 1;
  constexpr i32 kTileRows = 64;
  plan.tile_heads = min_of(p.group, kTileRows);
  plan.tile_q = max_of(1, kTileRows / plan.tile_heads);
  plan.tile_k = 64;
  plan.scratch_bytes = ForwardScratch<E>(p, plan, nullptr).bytes;
  plan.scratch = mica::Region{0, plan.scratch_bytes * plan.num_threads};
  plan.workspace_bytes = plan.scratch.bytes;
}

template <class E>
void execute_forward(const CpuCall& call) {
  append_new_rows(call);
  if (call.problem->probs.dtype != MICA_NONE) clear_probs(call);
  const i64 head_blocks = i64(call.problem->heads_k) * head_chunks(*call.problem, *call.plan);
  const i64 items = num_query_tiles(*call.problem, call.plan->tile_q) * head_blocks;
  mica::parallel_for(
      call.plan->num_threads, items,
      [](void* context, i64 index, i32 thread) {
        const CpuCall& c = *static_cast<const CpuCall*>(context);
        const Problem& p = *c.problem;
        const CpuPlan& plan = *c.plan;
        const i32 chunks = head_chunks(p, plan);
        const i64 tiles = num_query_tiles(p, plan.tile_q);
        const i64 head_blocks = i64(p.heads_k) * chunks;
        const i64 t = tiles - 1 - index / head_blocks;
        const i32 block = i32(index % head_blocks);
        const i32 in_group = block % chunks * plan.tile_heads;
        ForwardTile tile;
        QueryTile q;
        if (p.vectors & MICA_CU_SEQLENS_Q) {
          q = find_packed_tile(c.sequences.cu_seqlens_q, p.batch, p.total_q, plan.tile_q, i32(t));
        } else {
          q.batch = i32(t % p.batch);
          q.tile = i32(t / p.batch);
        }
        tile.b = q.batch;
        tile.head_begin = block / chunks * p.group + in_group;
        tile.heads = min_of(plan.tile_heads, p.group - in_group);
        tile.q_begin = q.tile * plan.tile_q;
        tile.q_end = min_of(tile.q_begin + plan.tile_q, sequence_of(c.sequences, q.batch).slot_len_q);
        if (tile.q_begin >= tile.q_end) return;
        ForwardWorker<E> worker(c, c.workspace + plan.scratch.offset + thread * plan.scratch_bytes);
        worker.run(tile);
      },
      const_cast<CpuCall*>(&call));
}

}  // namespace MICA_NS
