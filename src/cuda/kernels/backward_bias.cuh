// SPDX-License-Identifier: Apache-2.0
// The gradient of the bias: dBias = dS, summed over the axes along which the bias broadcasts. A block owns a tile of
// dBias, computes S and dP again for every (batch, head, query tile, key tile) that falls on it, and adds them up in
// its registers in a fixed order: the same bits on every run. Warps form row groups x key groups. Columns pass through
// shared memory `width` at a time, Q and K in one half of it, dO and V in the other: one half is filled while the other
// is multiplied. Column `stages` of its row: width / 64.
#pragma once

#include "device/attend.cuh"
#include "device/products.cuh"
#include "kernels/options/features.cuh"
#include "kernels/params.h"

namespace mica {

template <class Element, int width, int tile_q, int tile_k, int warps>
struct BackwardBias {
  static constexpr int kThreads = 32 * warps;
  static constexpr int kKeys = tile_k < 64 ? tile_k : tile_k / 2;  // of a warp
  static constexpr int kKeyGroups = tile_k / kKeys;
  static constexpr int kRowGroups = warps / kKeyGroups;
  static constexpr int kRows = tile_q / kRowGroups;  // of a warp
  static constexpr int kMBlocks = kRows / 16, kNBlocks = kKeys / 8;
  static_assert(kKeyGroups * kRowGroups == warps && kRows % 16 == 0 && kKeys % 32 == 0);
  using Ops = Products<Element>;
  using Tile = typename Ops::template Tile<width>;
  using Scores = float[kMBlocks][kNBlocks][4];
  using Features = FeatureState<false, typename MathOf<Element>::Math>;
  static constexpr int kStride = backward_bias_stride(tile_k);  // floats, of the tile of dBias in shared memory

  // A pair of tiles, and the first of `width` columns of its products.
  struct Step {
    i32 batch, head, row, tile, column;
    bool masked;
  };

  const BackwardBiasParams& params;
  const BackwardParams& p;
  u32 smem_q, smem_k, smem_d_o, smem_v;
  i32 lane, warp_row, warp_key;  // the first row and key of the warp in their tiles
  i32 batch_begin, batch_end, head_begin, head_end;
  i32 row_tile, key_tile;  // of dBias
  Scores sum;

  MICA_DEVICE Band band_in(const Sequence& s) const { return band_of(p.band, s.len_q, s.len_k); }
  MICA_DEVICE bool is_done(const Step& step) const { return step.batch == batch_end; }

  // The key tiles that the queries from step.row on see, of those that are the block's.
  MICA_DEVICE TileRange tiles_of(const Step& step) const {
    const Sequence sequence = sequence_of(p.sequences, step.batch);
    if (step.row >= sequence.len_q) return TileRange{0, 0, 0, 0};
    TileRange tiles = key_tiles(band_in(sequence), step.row, min_of(step.row + tile_q, sequence.len_q), tile_k);
    if (params.keys > 1) {
      tiles.begin = max_of(tiles.begin, key_tile);
      tiles.end = min_of(tiles.end, key_tile + 1);
    }
    return tiles;
  }
  // Key tiles, then query tiles, then heads, then sequences.
  MICA_DEVICE Step first_step() const {
    return settled(Step{batch_begin, head_begin, params.rows > 1 ? row_tile * tile_q : 0, 0, 0, false});
  }
  MICA_DEVICE Step step_after(Step step) const {
    step.column += width;
    if (step.column < max_of(p.dim_qk, p.dim_v)) return step;
    step.column = 0;
    ++step.tile;
    return settled(step);
  }
  // The step itself if it has a key tile, or the next one that has.
  MICA_DEVICE Step settled(Step step) const {
    while (!is_done(step)) {
      const TileRange tiles = tiles_of(step);
      step.tile = max_of(step.tile, tiles.begin);
      step.masked = step.tile < tiles.full_begin || step.tile >= tiles.full_end;
      if (step.tile < tiles.end) break;
      step.tile = 0;
      step.row += tile_q;
      if (params.rows == 1 && step.row < p.sequences.slot_len_q) continue;
      step.row = params.rows > 1 ? row_tile * tile_q : 0;
      if (++step.head < head_end) continue;
      step.head = head_begin;
      ++step.batch;
    }
    return step;
  }

  // `width` columns from `column` on; none where they are past the last.
  template <int rows>
  MICA_DEVICE void load(u32 shared, const RowsArg& tensor, i64 offset, i32 valid_rows, i32 column, i32 dim) const {
    constexpr int kHalves = Ops::kHalves;
    using Copy = TileCopy<kHalves * width, rows, kThreads>;
    if (column >= dim) return;
    const u16* global = static_cast<const u16*>(tensor.data) + (offset + column) * kHalves;
    const i64 stride = tensor.stride_row * kHalves;
    const i32 valid_dim = (dim - column) * kHalves;
    const bool aligned = !(p.features & kFeatureUnaligned);
    if (Copy::kRegular && aligned && valid_rows >= rows && valid_dim >= kHalves * width)
      Copy::copy(shared + Copy::shared_offset(), global + Copy::global_offset(stride), stride);
    else
      load_tile_by_rows<kHalves * width, rows, kThreads>(
          shared, [&](i32 row) { return global + row * stride; }, aligned, valid_rows, valid_dim);
  }
  MICA_DEVICE void load_pair(u32 query_tile, const RowsArg& queries, u32 key_tile_, const RowsArg& keys, i32 dim,
                             const Step& step) const {
    const Sequence s = sequence_of(p.sequences, step.batch);
    const i32 key = step.tile * tile_k;
    load<tile_q>(
        query_tile, queries,
        step.head * queries.stride_head + query_row_offset(s, step.row, queries.stride_batch, queries.stride_row),
        s.len_q - step.row, step.column, dim);
    load<tile_k>(
        key_tile_, keys,
        step.head / p.group * keys.stride_head + s.k_slot * keys.stride_batch + (s.k_begin + key) * keys.stride_row,
        s.len_k - key, step.column, dim);
    cp_async_commit();
  }

  // What a pair of tiles needs beside the products, fetched before them: statistics of the lane's rows, and a 16-bit
  // bias where nothing else is added to the scores and the tile lies inside it.
  struct Ahead {
    float lse[kMBlocks][2], delta[kMBlocks][2];
    bool has_bias;
    u32 bias[kMBlocks][2][kNBlocks];  // two keys each
  };
  MICA_DEVICE void fetch(Ahead& ahead, const Step& step) const {
    const Sequence sequence = sequence_of(p.sequences, step.batch);
    const i32 first_row = step.row + warp_row + lane / 4, key = step.tile * tile_k;
    const i64 stat = step.head * p.stat_rows + sequence.q_slot * i64(p.sequences.slot_len_q) + sequence.q_begin;
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const i32 row = first_row + m * 16 + half * 8;
        const bool inside = row < sequence.len_q;
        ahead.lse[m][half] = inside ? p.row_lse[stat + row] : infinity();
        ahead.delta[m][half] = inside ? p.row_delta[stat + row] : 0.0f;
      }
    ahead.has_bias =
        p.bias.vectorised_by_2 && p.bias.dtype != MICA_FP32 && !(p.features & (kFeatureAlibi | kFeatureBoolean)) &&
        step.row + tile_q <= min_of(p.bias.rows, sequence.len_q) && key + tile_k <= min_of(p.bias.keys, sequence.len_k);
    if (!ahead.has_bias) return;
    const u16* bias = static_cast<const u16*>(p.bias.data) + step.batch * p.bias.stride_batch +
                      step.head * p.bias.stride_head + first_row * p.bias.stride_row + key + warp_key + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < kNBlocks; ++n)
          ahead.bias[m][half][n] =
              *reinterpret_cast<const u32*>(bias + (m * 16 + half * 8) * p.bias.stride_row + n * 8);
  }

  // S becomes P.
  MICA_DEVICE void weigh(Scores& s, const Ahead& ahead, const Step& step) const {
    const Band band = band_in(sequence_of(p.sequences, step.batch));
    const i32 query_begin = step.row + warp_row, key_begin = step.tile * tile_k + warp_key;
    Features features;
    features.begin(p, step.batch, step.head);
    if (!ahead.has_bias) {
      features.score(s, p, band, step.batch, step.head, query_begin, key_begin);
    } else {
      features.scale(s, p);
      if (p.bias.dtype == MICA_BF16)
        add_bias_of<Bf16>(s, ahead);
      else
        add_bias_of<Fp16>(s, ahead);
    }
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (step.masked) {
          const Range keys = keys_of_row(band, query_begin + m * 16 + half * 8 + lane / 4);
          const i32 first = key_begin + 2 * (lane % 4);
          hide_outside<kNBlocks>(s[m], half, keys.begin - first, keys.end - first);
        }
#pragma unroll
        for (int n = 0; n < kNBlocks; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) s[m][n][e] = ex2_approx(s[m][n][e] - ahead.lse[m][half]);
      }
  }
  template <class Type>
  static MICA_DEVICE void add_bias_of(Scores& s, const Ahead& ahead) {
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < kNBlocks; ++n) {
          const float2 two = unpack<Type>(ahead.bias[m][half][n]);
          s[m][n][2 * half] = add_bias<FloatMath>(s[m][n][2 * half], two.x);
          s[m][n][2 * half + 1] = add_bias<FloatMath>(s[m][n][2 * half + 1], two.y);
        }
  }

  // Adds dS = P (dP - delta).
  MICA_DEVICE void add_gradient(const Scores& probability, Scores& dp, const Ahead& ahead, const Step& step) {
    if (p.features & kFeatureDropout) {
      Features features;
      features.begin(p, step.batch, step.head);
      for_each(dp, [&](float& x) { x *= p.dropout.rescale; });
      features.template for_each_dropped<kMBlocks, kNBlocks>(p, step.batch, step.head, step.row + warp_row,
                                                             step.tile * tile_k + warp_key,
                                                             [&](int m, int n, int e) { dp[m][n][e] = 0.0f; });
    }
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m)
#pragma unroll
      for (int n = 0; n < kNBlocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sum[m][n][e] = fmaf(probability[m][n][e], dp[m][n][e] - ahead.delta[m][e / 2], sum[m][n][e]);
  }
  template <class Function>
  static MICA_DEVICE void for_each(Scores& x, Function function) {
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m)
#pragma unroll
      for (int n = 0; n < kNBlocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) function(x[m][n][e]);
  }

  // Every pair of tiles of the block.
  MICA_DEVICE void add_all() {
    const i32 columns = max_of(p.dim_qk, p.dim_v);
    Step next = first_step();
    if (!is_done(next)) load_pair(smem_q, p.q, smem_k, p.k, p.dim_qk, next);
    cp_async_wait<0>();
    __syncthreads();
    Scores s, dp;
    Ahead ahead;
#pragma unroll 1
    while (!is_done(next)) {
      const Step step = next;
      const bool is_last = step.column + width >= columns;  // of the pair's columns
      load_pair(smem_d_o, p.d_o, smem_v, p.v, p.dim_v, step);
      if (is_last) fetch(ahead, step);
      if (step.column == 0) zero(s);
      if (step.column < p.dim_qk) Ops::template add_rows<width>(s, smem_q, warp_row, smem_k, warp_key);
      if (is_last) weigh(s, ahead, step);
      cp_async_wait<0>();
      __syncthreads();
      next = step_after(step);
      if (!is_done(next)) load_pair(smem_q, p.q, smem_k, p.k, p.dim_qk, next);
      if (step.column == 0) zero(dp);
      if (step.column < p.dim_v) Ops::template add_rows<width>(dp, smem_d_o, warp_row, smem_v, warp_key);
      if (is_last) add_gradient(s, dp, ahead, step);
      cp_async_wait<0>();
      __syncthreads();
    }
  }

  MICA_DEVICE void run(u8* smem) {
    const i32 warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    warp_row = warp % kRowGroups * kRows;
    warp_key = warp / kRowGroups * kKeys;
    smem_q = shared_address(smem);
    constexpr BackwardBiasLayout kAt =
        backward_bias_layout(tile_q, tile_k, width, dtype_bytes(ElementTraits<Element>::kDtype));
    static_assert(kAt.k == tile_q * Tile::kRowBytes && kAt.d_o - kAt.k == tile_k * Tile::kRowBytes);
    smem_k = smem_q + kAt.k;
    smem_d_o = smem_q + kAt.d_o;
    smem_v = smem_q + kAt.v;
    zero(sum);
    const i32 tiles_row = ceil_div(params.rows, tile_q), tiles_key = ceil_div(params.keys, tile_k);
    i32 index = blockIdx.x;
    key_tile = index % tiles_key;
    index /= tiles_key;
    row_tile = index % tiles_row;
    index /= tiles_row;
    const i32 out_head = index % params.heads, out_batch = index / params.heads;
    batch_begin = params.batch == 1 ? 0 : out_batch;
    batch_end = params.batch == 1 ? p.batch : out_batch + 1;
    head_begin = params.heads == 1 ? 0 : out_head;
    head_end = params.heads == 1 ? p.heads_q : out_head + 1;
    add_all();
    store(reinterpret_cast<float*>(smem), out_batch * params.stride_batch + out_head * params.stride_head);
  }

  // Through shared memory (tile_q x tile_k), so that each element of dBias is summed over its broadcast axes and
  // written by one thread, or eight neighbours of a row are.
  MICA_DEVICE void store(float* tile, i64 offset) const {
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m)
#pragma unroll
      for (int n = 0; n < kNBlocks; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<float2*>(tile + (warp_row + m * 16 + half * 8 + lane / 4) * kStride + warp_key + n * 8 +
                                     lane % 4 * 2) = make_float2(sum[m][n][2 * half], sum[m][n][2 * half + 1]);
    __syncthreads();
    const i32 row_begin = row_tile * tile_q, key_begin = key_tile * tile_k;
    if (params.vectorised_by_8) {
      for (i32 i = threadIdx.x; i < tile_q * (tile_k / 8); i += kThreads) {
        const i32 row = i / (tile_k / 8), key = i % (tile_k / 8) * 8;
        if (row_begin + row < params.rows && key_begin + key < params.keys)
          store_eight(offset + (row_begin + row) * params.stride_row + key_begin + key, tile + row * kStride + key);
      }
      return;
    }
    const i32 rows = params.rows == 1 ? 1 : tile_q, keys = params.keys == 1 ? 1 : tile_k;
    const i32 rows_each = tile_q / rows, keys_each = tile_k / keys;
    for (i32 i = threadIdx.x; i < rows * keys; i += kThreads) {
      const i32 row = i / keys, key = i % keys;
      if (row_begin + row >= params.rows || key_begin + key >= params.keys) continue;
      float total = 0;
      for (i32 r = 0; r < rows_each; ++r)
        for (i32 k = 0; k < keys_each; ++k) total += tile[(row + r) * kStride + key + k];
      store_float(params.d_bias, offset + (row_begin + row) * params.stride_row + (key_begin + key) * params.stride_key,
                  params.dtype, total);
    }
  }
  MICA_DEVICE void store_eight(i64 index, const float* x) const {
    const float4 a = *reinterpret_cast<const float4*>(x), b = *reinterpret_cast<const float4*>(x + 4);
    if (params.dtype == MICA_FP32) {
      float4* to = reinterpret_cast<float4*>(static_cast<float*>(params.d_bias) + index);
      to[0] = a;
      to[1] = b;
    } else {
      uint4* to = reinterpret_cast<uint4*>(static_cast<u16*>(params.d_bias) + index);
      *to = params.dtype == MICA_BF16 ? packed<Bf16>(a, b) : packed<Fp16>(a, b);
    }
  }
  template <class Type>
  static MICA_DEVICE uint4 packed(const float4& a, const float4& b) {
    return make_uint4(pack<Type>(a.x, a.y), pack<Type>(a.z, a.w), pack<Type>(b.x, b.y), pack<Type>(b.z, b.w));
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
