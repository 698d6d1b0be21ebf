// SPDX-License-Identifier: Apache-2.0
// Backward attention with mma.sync. A block owns tile_k keys of one key head and walks the query tiles that see them,
// for every query head of the group; dK and dV stay in registers, dQ is added to its accumulator in global memory.
//
// Scores are computed transposed (rows are keys), so that P^T and dS^T have the shape of the A operand of dV and dK.
// Warps form key_groups x column_groups: a warp computes the scores of its 32 keys and its share of the queries, hands
// P and dS over through shared memory, and then sums dV and dK of its 32 keys and its share of the columns:
//
//   S^T = K Q^T      dP^T = V dO^T        | own keys, own queries
//   P^T, dS^T -> shared memory; barrier
//   dV += P^T dO     dK += dS^T Q         | own keys, own columns
//   dQ = dS K        added to global      | own rows, own columns
#pragma once

#include "device/attend.cuh"
#include "device/dq_accumulator.cuh"
#include "device/features.cuh"
#include "device/mma.cuh"
#include "device/shared_tile.cuh"
#include "kernels/params.h"

namespace mica {

template <class Element_, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, bool full>
struct BackwardSm80 {
  using Element = Element_;
  static constexpr int kThreads = 32 * warps;
  static constexpr int kKeyGroups = tile_k / 32;
  static constexpr int kColumnGroups = warps / kKeyGroups;
  static constexpr int kQueries = tile_q / kColumnGroups;  // of a warp's scores
  static constexpr int kColumnsQK = dim_qk / kColumnGroups, kColumnsV = dim_v / kColumnGroups;
  static constexpr int kRowGroups = tile_q / 32;                    // of dQ
  static constexpr int kColumnsDQ = dim_qk / (warps / kRowGroups);  // of a warp's dQ
  static constexpr bool kFull = full;
  static_assert(kKeyGroups * kColumnGroups == warps && kQueries % 16 == 0 && kColumnsQK % 16 == 0 &&
                kColumnsV % 16 == 0 && kColumnsDQ % 16 == 0 && warps % kRowGroups == 0);

  using Scores = float[2][kQueries / 8][4];
  using QTile = SharedTile<dim_qk>;
  using VTile = SharedTile<dim_v>;
  using PTile = SharedTile<tile_q>;

  const BackwardParams& p;
  Sequence sequence;
  Band band;
  i32 batch_index, head, head_k, key_begin;
  i32 lane, key_group, column_group;
  u32 smem_k, smem_v, smem_q, smem_do, smem_p, smem_ds;
  float* stats;  // [2][2][tile_q]: stage, then lse and delta
  FeatureState<true> features;
  float dk[2][kColumnsQK / 8][4], dv[2][kColumnsV / 8][4];

  template <int dim, int rows>
  MICA_DEVICE void load(u32 shared, const RowsArg& tensor, i64 offset, i32 valid_rows, i32 valid_dim) {
    const u16* global = static_cast<const u16*>(tensor.data) + offset;
    using Copy = TileCopy<dim, rows, kThreads>;
    if (kFull && (p.features & kFeatureUnaligned))
      load_tile_by_rows<dim, rows, kThreads>(
          shared, [&](i32 row) { return global + row * tensor.stride_row; }, false, valid_rows, valid_dim);
    else if (Copy::kRegular && valid_rows >= rows && valid_dim == dim)
      Copy::copy(shared + Copy::shared_offset(), global + Copy::global_offset(tensor.stride_row), tensor.stride_row);
    else
      load_tile<dim, rows, kThreads>(shared, global, tensor.stride_row, valid_rows, valid_dim);
  }

  // Q, dO and the statistics of one query tile of the current head.
  MICA_DEVICE void load_queries(i32 head_q, i32 tile, i32 stage) {
    const i32 row = tile * tile_q, valid = sequence.len_q - row;
    load<dim_qk, tile_q>(smem_q + stage * tile_q * QTile::kRowBytes, p.q,
                         head_q * p.q.stride_head + query_row_offset(sequence, row, p.q.stride_batch, p.q.stride_row),
                         valid, p.dim_qk);
    load<dim_v, tile_q>(
        smem_do + stage * tile_q * VTile::kRowBytes, p.d_o,
        head_q * p.d_o.stride_head + query_row_offset(sequence, row, p.d_o.stride_batch, p.d_o.stride_row), valid,
        p.dim_v);
    const i64 stat = head_q * p.stat_rows + sequence.q_slot * i64(p.sequences.slot_len_q) + sequence.q_begin + row;
    for (int i = threadIdx.x; i < tile_q; i += kThreads) {
      stats[(stage * 2) * tile_q + i] = i < valid ? p.row_lse[stat + i] : infinity();
      stats[(stage * 2 + 1) * tile_q + i] = i < valid ? p.row_delta[stat + i] : 0.0f;
    }
  }

  // c(32 x n) += a(32 x depth) b(depth x n); A as rows of shared memory, B as rows (n x depth).
  template <int dim, int n>
  MICA_DEVICE void gemm_rows(float (&c)[2][n / 8][4], u32 a_address, u32 b_address) const {
    using Tile = SharedTile<dim>;
#pragma unroll
    for (int step = 0; step < dim / 16; ++step) {
      u32 a[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) ldmatrix_x4(a[m], Tile::step(a_address, step) + m * 16 * Tile::kRowBytes);
#pragma unroll
      for (int i = 0; i < n / 16; ++i) {
        u32 b[4];
        ldmatrix_x4(b, Tile::step(b_address, step) + i * 16 * Tile::kRowBytes);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma_m16n8k16<Element>(c[m][2 * i], a[m], b[0], b[1]);
          mma_m16n8k16<Element>(c[m][2 * i + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // c(32 x n) += a(32 x depth) b(depth x n); B as (depth x dim), of which n columns from b_address on.
  // a_trans: A lies as (depth x rows).
  template <int a_dim, int b_dim, int depth, bool a_trans, int n>
  MICA_DEVICE void gemm_columns(float (&c)[2][n / 8][4], u32 a_address, u32 b_address) const {
    using ATile = SharedTile<a_dim>;
    using BTile = SharedTile<b_dim>;
#pragma unroll
    for (int step = 0; step < depth / 16; ++step) {
      u32 a[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m)
        if constexpr (a_trans)
          ldmatrix_x4_trans(a[m], ATile::step(a_address, m) + step * 16 * ATile::kRowBytes);
        else
          ldmatrix_x4(a[m], ATile::step(a_address, step) + m * 16 * ATile::kRowBytes);
#pragma unroll
      for (int i = 0; i < n / 16; ++i) {
        u32 b[4];
        ldmatrix_x4_trans(b, BTile::step(b_address, i) + step * 16 * BTile::kRowBytes);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma_m16n8k16<Element>(c[m][2 * i], a[m], b[0], b[1]);
          mma_m16n8k16<Element>(c[m][2 * i + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // Lane's row and chunk for an operand whose rows go down the lanes 0..15 (A as rows, B by columns), and for one whose
  // second eight rows are lanes 16..23 (B as rows, A transposed).
  template <class Tile>
  MICA_DEVICE u32 by_sixteen(i32 row, i32 chunk) const {
    return Tile::offset(row + lane % 16, chunk + lane / 16);
  }
  template <class Tile>
  MICA_DEVICE u32 by_eight(i32 row, i32 chunk) const {
    return Tile::offset(row + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2);
  }

  // Hides what the band hides: rows of the fragment are keys, so the transposed band gives the queries each one sees.
  MICA_DEVICE void mask(Scores& scores, i32 query_begin) const {
    const Band transposed = transpose(band);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const i32 key = key_begin + key_group * 32 + m * 16 + half * 8 + lane / 4;
        Range queries = keys_of_row(transposed, key);
        if (key >= sequence.len_k) queries = Range{0, 0};
        const i32 first = query_begin + lane % 4 * 2;
        hide_outside<kQueries / 8>(scores[m], half, queries.begin - first, queries.end - first);
      }
  }

  MICA_DEVICE void store_transposed(u32 tile, const Scores& x) const {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < kQueries / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          store_shared_4(
              tile + PTile::offset(key_group * 32 + m * 16 + half * 8 + lane / 4, column_group * (kQueries / 8) + n) +
                  lane % 4 * 4,
              pack<Element>(x[m][n][2 * half], x[m][n][2 * half + 1]));
  }

  // P^T and dS^T of one query tile, into shared memory.
  MICA_DEVICE void probabilities(i32 tile, i32 stage, bool masked) {
    const i32 query_in_tile = column_group * kQueries;
    const i32 query_begin = tile * tile_q + query_in_tile;
    Scores s, dp;
    zero(s);
    gemm_rows<dim_qk, kQueries>(s, smem_k + by_sixteen<QTile>(key_group * 32, 0),
                                smem_q + stage * tile_q * QTile::kRowBytes + by_eight<QTile>(query_in_tile, 0));
    Scores slope;  // d score / d product
    if constexpr (kFull) {
      if (p.features & kFeatureSoftcap) {
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int n = 0; n < kQueries / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e)
              slope[m][n][e] = score_derivative<FloatMath>(p.score, s[m][n][e]) / p.score.scale;
      }
      features.score(s, p, band, batch_index, head, query_begin, key_begin + key_group * 32);
    }
    if (masked) mask(s, query_begin);
    const float scale = kFull ? 1.0f : p.score.scale_log2;
    const float* lse = stats + stage * 2 * tile_q + query_in_tile;
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n) {
      const float2 row_lse = *reinterpret_cast<const float2*>(lse + n * 8 + lane % 4 * 2);
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n][e] = ex2_approx(fmaf(s[m][n][e], scale, -(e % 2 ? row_lse.y : row_lse.x)));
    }
    zero(dp);
    gemm_rows<dim_v, kQueries>(dp, smem_v + by_sixteen<VTile>(key_group * 32, 0),
                               smem_do + stage * tile_q * VTile::kRowBytes + by_eight<VTile>(query_in_tile, 0));
    if constexpr (kFull) {
      if (p.features & kFeatureDropout) {
        // The undropped probability is still needed for dS: the dropped one gets a sign, taken off below.
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int n = 0; n < kQueries / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) dp[m][n][e] *= p.dropout.rescale;
        features.template for_each_dropped<2, kQueries / 8>(p, batch_index * p.heads_q + head, query_begin,
                                                            key_begin + key_group * 32, [&](int m, int n, int e) {
                                                              dp[m][n][e] = 0.0f;
                                                              s[m][n][e] = -s[m][n][e];
                                                            });
      }
    }
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n) {
      const float2 delta = *reinterpret_cast<const float2*>(lse + tile_q + n * 8 + lane % 4 * 2);
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float probability = kFull ? fabsf(s[m][n][e]) : s[m][n][e];
          dp[m][n][e] = probability * (dp[m][n][e] - (e % 2 ? delta.y : delta.x));
          if constexpr (kFull) {
            if (p.features & kFeatureSoftcap) dp[m][n][e] *= slope[m][n][e];
            if (p.features & kFeatureDropout) s[m][n][e] = fmaxf(s[m][n][e], 0.0f) * p.dropout.rescale;
          }
        }
    }
    store_transposed(smem_p, s);
    store_transposed(smem_ds, dp);
  }

  // dQ of one query tile from this block's keys.
  MICA_DEVICE void add_dq(i32 tile) const {
    const i32 warp = threadIdx.x / 32;
    const i32 row_group = warp % kRowGroups, columns = warp / kRowGroups;
    float dq[2][kColumnsDQ / 8][4];
    zero(dq);
    gemm_columns<tile_q, dim_qk, tile_k, true, kColumnsDQ>(dq, smem_ds + by_eight<PTile>(0, row_group * 4),
                                                           smem_k + by_sixteen<QTile>(0, columns * (kColumnsDQ / 8)));
    if (p.dq_turns) wait_for_turn(tile);
    float* accumulator = p.dq_accumulator + dq_tile(tile) * (tile_q * dim_qk);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < kColumnsDQ / 8; ++n)
        reduce_add_4(
            accumulator + dq_accumulator_index<dim_qk>(row_group * 2 + m, columns * (kColumnsDQ / 8) + n, lane),
            dq[m][n]);
    if (p.dq_turns) hand_on_turn(tile);
  }

  // Deterministic: the key tiles that see a query tile add to it from the first to the last. A block waits only for
  // blocks with a smaller index, which have started before it.
  MICA_DEVICE void wait_for_turn(i32 tile) const {
    const i32 row = tile * tile_q;
    const i32 first = key_tiles(band, row, min_of(row + tile_q, sequence.len_q), tile_k).begin;
    if (threadIdx.x == 0)
      while (load_acquire(p.dq_turns + dq_tile(tile)) != key_begin / tile_k - first) __nanosleep(40);
    __syncthreads();
  }
  MICA_DEVICE void hand_on_turn(i32 tile) const {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) add_release(p.dq_turns + dq_tile(tile), 1);
  }
  MICA_DEVICE i64 dq_tile(i32 tile) const {
    const i32 before =
        p.packed_q ? packed_tile_begin(i32(sequence.q_begin), batch_index, tile_q) : batch_index * p.tiles_q;
    return i64(before + tile) * p.heads_q + head;
  }

  MICA_DEVICE void run(u8* smem) {
    lane = threadIdx.x % 32;
    key_group = threadIdx.x / 32 % kKeyGroups;
    column_group = threadIdx.x / 32 / kKeyGroups;
    i32 index = blockIdx.x;
    i32 tile = index % p.tiles_k;
    index /= p.tiles_k;
    head_k = index % p.heads_k;
    batch_index = index / p.heads_k;
    if (p.packed_k) {
      const QueryTile found = find_packed_tile(p.sequences.cu_seqlens_k, p.batch, p.sequences.total_k, tile_k, tile);
      batch_index = found.batch;
      tile = found.tile;
    }
    sequence = sequence_of(p.sequences, batch_index);
    key_begin = tile * tile_k;
    if (key_begin >= sequence.slot_len_k - sequence.leftpad && tile > 0) return;
    band = Band{sequence.len_q, sequence.len_k, p.band.bottom_right ? sequence.len_k - sequence.len_q : 0,
                p.band.window_left, p.band.window_right};

    smem_k = shared_address(smem);
    smem_v = smem_k + tile_k * QTile::kRowBytes;
    smem_q = smem_v + tile_k * VTile::kRowBytes;
    smem_do = smem_q + stages * tile_q * QTile::kRowBytes;
    smem_p = smem_do + stages * tile_q * VTile::kRowBytes;
    smem_ds = smem_p + tile_k * PTile::kRowBytes;
    stats = reinterpret_cast<float*>(smem + (smem_ds - smem_k) + tile_k * PTile::kRowBytes);
    zero(dk);
    zero(dv);

    TileRange tiles = TileRange{0, 0, 0, 0};
    const i32 key_end = min_of(key_begin + tile_k, sequence.len_k);
    if (key_begin < key_end) tiles = key_tiles(transpose(band), key_begin, key_end, tile_q);
    // A key tile that is cut off has rows that no query sees: test everywhere.
    if (key_begin + tile_k > sequence.len_k) tiles.full_begin = tiles.full_end = tiles.begin;
    const i32 count = (tiles.end - tiles.begin) * p.group;
    if (count > 0) {
      load<dim_qk, tile_k>(smem_k, p.k, key_offset(p.k), sequence.len_k - key_begin, p.dim_qk);
      load<dim_v, tile_k>(smem_v, p.v, key_offset(p.v), sequence.len_k - key_begin, p.dim_v);
      // In turns, causal blocks meet at the last query tile first: from the first on, each would wait for all before
      // it.
      const bool descending = p.dq_turns && p.band.window_right < kUnlimited;
      const i32 from = descending ? tiles.end - 1 : tiles.begin, to = descending ? tiles.begin : tiles.end - 1;
      load_queries(head_k * p.group, from, 0);
      cp_async_commit();
      i32 query_tile = from, next_tile = from;
      head = head_k * p.group;
      i32 next_head = head;
      if constexpr (kFull) features.begin(p, batch_index, head);
      for (i32 step = 0; step < count; ++step) {
        if (next_tile == to) {
          next_tile = from;
          ++next_head;
        } else {
          next_tile += descending ? -1 : 1;
        }
        const i32 stage = step % stages;
        cp_async_wait<0>();
        __syncthreads();
        if (stages == 2 && step + 1 < count) load_queries(next_head, next_tile, (step + 1) % 2);
        cp_async_commit();
        probabilities(query_tile, stage, query_tile < tiles.full_begin || query_tile >= tiles.full_end);
        __syncthreads();
        gemm_columns<tile_q, dim_v, tile_q, false, kColumnsV>(
            dv, smem_p + by_sixteen<PTile>(key_group * 32, 0),
            smem_do + stage * tile_q * VTile::kRowBytes + by_sixteen<VTile>(0, column_group * (kColumnsV / 8)));
        gemm_columns<tile_q, dim_qk, tile_q, false, kColumnsQK>(
            dk, smem_ds + by_sixteen<PTile>(key_group * 32, 0),
            smem_q + stage * tile_q * QTile::kRowBytes + by_sixteen<QTile>(0, column_group * (kColumnsQK / 8)));
        if constexpr (stages == 1) {
          __syncthreads();
          if (step + 1 < count) load_queries(next_head, next_tile, 0);
          cp_async_commit();
        }
        if (p.dq_accumulator) add_dq(query_tile);
        query_tile = next_tile;
        if (kFull && head != next_head && step + 1 < count) features.begin(p, batch_index, next_head);
        head = next_head;
      }
    }
    finish();
  }

  MICA_DEVICE i64 key_offset(const RowsArg& t) const {
    return head_k * t.stride_head + sequence.k_slot * t.stride_batch + (sequence.k_begin + key_begin) * t.stride_row;
  }

  // dK and dV, element by element or in pairs; keys that are not in use get zeros, those in the left padding too.
  MICA_DEVICE void finish() {
    if (p.dk.data) {
      if (key_begin == 0) clear_leftpad(p.dk, p.dk_dtype, p.dim_qk);
      store_keys<kColumnsQK>(p.dk, p.dk_dtype, p.dim_qk, dk, p.score.scale);
    }
    if (p.dv.data) {
      if (key_begin == 0) clear_leftpad(p.dv, p.dv_dtype, p.dim_v);
      store_keys<kColumnsV>(p.dv, p.dv_dtype, p.dim_v, dv, 1.0f);
    }
  }
  MICA_DEVICE void clear_leftpad(const RowsArg& t, i32 dtype, i32 dim) const {
    const i64 base = key_offset(t) - sequence.leftpad * t.stride_row;
    for (i64 i = threadIdx.x; i < i64(sequence.leftpad) * dim; i += kThreads)
      store_float(t.data, base + i / dim * t.stride_row + i % dim, dtype, 0.0f);
  }
  template <int columns>
  MICA_DEVICE void store_keys(const RowsArg& t, i32 dtype, i32 dim, const float (&x)[2][columns / 8][4],
                              float scale) const {
    const i64 base = key_offset(t);
    const bool pairs = dtype == Element::kDtype && !(kFull && (p.features & kFeatureUnaligned));
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const i32 row = key_group * 32 + m * 16 + half * 8 + lane / 4;
        if (key_begin + row >= sequence.slot_len_k - sequence.leftpad) continue;
#pragma unroll
        for (int n = 0; n < columns / 8; ++n) {
          const i32 column = column_group * columns + n * 8 + lane % 4 * 2;
          const i64 at = base + row * t.stride_row + column;
          const float left = x[m][n][2 * half] * scale, right = x[m][n][2 * half + 1] * scale;
          if (pairs) {
            if (column < dim) *reinterpret_cast<u32*>(static_cast<u16*>(t.data) + at) = pack<Element>(left, right);
          } else {
            if (column < dim) store_float(t.data, at, dtype, left);
            if (column + 1 < dim) store_float(t.data, at + 1, dtype, right);
          }
        }
      }
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::BackwardParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::BackwardSm80<MICA_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS,
                                    MICA_STAGES, MICA_FULL>;
  Kernel kernel{params};
  kernel.run(smem);
}
