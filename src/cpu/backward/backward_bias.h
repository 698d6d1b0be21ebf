// SPDX-License-Identifier: Apache-2.0
// The gradient of the bias: dS, summed over the axes along which the bias broadcasts. A pass of its own, with a task
// for each tile of the result that visits every pair of tiles it is the sum of, in a fixed order: no memory beyond a
// tile, and the same bits on every run. It costs two products more, and only where this gradient is asked for.
#pragma once

#include "cpu/backward/backward_tile.h"
#include "cpu/threads/threads.h"

namespace MICA_NS {

template <class E>
class BiasWorker {
 public:
  BiasWorker(const CpuCall& call, char* scratch)
      : call_(call),
        p_(*call.problem),
        t_(call.problem->d_bias),
        plan_(call.plan->backward),
        m_(p_, plan_, scratch),
        tile_(call, m_) {}

  static i64 num_tasks(const Problem& p, const BackwardPlan& plan) {
    const Tensor& t = p.d_bias;
    return t.shape[0] * t.shape[1] * ceil_div<i64>(t.shape[2], plan.tile_q) * ceil_div<i64>(t.shape[3], plan.tile_k);
  }

  void run(i64 index) {
    const i64 key_tiles = ceil_div<i64>(t_.shape[3], plan_.tile_k),
              row_tiles = ceil_div<i64>(t_.shape[2], plan_.tile_q);
    const i32 key_tile = i32(index % key_tiles), row_tile = i32(index / key_tiles % row_tiles);
    const i64 plane = index / key_tiles / row_tiles;
    const i32 head = i32(plane % t_.shape[1]), b = i32(plane / t_.shape[1]);
    memset(m_.bias, 0, size_t(plan_.tile_q) * size_t(m_.ld_s) * sizeof(float));
    const Range batches = t_.shape[0] == 1 ? Range{0, p_.batch} : Range{b, b + 1};
    E::begin();
    for (i32 n = batches.begin; n < batches.end; ++n) add_sequence(n, head, row_tile, key_tile);
    E::end();
    store_tile(b, head, row_tile, key_tile);
  }

 private:
  bool sums(i32 axis) const { return t_.shape[axis] == 1; }

  void add_sequence(i32 b, i32 head, i32 row_tile, i32 key_tile) {
    const Sequence s = sequence_of(*call_.sequences, b);
    band_ = band_of(p_, s.len_q, s.len_k);
    tile_.enter_sequence(s, b);
    const Range heads = sums(1) ? Range{0, p_.heads_q} : Range{head, head + 1};
    const Range rows =
        sums(2) ? Range{0, s.len_q} : Range{row_tile * plan_.tile_q, min_of((row_tile + 1) * plan_.tile_q, s.len_q)};
    const Range tiles = sums(3) ? Range{0, ceil_div(s.len_k, plan_.tile_k)} : Range{key_tile, key_tile + 1};
    for (i32 h = heads.begin; h < heads.end; ++h)
      for (i32 i = rows.begin; i < rows.end; i += plan_.tile_q)
        add_queries(tile_.query_rows(h, i, min_of(i + plan_.tile_q, s.len_q)), tiles);
  }

  void add_queries(const QueryRows& rows, Range tiles) {
    const TileRange seen = key_tiles(band_, rows.begin, rows.end, plan_.tile_k);
    const i32 begin = max_of(seen.begin, tiles.begin), end = min_of(seen.end, tiles.end);
    if (begin >= end) return;
    tile_.load_queries(rows);
    for (i32 t = begin; t < end; ++t) {
      const KeyTile keys = key_tile(band_, rows.begin, rows.end, seen, t, plan_.tile_k);
      tile_.load_keys(m_.k_transposed, m_.v_transposed, rows.head / p_.group, keys);
      tile_.differentiate(rows, keys, m_.k_transposed, m_.v_transposed, false);
      for (i32 r = 0; r < rows.end - rows.begin; ++r) {
        float* sum = m_.bias + r * m_.ld_s;
        const float* d_s = m_.d_p + r * m_.ld_s;
        for (i32 c = 0; c < keys.seen_end - keys.begin; c += kLanes)
          store(hn::Add(load(sum + c), load(d_s + c)), sum + c);
      }
    }
  }

  void store_tile(i32 b, i32 head, i32 row_tile, i32 key_tile) {
    float* sum = m_.bias;
    if (sums(2))
      for (i32 r = 1; r < plan_.tile_q; ++r)
        for (i32 c = 0; c < plan_.tile_k; ++c) sum[c] += sum[r * m_.ld_s + c];
    if (sums(3))
      for (i32 r = 0; r < plan_.tile_q; ++r)
        for (i32 c = 1; c < plan_.tile_k; ++c) sum[r * m_.ld_s] += sum[r * m_.ld_s + c];
    const i64 row_begin = i64(row_tile) * plan_.tile_q, key_begin = i64(key_tile) * plan_.tile_k;
    const i32 rows = i32(min_of<i64>(plan_.tile_q, t_.shape[2] - row_begin));
    const i32 keys = i32(min_of<i64>(plan_.tile_k, t_.shape[3] - key_begin));
    for (i32 r = 0; r < rows; ++r) {
      const i64 offset = b * t_.stride[0] + head * t_.stride[1] + (row_begin + r) * t_.stride[2];
      for (i32 c = 0; c < keys; ++c)
        store_float(call_.x->d_bias, offset + (key_begin + c) * t_.stride[3], t_.dtype, sum[r * m_.ld_s + c]);
    }
  }

  const CpuCall& call_;
  const Problem& p_;
  const Tensor& t_;
  const BackwardPlan& plan_;
  const BackwardScratch<E> m_;
  BackwardTile<E> tile_;
  Band band_;
};

template <class E>
void execute_bias(const CpuCall& call) {
  mica::parallel_for(
      call.plan->threads, BiasWorker<E>::num_tasks(*call.problem, call.plan->backward),
      [](void* context, i64 index, i32 thread) {
        const CpuCall& c = *static_cast<const CpuCall*>(context);
        BiasWorker<E>(c, c.workspace + c.plan->scratch.offset + thread * c.plan->scratch_bytes).run(index);
      },
      const_cast<CpuCall*>(&call));
}

}  // namespace MICA_NS
