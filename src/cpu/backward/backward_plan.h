// SPDX-License-Identifier: Apache-2.0
// What backward decides when it is planned, and how it divides the workspace.
//
// A task is (sequence, key head, chunk of its keys). It goes through its chunk in panels: the keys and values of a
// panel are packed once, its dK and dV are accumulated while all queries that see it pass by, and dQ goes to an
// accumulator that belongs to the chunk. Everything is summed in an order that the shapes fix, so the bits do not
// depend on the threads.
#pragma once

#include "core/schedule.h"
#include "cpu/engine/engine.h"
#include "cpu/isa/isa.h"
#include "cpu/score_row.h"

namespace MICA_NS {

using mica::BackwardPlan;

constexpr i32 kMaxTileK = 256;

// Hands out the parts of a region one after another. A null base gives the sizes.
struct Carver {
  char* base;
  i64 bytes = 0;

  template <class T>
  T* take(i64 count) {
    T* at = base ? reinterpret_cast<T*>(base + bytes) : nullptr;  // null: only the size is asked for
    bytes += round_up<i64>(count * i64(sizeof(T)), kLineBytes);
    return at;
  }
};

// Query rows of all sequences, each sequence starting on a multiple of tile_q: the axis of the row statistics and of
// the accumulators of dQ.
HWY_INLINE i64 padded_rows(const Problem& p, i32 tile_q) {
  if (p.vectors & MICA_CU_SEQLENS_Q) return packed_tile_count(p.total_q, p.batch, tile_q) * tile_q;
  return i64(p.batch) * round_up(p.max_len_q, tile_q);
}
HWY_INLINE i64 padded_row_begin(const Problem& p, const Sequence& s, i32 b, i32 tile_q) {
  if (p.vectors & MICA_CU_SEQLENS_Q) return i64(packed_tile_begin(i32(s.q_begin), b, tile_q)) * tile_q;
  return i64(b) * round_up(p.max_len_q, tile_q);
}

// The key tiles of one chunk of a sequence.
HWY_INLINE Range chunk_tiles(const BackwardPlan& plan, const Sequence& s, i32 chunk) {
  return split_tiles(Splits{plan.num_chunks, 0}, ceil_div(s.len_k, plan.tile_k), chunk);
}

// The query rows that see at least one of the keys [key_begin, key_end).
HWY_INLINE Range rows_of_keys(const Band& band, i32 key_begin, i32 key_end) {
  if (key_begin >= key_end || band.len_q == 0) return Range{0, 0};
  return keys_of_any_row(transpose(band), key_begin, key_end);
}

// One thread's memory.
template <class E>
struct BackwardScratch {
  using Element = typename E::Element;
  Element *q, *q_transposed, *d_o, *d_o_transposed;              // of one query tile, as A
  Element *k_transposed, *k, *v_transposed;                      // of a panel, as B, tile by tile
  i64 k_transposed_elements, k_elements, v_transposed_elements;  // of one tile
  float *s, *d_p;                                                // (tile_q, tile_k): products, then P and dS
  Element* d_s;                                                  // dS as A; the floats of d_p where Element is float
  Element *p_packed, *d_s_packed;                                // P and dS as B
  float *d_k, *d_v;                                              // (dim, panel): transposed accumulators
  float* d_q;                                                    // (group, own_dq_rows, ld_dq)
  float* bias;                                                   // (tile_q, tile_k): a tile of dBias
  i64 ld_q, ld_d_o, ld_transposed, ld_s, ld_d_s, ld_panel;
  i64 bytes;

  BackwardScratch(const Problem& p, const BackwardPlan& plan, char* base) {
    const i32 rows = round_up(plan.tile_q, E::kRows);
    const i32 dim_rows = round_up(p.dim_qk, E::kRows), dim_v_rows = round_up(p.dim_v, E::kRows);
    ld_q = leading_dimension(p.dim_qk, E::kDepth);
    ld_d_o = leading_dimension(p.dim_v, E::kDepth);
    ld_transposed = leading_dimension(plan.tile_q, E::kDepth);
    ld_s = leading_dimension(plan.tile_k, max_of(E::kCols, E::kDepth));
    ld_d_s = ld_s;
    // Not a power of two, else its rows would share a few sets of the cache.
    ld_panel = leading_dimension(plan.tile_k, E::kCols) * plan.panel_tiles + 16;
    k_transposed_elements = round_up<i64>(E::packed_b_elements(p.dim_qk, plan.tile_k), kLineBytes);
    k_elements = round_up<i64>(E::packed_b_elements(plan.tile_k, p.dim_qk), kLineBytes);
    v_transposed_elements = round_up<i64>(E::packed_b_elements(p.dim_v, plan.tile_k), kLineBytes);
    Carver carve{base};
    q = carve.take<Element>(rows * ld_q);
    q_transposed = carve.take<Element>(round_up(dim_rows, 8) * ld_transposed);  // whole blocks: transpose_elements
    d_o = carve.take<Element>(rows * ld_d_o);
    d_o_transposed = carve.take<Element>(round_up(dim_v_rows, 8) * ld_transposed);
    s = carve.take<float>(rows * ld_s);
    d_p = carve.take<float>(rows * ld_s);
    d_s = kIsFloat<Element> ? reinterpret_cast<Element*>(d_p) : carve.take<Element>(rows * ld_d_s);
    p_packed = carve.take<Element>(E::packed_b_elements(plan.tile_q, plan.tile_k));
    d_s_packed = carve.take<Element>(E::packed_b_elements(plan.tile_q, plan.tile_k));
    k_transposed = carve.take<Element>(k_transposed_elements * plan.panel_tiles);
    k = carve.take<Element>(k_elements * plan.panel_tiles);
    v_transposed = carve.take<Element>(v_transposed_elements * plan.panel_tiles);
    d_k = carve.take<float>(dim_rows * ld_panel);
    d_v = carve.take<float>(dim_v_rows * ld_panel);
    d_q = carve.take<float>(p.group * plan.own_dq_rows * plan.ld_dq);
    bias = carve.take<float>(p.d_bias.dtype == MICA_NONE ? 0 : plan.tile_q * ld_s);
    bytes = carve.bytes;
  }
};

// Chunks whose accumulators of dQ take at most 1.5 times the bytes of q, k, v, o and their gradients: all of backward
// then stays below three times its tensors. `rows` and `keys` are counted over all sequences.
HWY_INLINE i64 chunks_by_memory(const Problem& p, i64 rows, i64 keys) {
  const i64 tensors = dtype_bytes(p.dtype) * 2 * (p.dim_qk + p.dim_v) * (rows * p.heads_q + keys * p.heads_k);
  const i64 accumulator = i64(sizeof(float)) * rows * p.heads_q * p.dim_qk;
  constexpr i64 kNoMatter = 4 << 20;  // bytes of an accumulator, where cores count for more
  return accumulator <= kNoMatter ? BackwardPlan::kMaxChunks : tensors * 3 / (accumulator * 2);
}

// Into how many chunks the keys of each sequence are cut: enough to fill many cores when there are few heads. By the
// shapes alone, never by the threads; batch-invariant: by the heads alone.
HWY_INLINE i32 choose_chunks(const Problem& p) {
  constexpr i64 kLong = 1 << 20;  // rows, however many there are
  if (p.batch_invariant) return i32(clamp_to<i64>(chunks_by_memory(p, kLong, 0), 1, 4));
  constexpr i64 kTasks = 32;
  constexpr i32 kMinKeys = 512;
  const i64 tasks = max_of<i64>(i64(p.batch) * p.heads_k, 1);
  const i64 wanted = min_of<i64>(ceil_div(kTasks, tasks), p.hint_len_k / kMinKeys);
  const i64 affordable = chunks_by_memory(p, p.total_q, p.total_k);
  return i32(clamp_to<i64>(min_of(wanted, affordable), 1, BackwardPlan::kMaxChunks));
}

template <class E>
void plan_backward(const Problem& p, mica::CpuPlan& cpu, i32& num_splits) {
  num_splits = 1;
  BackwardPlan& plan = cpu.backward;
  // A multiple of the engine's rows, so that a tile of dQ, padded, does not reach into the next. The bf16 engines are
  // so fast that the accumulators of dK and dV want more rows at a time.
  constexpr i32 kTileRows = sizeof(typename E::Element) == 2 ? 128 : 64;
  // Tiles of short sequences are as short as they are: each then has one, whatever the batch holds.
  plan.tile_q = min_of(kTileRows / E::kRows * E::kRows, max_of(round_up(p.max_len_q, E::kRows), E::kRows));
  constexpr i32 kGranularity = max_of(E::kCols, max_of(E::kDepth, 16));
  plan.tile_k = min_of(128, max_of(round_up(p.max_len_k, kGranularity), kGranularity));
  // A panel and its accumulators stay in the second-level cache.
  constexpr i64 kPanelBytes = 768 << 10;
  const i64 dims = 2 * p.dim_qk + p.dim_v;
  const i64 tile_bytes = plan.tile_k * (dims * i64(sizeof(typename E::Element)) + (p.dim_qk + p.dim_v) * 4);
  plan.panel_tiles =
      i32(clamp_to<i64>(kPanelBytes / tile_bytes, 1, min_of(4, max_of(ceil_div(p.max_len_k, plan.tile_k), 1))));
  plan.num_chunks = choose_chunks(p);
  plan.rows = padded_rows(p, plan.tile_q);
  plan.ld_dq = leading_dimension(p.dim_qk, E::kCols);
  Carver carve{nullptr};
  const auto take = [&](i64 count) {
    const i64 offset = carve.bytes;
    carve.take<float>(count);
    return mica::Region{offset, carve.bytes - offset};
  };
  plan.delta = take(plan.rows * p.heads_q);
  plan.reference = take(plan.rows * p.heads_q);
  plan.sinks = take(p.d_sinks.dtype == MICA_NONE ? 0 : i64(p.batch) * p.heads_q * plan.kRowParts);
  // Threads for whom there is no task need no scratch memory; those of dBias are counted elsewhere.
  const i64 tasks = p.d_bias.dtype == MICA_NONE ? i64(p.batch) * p.heads_k * plan.num_chunks : cpu.threads.count;
  const i64 workers = min_of<i64>(cpu.threads.count, max_of<i64>(tasks, 1));
  const bool wants_dq = p.dq.dtype != MICA_NONE;
  // A packed sequence may be as long as all of them: where every thread had room for it there might be more of it.
  const i64 own_rows = round_up(p.max_len_q, plan.tile_q);
  const bool is_own = plan.num_chunks == 1 && own_rows * p.group * workers <= plan.rows * p.heads_q;
  plan.own_dq_rows = wants_dq && is_own ? own_rows : 0;
  plan.dq = take(wants_dq && !is_own ? plan.rows * p.heads_q * plan.ld_dq * plan.num_chunks : 0);
  cpu.scratch_bytes = BackwardScratch<E>(p, plan, nullptr).bytes;
  cpu.scratch = mica::Region{carve.bytes, cpu.scratch_bytes * workers};
  cpu.workspace_bytes = carve.bytes + cpu.scratch.bytes;
}

}  // namespace MICA_NS
