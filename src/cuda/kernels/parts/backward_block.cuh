// SPDX-License-Identifier: Apache-2.0
// What the backward kernels share: a block owns tile_k keys of one key head and loops over the query tiles that see
// them, for every query head of the group. Scores are computed transposed (rows are keys); a warp holds 32 keys of
// them.
#pragma once

#include "device/attend.cuh"
#include "device/dq_accumulator.cuh"
#include "device/products.cuh"
#include "kernels/options/features.cuh"
#include "kernels/params.h"

namespace mica {

template <class Element, int tile_q, int tile_k, int warps, bool full, u32 served = full ? serves::FULL : serves::PLAIN>
struct BackwardBlock {
  using Math = typename MathOf<Element>::Math;
  using Ops = Products<Element>;
  static constexpr int kThreads = 32 * warps;

  const BackwardParams& p;
  Sequence sequence;
  Band band;
  i32 batch_index, head, head_k, key_begin;
  float* stats;  // [2][2][tile_q]: stage, then lse and delta
  u32 lane = threadIdx.x % 32;
  FeatureState<true, Math, served> features;

  MICA_DEVICE bool has(u32 feature) const { return (served & feature) && (p.features & feature); }

  // Finds the block's keys: `index` counts the first key tiles of a section's heads, then the second ones and so on,
  // then sections; heads are key heads of a sequence, then of the next. False if there are none.
  MICA_DEVICE bool locate(i32 index) {
    const i32 heads = p.packed_k ? p.heads_k : p.heads_k * p.batch, first_of_last = heads - p.last_heads;
    i32 head_of_all = floor_div(index, p.by_tiles_k), tile = index - head_of_all * p.tiles_k;
    if (head_of_all >= first_of_last) {
      index -= first_of_last * p.tiles_k;
      tile = floor_div(index, p.by_last_heads);
      head_of_all = first_of_last + index - tile * p.last_heads;
    } else if (p.section_heads > 1) {
      const i32 first_head = head_of_all / p.section_heads * p.section_heads;
      const i32 heads_here = min_of(p.section_heads, first_of_last - first_head);
      index -= first_head * p.tiles_k;
      tile = index / heads_here;
      head_of_all = first_head + index - tile * heads_here;
    }
    return locate(head_of_all, is_last_first() ? p.tiles_k - 1 - tile : tile);
  }
  MICA_DEVICE bool locate(i32 head_of_all, i32 tile) {
    batch_index = floor_div(head_of_all, p.by_heads_k);
    head_k = head_of_all - batch_index * p.heads_k;
    if (p.packed_k) {
      const QueryTile found = find_packed_tile(p.sequences.cu_seqlens_k, p.batch, p.sequences.total_k, tile_k, tile);
      batch_index = found.batch;
      tile = found.tile;
    }
    return locate_in_sequence(tile);
  }
  // The key tile of batch_index and head_k.
  MICA_DEVICE bool locate_in_sequence(i32 tile) {
    sequence = sequence_of(p.sequences, batch_index);
    key_begin = tile * tile_k;
    band = band_of_lengths();
    return key_begin < sequence.slot_len_k - sequence.leftpad || tile == 0;
  }

  MICA_DEVICE Band band_of_lengths() const { return served_band<served>(p.band, sequence.len_q, sequence.len_k); }

  // The query tiles that see the keys.
  MICA_DEVICE TileRange query_tiles() const { return query_tiles_of(key_begin); }
  MICA_DEVICE TileRange query_tiles_of(i32 first_key) const {
    TileRange tiles = TileRange{0, 0, 0, 0};
    const i32 key_end = min_of(first_key + tile_k, sequence.len_k);
    if (first_key >= 0 && first_key < key_end) tiles = key_tiles(transpose(band), first_key, key_end, tile_q);
    // A key tile that is cut off has rows that no query sees: test everywhere.
    if (first_key + tile_k > sequence.len_k) tiles.full_begin = tiles.full_end = tiles.begin;
    return tiles;
  }

  // Rows and columns from `offset` on of a tensor with q's axes; what is past the valid ones arrives as zeros.
  template <int dim, int rows>
  MICA_DEVICE void load(u32 shared, const RowsArg& tensor, i64 offset, i32 valid_rows, i32 valid_dim) const {
    constexpr int kHalves = Ops::kHalves;
    const u16* global = static_cast<const u16*>(tensor.data) + offset * kHalves;
    const i64 stride = tensor.stride_row * kHalves;
    using Copy = TileCopy<kHalves * dim, rows, kThreads>;
    if (has(kFeatureUnaligned))
      load_tile_by_rows<kHalves * dim, rows, kThreads>(
          shared, [&](i32 row) { return global + row * stride; }, false, valid_rows, valid_dim * kHalves);
    else if (Copy::kRegular && valid_rows >= rows && valid_dim >= dim)
      Copy::copy(shared + Copy::shared_offset(), global + Copy::global_offset(stride), stride);
    else
      load_tile<kHalves * dim, rows, kThreads>(shared, global, stride, valid_rows, valid_dim * kHalves);
  }
  // The same with little code, for kernels that load in many places.
  template <int dim, int rows>
  MICA_DEVICE void load_in_loop(u32 shared, const RowsArg& tensor, i64 offset, i32 valid_rows, i32 valid_dim) const {
    constexpr int kHalves = Ops::kHalves;
    const u16* global = static_cast<const u16*>(tensor.data) + offset * kHalves;
    const i64 stride = tensor.stride_row * kHalves;
    using Copy = TileCopy<kHalves * dim, rows, kThreads>;
    if (Copy::kRegular && valid_rows >= rows && valid_dim >= dim && !has(kFeatureUnaligned))
      Copy::copy_in_loop(shared + Copy::shared_offset(), global + Copy::global_offset(stride), stride);
    else
      load_tile_by_rows<kHalves * dim, rows, kThreads>(
          shared, [&](i32 row) { return global + row * stride; }, !has(kFeatureUnaligned), valid_rows,
          valid_dim * kHalves);
  }
  MICA_DEVICE i64 query_offset(const RowsArg& t, i32 head_q, i32 row) const {
    return head_q * t.stride_head + query_row_offset(sequence, row, t.stride_batch, t.stride_row);
  }
  MICA_DEVICE i64 key_offset(const RowsArg& t) const {
    return head_k * t.stride_head + sequence.k_slot * t.stride_batch + (sequence.k_begin + key_begin) * t.stride_row;
  }

  template <int threads = kThreads>
  MICA_DEVICE void load_stats(i32 head_q, i32 row, i32 stage) const {
    const i64 stat = head_q * p.stat_rows + sequence.q_slot * i64(p.sequences.slot_len_q) + sequence.q_begin + row;
    const i32 valid = sequence.len_q - row;
    for (int i = threads == kThreads ? threadIdx.x : threadIdx.x % threads; i < tile_q; i += threads) {
      stats[(stage * 2) * tile_q + i] = i < valid ? p.row_lse[stat + i] : infinity();
      stats[(stage * 2 + 1) * tile_q + i] = i < valid ? p.row_delta[stat + i] : 0.0f;
    }
  }

  // Hides what the band hides: rows of the fragment are keys, so the transposed band gives the queries each one sees.
  template <int m_blocks, int n_blocks>
  MICA_DEVICE void mask(float (&scores)[m_blocks][n_blocks][4], i32 first_key, i32 query_begin) const {
    const Band transposed = transpose(band);
#pragma unroll
    for (int m = 0; m < m_blocks; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const i32 key = first_key + m * 16 + half * 8 + i32(lane / 4);
        Range queries = keys_of_row(transposed, key);
        if (key >= sequence.len_k) queries = Range{0, 0};
        const i32 first = query_begin + i32(lane % 4 * 2);
        hide_outside<n_blocks>(scores[m], half, queries.begin - first, queries.end - first);
      }
  }

  // s: Q K^T of 32 keys from first_key on and of some queries, which becomes P; dp: made by make_dp when s is done
  // with, dO V^T of the same, which becomes dS. query_in_tile: the first of the queries in their tile.
  template <int n_blocks, class MakeDp>
  MICA_DEVICE void weigh(float (&s)[2][n_blocks][4], float (&dp)[2][n_blocks][4], i32 first_key, i32 tile,
                         i32 query_in_tile, i32 stage, bool masked, MakeDp make_dp) const {
    const i32 query_begin = tile * tile_q + query_in_tile, lane = threadIdx.x % 32;
    float slope[2][n_blocks][4];  // d score / d product, over the scale
    if constexpr (full) {
      features.scale(s, p);
      if (p.features & kFeatureSoftcap) {
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int n = 0; n < n_blocks; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) slope[m][n][e] = capped_slope<Math>(p.score, s[m][n][e]);
      }
      features.add(s, p, band, batch_index, head, query_begin, first_key);
    }
    if (masked) mask(s, first_key, query_begin);
    const float scale = full ? 1.0f : p.score.scale_log2;
    const float* lse = stats + stage * 2 * tile_q + query_in_tile;
#pragma unroll
    for (int n = 0; n < n_blocks; ++n) {
      const float2 row_lse = *reinterpret_cast<const float2*>(lse + n * 8 + lane % 4 * 2);
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n][e] = ex2_approx(fmaf(s[m][n][e], scale, -(e % 2 ? row_lse.y : row_lse.x)));
    }
    make_dp();
    if constexpr (full) {
      if (p.features & kFeatureDropout) {
        // The undropped probability is still needed for dS: the dropped one gets a sign, taken off below.
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int n = 0; n < n_blocks; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) dp[m][n][e] *= p.dropout.rescale;
        features.template for_each_dropped<2, n_blocks>(p, batch_index, head, query_begin, first_key,
                                                        [&](int m, int n, int e) {
                                                          dp[m][n][e] = 0.0f;
                                                          s[m][n][e] = -s[m][n][e];
                                                        });
      }
    }
#pragma unroll
    for (int n = 0; n < n_blocks; ++n) {
      const float2 delta = *reinterpret_cast<const float2*>(lse + tile_q + n * 8 + lane % 4 * 2);
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float probability = full ? fabsf(s[m][n][e]) : s[m][n][e];
          dp[m][n][e] = probability * (dp[m][n][e] - (e % 2 ? delta.y : delta.x));
          if constexpr (full) {
            if (p.features & kFeatureSoftcap) dp[m][n][e] *= slope[m][n][e];
            if (p.features & kFeatureDropout) s[m][n][e] = fmaxf(s[m][n][e], 0.0f) * p.dropout.rescale;
          }
        }
    }
  }

  // A fragment of 32 keys into a (tile_k, tile_q) tile: from row `row` and query `query_in_tile` on.
  template <int n_blocks>
  static MICA_DEVICE void store_scores(u32 tile, i32 row, i32 query_in_tile, const float (&x)[2][n_blocks][4]) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < n_blocks; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          Ops::template store_pair<tile_q>(tile, row + m * 16 + half * 8 + i32(threadIdx.x % 32) / 4,
                                           query_in_tile / 8 + n, x[m][n][2 * half], x[m][n][2 * half + 1]);
  }

  // Where the block of a query tile lies in dQ's accumulator, counted in blocks.
  MICA_DEVICE i64 dq_tile(i32 tile) const { return i64(dq_tiles_before() + tile) * p.heads_q + head; }
  // Query tiles of the sequences before this one.
  MICA_DEVICE i32 dq_tiles_before() const {
    return p.packed_q ? packed_tile_begin(i32(sequence.q_begin), batch_index, tile_q) : batch_index * p.tiles_q;
  }

  // Deterministic: the key tiles that see a query tile add to it from the first to the last, or from the last to the
  // first. A block waits only for blocks with a smaller index, which have started before it.
  MICA_DEVICE void spin_on_semaphore(i32 tile, i64 semaphore) const {
    const i32 row = tile * tile_q, own = key_begin / tile_k;
    const TileRange keys = key_tiles(band, row, min_of(row + tile_q, sequence.len_q), tile_k);
    const i32 before = is_last_first() ? keys.end - 1 - own : own - keys.begin;
    while (load_acquire(p.dq_semaphores + semaphore) != before) __nanosleep(40);
  }
  MICA_DEVICE void wait_semaphore(i32 tile, i64 semaphore) const {
    if (threadIdx.x == 0) spin_on_semaphore(tile, semaphore);
    __syncthreads();
  }
  // In a fixed order under a causal mask, a block begins at the diagonal. The block after it in the sequence begins one
  // query tile further on, and is one ahead in all of them: it goes first, and nobody waits.
  MICA_DEVICE bool is_last_first() const { return p.dq_semaphores && p.band.window_right < kUnlimited; }
  MICA_DEVICE void release_semaphore(i64 semaphore) const {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) add_release(p.dq_semaphores + semaphore, 1);
  }

  // A warp's part of dK or dV, where that is wanted; the first slice of columns clears the left padding.
  template <int m_blocks, int n_blocks>
  MICA_DEVICE void store_gradient(const RowsArg& t, i32 dtype, i32 dim, const float (&x)[m_blocks][n_blocks][4],
                                  float scale, i32 first_row, i32 first_column, bool is_first_slice = true) const {
    if (!t.data) return;
    if (key_begin == 0 && is_first_slice) clear_leftpad(t, dtype, dim);
    store_keys(t, dtype, dim, x, scale, first_row, first_column);
  }
  // Keys in the left padding are not in use: zeros.
  template <int threads = kThreads>
  MICA_DEVICE void clear_leftpad(const RowsArg& t, i32 dtype, i32 dim) const {
    const i64 base = key_offset(t) - sequence.leftpad * t.stride_row;
    for (i64 i = threadIdx.x % threads; i < i64(sequence.leftpad) * dim; i += threads)
      store_float(t.data, base + i / dim * t.stride_row + i % dim, dtype, 0.0f);
  }
  // Rows from `first_row` and columns from `first_column` on of dK or dV; keys past those in use get their zeros.
  template <int m_blocks, int n_blocks>
  MICA_DEVICE void store_keys(const RowsArg& t, i32 dtype, i32 dim, const float (&x)[m_blocks][n_blocks][4],
                              float scale, i32 first_row, i32 first_column) const {
    const i64 base = key_offset(t);
    const i32 lane = threadIdx.x % 32;
    const bool pairs = dtype == ElementTraits<Element>::kDtype && !has(kFeatureUnaligned);
#pragma unroll
    for (int m = 0; m < m_blocks; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const i32 row = first_row + m * 16 + half * 8 + lane / 4;
        if (key_begin + row >= sequence.slot_len_k - sequence.leftpad) continue;
#pragma unroll
        for (int n = 0; n < n_blocks; ++n) {
          const i32 column = first_column + n * 8 + lane % 4 * 2;
          const i64 at = base + row * t.stride_row + column;
          const float left = x[m][n][2 * half] * scale, right = x[m][n][2 * half + 1] * scale;
          if (pairs) {
            if (column < dim) store_two(t.data, at, left, right);
          } else {
            if (column < dim) store_one(t.data, at, dtype, left);
            if (column + 1 < dim) store_one(t.data, at + 1, dtype, right);
          }
        }
      }
  }
  // store_float of the core with the GPU's own conversions: it stands here once for each element of a fragment.
  static MICA_DEVICE void store_one(void* data, i64 at, i32 dtype, float x) {
    if (dtype == MICA_FP32)
      static_cast<float*>(data)[at] = x;
    else
      static_cast<u16*>(data)[at] = u16(dtype == MICA_BF16 ? pack<Bf16>(x, 0.0f) : pack<Fp16>(x, 0.0f));
  }
  static MICA_DEVICE void store_two(void* data, i64 at, float left, float right) {
    if constexpr (Ops::kFp32)
      *reinterpret_cast<float2*>(static_cast<float*>(data) + at) = make_float2(left, right);
    else
      *reinterpret_cast<u32*>(static_cast<u16*>(data) + at) = pack<Element>(left, right);
  }
};

}  // namespace mica
