// SPDX-License-Identifier: Apache-2.0
// Tiled backward: five products for each pair of tiles. dK and dV are accumulated transposed, so that P and dS serve as
// they lie: dV^T += dO^T P, dK^T += Q^T dS, dQ += dS K.
#pragma once

#include "cpu/backward/backward_bias.h"
#include "cpu/backward/backward_plan.h"
#include "cpu/backward/backward_rows.h"
#include "cpu/backward/backward_tile.h"
#include "cpu/threads/threads.h"

namespace MICA_NS {

template <class E>
class BackwardWorker {
 public:
  using Element = typename E::Element;

  BackwardWorker(const CpuCall& call, char* scratch)
      : call_(call), p_(*call.problem), plan_(call.plan->backward), m_(p_, plan_, scratch), tile_(call, m_) {}

  // One chunk of the keys of one key head.
  void run(i32 b, i32 head_k, i32 chunk) {
    b_ = b;
    head_k_ = head_k;
    sequence_ = sequence_of(*call_.sequences, b);
    band_ = band_of(p_, sequence_.len_q, sequence_.len_k);
    tile_.enter_sequence(sequence_, b);
    const Range tiles = chunk_tiles(plan_, sequence_, chunk);
    d_q_ = reinterpret_cast<float*>(call_.workspace + plan_.dq.offset) + chunk * plan_.rows * p_.heads_q * plan_.ld_dq;
    if (plan_.own_dq_rows > 0) d_q_ = m_.d_q;
    if (p_.dq.dtype != MICA_NONE) clear_dq(tiles);
    E::begin();
    for (i32 t = tiles.begin; t < tiles.end; t += plan_.panel_tiles)
      panel(Range{t, min_of(t + plan_.panel_tiles, tiles.end)});
    E::end();
    if (chunk == 0) clear_keys(-sequence_.leftpad, 0);
    if (chunk == plan_.num_chunks - 1) clear_keys(sequence_.len_k, sequence_.slot_len_k - sequence_.leftpad);
  }

  // The sums of dQ of a query head of the last run, where they are this worker's own; else null.
  const float* own_dq(i32 head) const { return plan_.own_dq_rows > 0 ? dq_row(head, 0) : nullptr; }

 private:
  float* dq_row(i32 head, i32 i) const {
    if (plan_.own_dq_rows > 0) return d_q_ + (head % p_.group * plan_.own_dq_rows + i) * plan_.ld_dq;
    return d_q_ + (head * plan_.rows + padded_row_begin(p_, sequence_, b_, plan_.tile_q) + i) * plan_.ld_dq;
  }
  i32 key_end(i32 tile_end) const { return min_of(tile_end * plan_.tile_k, sequence_.len_k); }

  void clear_dq(Range tiles) {
    const Range rows = rows_of_keys(band_, tiles.begin * plan_.tile_k, key_end(tiles.end));
    if (rows.begin >= rows.end) return;
    const i32 begin = rows.begin / plan_.tile_q * plan_.tile_q,
              end = min_of(round_up(rows.end, plan_.tile_q), sequence_.len_q);
    for (i32 h = 0; h < p_.group; ++h)
      memset(dq_row(head_k_ * p_.group + h, begin), 0, size_t(end - begin) * size_t(plan_.ld_dq) * sizeof(float));
  }

  // Rows of dK and dV that hold no key of the sequence, counted as its keys are.
  void clear_keys(i32 begin, i32 end) {
    for (i32 j = begin; j < end; ++j) {
      if (p_.dk.dtype != MICA_NONE)
        memset(key_row(call_.x->dk, p_.dk, j), 0, size_t(p_.dim_qk) * size_t(dtype_bytes(p_.dk.dtype)));
      if (p_.dv.dtype != MICA_NONE)
        memset(key_row(call_.x->dv, p_.dv, j), 0, size_t(p_.dim_v) * size_t(dtype_bytes(p_.dv.dtype)));
    }
  }
  char* key_row(void* base, const Tensor& t, i32 j) const {
    const i64 row = key_row_offset(*call_.sequences, sequence_, b_, j, t.stride[0], t.stride[1]);
    return static_cast<char*>(base) + (row + head_k_ * t.stride[2]) * dtype_bytes(t.dtype);
  }

  void panel(Range tiles) {
    const i32 begin = tiles.begin * plan_.tile_k, end = key_end(tiles.end);
    for (i32 t = tiles.begin; t < tiles.end; ++t) {
      const i32 n = t - tiles.begin;
      const KeyTile keys = {t * plan_.tile_k, key_end(t + 1), key_end(t + 1), true};
      tile_.load_keys(k_transposed(n), v_transposed(n), head_k_, keys);
      if (p_.dq.dtype != MICA_NONE)
        E::pack_b(k(n), tile_.key_row_at(call_.x->k, p_.k, head_k_, keys.begin), p_.dtype, keys.end - keys.begin,
                  p_.dim_qk);
    }
    memset(m_.d_k, 0, size_t(round_up(p_.dim_qk, E::kRows)) * size_t(m_.ld_panel) * sizeof(float));
    memset(m_.d_v, 0, size_t(round_up(p_.dim_v, E::kRows)) * size_t(m_.ld_panel) * sizeof(float));
    const Range rows = rows_of_keys(band_, begin, end);
    for (i32 h = 0; h < p_.group; ++h)
      for (i32 i = rows.begin / plan_.tile_q * plan_.tile_q; i < rows.end; i += plan_.tile_q)
        query_tile(tile_.query_rows(head_k_ * p_.group + h, i, min_of(i + plan_.tile_q, sequence_.len_q)), tiles);
    if (p_.dk.dtype != MICA_NONE) store_transposed(call_.x->dk, p_.dk, m_.d_k, p_.dim_qk, begin, end);
    if (p_.dv.dtype != MICA_NONE) store_transposed(call_.x->dv, p_.dv, m_.d_v, p_.dim_v, begin, end);
  }

  void query_tile(const QueryRows& rows, Range tiles) {
    const TileRange seen = key_tiles(band_, rows.begin, rows.end, plan_.tile_k);
    const i32 begin = max_of(seen.begin, tiles.begin), end = min_of(seen.end, tiles.end);
    if (begin >= end) return;
    const i32 num_rows = rows.end - rows.begin;
    tile_.load_queries(rows);
    const i32 padded_rows = round_up(num_rows, E::kDepth);
    if (p_.dk.dtype != MICA_NONE)
      transpose_elements(m_.q_transposed, m_.ld_transposed, m_.q, m_.ld_q, num_rows, padded_rows, p_.dim_qk);
    if (p_.dv.dtype != MICA_NONE)
      transpose_elements(m_.d_o_transposed, m_.ld_transposed, m_.d_o, m_.ld_d_o, num_rows, padded_rows, p_.dim_v);
    for (i32 t = begin; t < end; ++t)
      pair(rows, key_tile(band_, rows.begin, rows.end, seen, t, plan_.tile_k), t - tiles.begin);
  }

  void pair(const QueryRows& rows, const KeyTile& keys, i32 n) {
    const i32 num_rows = rows.end - rows.begin, num_keys = keys.seen_end - keys.begin;
    const auto scratch_row = [&](const float* base) {
      return [this, base](i32 r) -> const void* { return base + r * m_.ld_s; };
    };
    tile_.differentiate(rows, keys, k_transposed(n), v_transposed(n), true);
    if (p_.dv.dtype != MICA_NONE) {
      E::pack_b(m_.p_packed, scratch_row(m_.s), MICA_FP32, num_rows, num_keys);
      E::multiply(m_.d_o_transposed, m_.ld_transposed, m_.p_packed, m_.d_v + n * plan_.tile_k, m_.ld_panel, p_.dim_v,
                  num_keys, num_rows, true);
    }
    if (p_.dk.dtype != MICA_NONE) {
      E::pack_b(m_.d_s_packed, scratch_row(m_.d_p), MICA_FP32, num_rows, num_keys);
      E::multiply(m_.q_transposed, m_.ld_transposed, m_.d_s_packed, m_.d_k + n * plan_.tile_k, m_.ld_panel, p_.dim_qk,
                  num_keys, num_rows, true);
    }
    if (p_.dq.dtype != MICA_NONE)
      E::multiply(m_.d_s, m_.ld_d_s, k(n), dq_row(rows.head, rows.begin), plan_.ld_dq, num_rows, p_.dim_qk,
                  keys.end - keys.begin, true);
  }

  // Rows [begin, end) of a gradient from its transposed accumulator (dim, panel).
  void store_transposed(void* base, const Tensor& t, const float* accumulator, i32 dim, i32 begin, i32 end) {
    constexpr i32 kKeys = kLanes;  // at once
    float rows[kKeys * kMaxDim];
    const i32 ld = round_up(dim, 4);
    for (i32 j = begin; j < end; j += kKeys) {
      transpose_elements(rows, ld, accumulator + j - begin, m_.ld_panel, dim, ld, kKeys);
      for (i32 n = 0; n < min_of(kKeys, end - j); ++n)
        store_row_scaled(key_row(base, t, j + n), rows + n * ld, 1, t.dtype, dim);
    }
  }

  Element* k_transposed(i32 n) const { return m_.k_transposed + n * m_.k_transposed_elements; }
  Element* k(i32 n) const { return m_.k + n * m_.k_elements; }
  Element* v_transposed(i32 n) const { return m_.v_transposed + n * m_.v_transposed_elements; }

  const CpuCall& call_;
  const Problem& p_;
  const BackwardPlan& plan_;
  const BackwardScratch<E> m_;
  BackwardTile<E> tile_;
  Sequence sequence_;
  Band band_;
  i32 b_, head_k_;
  float* d_q_;
};

HWY_INLINE char* scratch_of(const CpuCall& call, i32 thread) {
  return call.workspace + call.plan->scratch.offset + thread * call.plan->scratch_bytes;
}

// One task: the keys of a chunk of one key head.
template <class E>
void differentiate_chunk(const CpuCall& call, i64 index, i32 thread) {
  const i64 heads = i64(call.problem->batch) * call.problem->heads_k;
  BackwardWorker<E> worker(call, scratch_of(call, thread));
  // Causal: the first chunks are seen by the most queries, so they come first.
  worker.run(i32(index % heads / call.problem->heads_k), i32(index % call.problem->heads_k), i32(index / heads));
}

// Where keys are not cut into chunks a task has all there is to do for the query heads of its key head: what goes
// before it and what comes after need not wait for other tasks.
template <class E>
void differentiate_heads(const CpuCall& call, i64 index, i32 thread) {
  const Problem& p = *call.problem;
  const i32 b = i32(index / p.heads_k), head_k = i32(index % p.heads_k);
  const i64 begin = first_row_task(p, b, head_k), end = begin + p.group * BackwardPlan::kRowParts;
  for (i64 task = begin; task < end; ++task) prepare_rows(call, task);
  BackwardWorker<E> worker(call, scratch_of(call, thread));
  worker.run(b, head_k, 0);
  if (p.dq.dtype != MICA_NONE)
    for (i64 task = begin; task < end; ++task) finish_dq(call, task, worker.own_dq(row_task(p, task).head));
}

template <class E>
void execute_backward(const CpuCall& call) {
  const Problem& p = *call.problem;
  const mica::Threads& threads = call.plan->threads;
  CpuCall* context = const_cast<CpuCall*>(&call);
  const i64 chunks = i64(p.batch) * p.heads_k * call.plan->backward.num_chunks;
  const bool is_main_wanted = p.dq.dtype != MICA_NONE || p.dk.dtype != MICA_NONE || p.dv.dtype != MICA_NONE;
  if (is_main_wanted && call.plan->backward.num_chunks == 1) {
    mica::parallel_for(
        threads, chunks,
        [](void* c, i64 index, i32 thread) { differentiate_heads<E>(*static_cast<const CpuCall*>(c), index, thread); },
        context);
  } else {
    mica::parallel_for(
        threads, num_row_tasks(p),
        [](void* c, i64 index, i32) { prepare_rows(*static_cast<const CpuCall*>(c), index); }, context);
    if (is_main_wanted)
      mica::parallel_for(
          threads, chunks,
          [](void* c, i64 index, i32 thread) {
            differentiate_chunk<E>(*static_cast<const CpuCall*>(c), index, thread);
          },
          context);
    if (p.dq.dtype != MICA_NONE)
      mica::parallel_for(
          threads, num_row_tasks(p), [](void* c, i64 index, i32) { finish_dq(*static_cast<const CpuCall*>(c), index); },
          context);
  }
  if (p.d_sinks.dtype != MICA_NONE) finish_sinks(call);
  if (p.d_bias.dtype != MICA_NONE) execute_bias<E>(call);
}

}  // namespace MICA_NS
