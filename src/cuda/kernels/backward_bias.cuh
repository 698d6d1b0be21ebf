// SPDX-License-Identifier: Apache-2.0
// The gradient of the bias: dBias = dS, summed over the axes along which the bias broadcasts. A block owns a tile of
// dBias, computes S and dP again for every (batch, head, query tile, key tile) that falls on it, and adds them up in
// its registers in a fixed order: the same bits on every run. A warp owns 16 of the queries. Columns of Q, K, dO and V
// pass through shared memory `width` at a time. Column `stages` of its row: width / 64.
#pragma once

#include "device/attend.cuh"
#include "device/features.cuh"
#include "device/products.cuh"
#include "kernels/params.h"

namespace mica {

template <class Element, int width, int tile_q, int tile_k, int warps>
struct BackwardBias {
  static constexpr int kThreads = 32 * warps;
  static constexpr int kBlocks = tile_k / 8;
  static_assert(tile_q == 16 * warps && tile_k % 32 == 0);
  using Ops = Products<Element>;
  using Tile = typename Ops::template Tile<width>;
  using Scores = float[1][kBlocks][4];

  const BackwardBiasParams& params;
  const BackwardParams& p;
  u32 smem_q, smem_d_o, smem_k, smem_v;
  i32 lane, warp;
  Sequence sequence;
  Band band;
  i32 b, head;
  FeatureState<false, typename MathOf<Element>::Math> features;
  Scores sum;

  // `width` columns from `column` on; none where they are past the last.
  template <int rows>
  MICA_DEVICE void load(u32 shared, const RowsArg& tensor, i64 offset, i32 valid_rows, i32 column, i32 dim) const {
    constexpr int kHalves = Ops::kHalves;
    if (column >= dim) return;
    const u16* global = static_cast<const u16*>(tensor.data) + (offset + column) * kHalves;
    const i64 stride = tensor.stride_row * kHalves;
    const i32 valid_dim = (dim - column) * kHalves;
    if (p.features & kFeatureUnaligned)
      load_tile_by_rows<kHalves * width, rows, kThreads>(
          shared, [&](i32 row) { return global + row * stride; }, false, valid_rows, valid_dim);
    else
      load_tile<kHalves * width, rows, kThreads>(shared, global, stride, valid_rows, valid_dim);
  }
  MICA_DEVICE i64 query_offset(const RowsArg& t, i32 row) const {
    return head * t.stride_head + query_row_offset(sequence, row, t.stride_batch, t.stride_row);
  }
  MICA_DEVICE i64 key_offset(const RowsArg& t, i32 key) const {
    return head / p.group * t.stride_head + sequence.k_slot * t.stride_batch + (sequence.k_begin + key) * t.stride_row;
  }
  MICA_DEVICE void load_queries(i32 row, i32 column) const {
    load<tile_q>(smem_q, p.q, query_offset(p.q, row), sequence.len_q - row, column, p.dim_qk);
    load<tile_q>(smem_d_o, p.d_o, query_offset(p.d_o, row), sequence.len_q - row, column, p.dim_v);
  }
  MICA_DEVICE void load_keys(i32 key, i32 column) const {
    load<tile_k>(smem_k, p.k, key_offset(p.k, key), sequence.len_k - key, column, p.dim_qk);
    load<tile_k>(smem_v, p.v, key_offset(p.v, key), sequence.len_k - key, column, p.dim_v);
  }

  // S and dP of one pair of tiles. is_first: of the pairs with these queries.
  MICA_DEVICE void sum_products(Scores& s, Scores& dp, i32 row, i32 key, bool is_first) const {
    const i32 columns = max_of(p.dim_qk, p.dim_v);
    zero(s);
    zero(dp);
#pragma unroll 1
    for (i32 column = 0; column < columns; column += width) {
      __syncthreads();  // every warp is done with the tiles before
      if (is_first || columns > width) load_queries(row, column);
      load_keys(key, column);
      cp_async_commit();
      cp_async_wait<0>();
      __syncthreads();
      if (column < p.dim_qk) Ops::template add_rows<width>(s, smem_q, warp * 16, smem_k, 0);
      if (column < p.dim_v) Ops::template add_rows<width>(dp, smem_d_o, warp * 16, smem_v, 0);
    }
  }

  // Adds dS of one pair of tiles.
  MICA_DEVICE void add_tile(Scores& s, Scores& dp, i32 row_begin, i32 key_begin) {
    const i32 query_begin = row_begin + warp * 16;
    features.score(s, p, band, b, head, query_begin, key_begin);
    const i64 stat = head * p.stat_rows + sequence.q_slot * i64(p.sequences.slot_len_q) + sequence.q_begin;
    float lse[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i32 row = query_begin + half * 8 + lane / 4;
      const bool inside = row < sequence.len_q;
      lse[half] = inside ? p.row_lse[stat + row] : infinity();
      delta[half] = inside ? p.row_delta[stat + row] : 0.0f;
      const Range keys = keys_of_row(band, row);
      const i32 first = key_begin + 2 * (lane % 4);
      hide_outside<kBlocks>(s[0], half, keys.begin - first, keys.end - first);
    }
    if (p.features & kFeatureDropout) {
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) dp[0][n][e] *= p.dropout.rescale;
      features.template for_each_dropped<1, kBlocks>(p, b * p.heads_q + head, query_begin, key_begin,
                                                     [&](int m, int n, int e) { dp[m][n][e] = 0.0f; });
    }
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[0][n][e] += ex2_approx(s[0][n][e] - lse[e / 2]) * (dp[0][n][e] - delta[e / 2]);
  }

  // All pairs of tiles of one (batch, head); a tile index of -1 stands for every tile.
  MICA_DEVICE void add_head(i32 tile_row, i32 tile_key) {
    sequence = sequence_of(p.sequences, b);
    band = Band{sequence.len_q, sequence.len_k, p.band.bottom_right ? sequence.len_k - sequence.len_q : 0,
                p.band.window_left, p.band.window_right};
    features.begin(p, b, head);
    const i32 rows_begin = tile_row < 0 ? 0 : tile_row * tile_q;
    const i32 rows_end = tile_row < 0 ? sequence.len_q : min_of(rows_begin + tile_q, sequence.len_q);
    for (i32 row = rows_begin; row < rows_end; row += tile_q) {
      TileRange tiles = key_tiles(band, row, min_of(row + tile_q, sequence.len_q), tile_k);
      if (tile_key >= 0) {
        tiles.begin = max_of(tiles.begin, tile_key);
        tiles.end = min_of(tiles.end, tile_key + 1);
      }
      for (i32 tile = tiles.begin; tile < tiles.end; ++tile) {
        Scores s, dp;
        sum_products(s, dp, row, tile * tile_k, tile == tiles.begin);
        add_tile(s, dp, row, tile * tile_k);
      }
    }
  }

  MICA_DEVICE void run(u8* smem) {
    lane = threadIdx.x % 32;
    warp = threadIdx.x / 32;
    smem_q = shared_address(smem);
    smem_d_o = smem_q + tile_q * Tile::kRowBytes;
    smem_k = smem_d_o + tile_q * Tile::kRowBytes;
    smem_v = smem_k + tile_k * Tile::kRowBytes;
    zero(sum);
    const i32 tiles_row = params.rows == 1 ? 1 : ceil_div(params.rows, tile_q);
    const i32 tiles_key = params.keys == 1 ? 1 : ceil_div(params.keys, tile_k);
    i32 index = blockIdx.x;
    const i32 key_tile = index % tiles_key;
    index /= tiles_key;
    const i32 row_tile = index % tiles_row;
    index /= tiles_row;
    const i32 out_head = index % params.heads, out_batch = index / params.heads;
    const i32 batch_begin = params.batch == 1 ? 0 : out_batch, batch_end = params.batch == 1 ? p.batch : out_batch + 1;
    const i32 head_begin = params.heads == 1 ? 0 : out_head, head_end = params.heads == 1 ? p.heads_q : out_head + 1;
    for (b = batch_begin; b < batch_end; ++b)
      for (head = head_begin; head < head_end; ++head)
        add_head(params.rows == 1 ? -1 : row_tile, params.keys == 1 ? -1 : key_tile);
    __syncthreads();
    store(reinterpret_cast<float*>(smem), out_batch * params.stride_batch + out_head * params.stride_head,
          row_tile * tile_q, key_tile * tile_k);
  }

  // Through shared memory (tile_q x tile_k), so that each element of dBias is summed over its broadcast axes and
  // written by one thread.
  MICA_DEVICE void store(float* tile, i64 offset, i32 row_begin, i32 key_begin) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        tile[(warp * 16 + e / 2 * 8 + lane / 4) * tile_k + n * 8 + lane % 4 * 2 + e % 2] = sum[0][n][e];
    __syncthreads();
    const i32 rows = params.rows == 1 ? 1 : tile_q, keys = params.keys == 1 ? 1 : tile_k;
    const i32 rows_each = tile_q / rows, keys_each = tile_k / keys;
    for (i32 i = threadIdx.x; i < rows * keys; i += kThreads) {
      const i32 row = i / keys, key = i % keys;
      if (row_begin + row >= params.rows || key_begin + key >= params.keys) continue;
      float total = 0;
      for (i32 r = 0; r < rows_each; ++r)
        for (i32 k = 0; k < keys_each; ++k) total += tile[(row + r) * tile_k + key + k];
      store_float(params.d_bias, offset + (row_begin + row) * params.stride_row + (key_begin + key) * params.stride_key,
                  params.dtype, total);
    }
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::BackwardBiasParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::BackwardBias<MICA_ELEMENT, 64 * MICA_STAGES, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS>;
  Kernel kernel{params, params.backward};
  kernel.run(smem);
}
