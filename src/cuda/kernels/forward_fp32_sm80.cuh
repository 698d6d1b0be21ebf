// SPDX-License-Identifier: Apache-2.0
// Attention in fp32 on tensor cores by tf32x3 (device/products.cuh). A warp owns 16 or 32 rows and dim_v / kColumnWarps
// columns of V; rows are packed as in decode, and one stage of K and V serves every head dimension. Splitting K and V
// into their tf32 parts costs half as much with 32 rows, so a tile has them where the accumulators fit. With a second
// query (QvParams) a row of Q is q's and then qv's, and a row of K is k's and then v's.
#pragma once

#include "device/products.cuh"
#include "kernels/parts/qv_rows.cuh"

namespace mica {

template <class Params, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, bool full>
struct ForwardFp32Sm80 {
  using Joined = JoinedRow<float>;
  // A row of fp32 is swizzled like a row of twice as many 16-bit elements: a chunk is four columns, and ldmatrix hands
  // lane l element l % 4 of a chunk of row l / 4, which is how tf32 operands lie.
  using QTile = SharedTile<2 * dim_qk>;
  static constexpr int kVStride = forward_fp32_v_stride(dim_v);                     // floats
  static constexpr int kMBlocks = tile_q > 16 * warps ? tile_q / (16 * warps) : 1;  // of 16 rows, of a warp
  static constexpr int kRowWarps = tile_q / (16 * kMBlocks);
  static constexpr int kColumnWarps = warps / kRowWarps;
  static constexpr int kColumns = dim_v / kColumnWarps;
  static constexpr int kSteps = tile_k % 16 == 0 ? 2 : 1;  // of eight keys, that P V takes at a time
  static_assert(kRowWarps * kColumnWarps == warps && tile_k % 8 == 0 && kColumns % 8 == 0 && dim_qk % 32 == 0);

  using Tile = PackedRows<float, full ? serves::FULL : serves::PLAIN>;
  using Parts = typename Tile::template Parts<1, tile_q, decode_part_stride(dim_v)>;
  using Scores = float[kMBlocks][tile_k / 8][4];

  const Params& p;
  Tile rows;
  const float* k_base;  // key 0, or page 0
  const float* v_base;
  u32 smem_q, smem_k, q_lane, k_lane;
  float* v_tile;          // (tile_k, kVStride)
  const float* v_thread;  // this lane's first element of it
  i32 first_row;          // of the warp, in the tile
  SoftmaxState<FloatMath> state[kMBlocks][2];
  float out[kMBlocks][kColumns / 8][4];

  // Copies `num_rows` rows of up to dim columns; a row for which row_at(r) is null, and what is past valid_dim, becomes
  // zeros. shared_at(r, chunk) is where a chunk of four columns goes. A warp copies whole rows.
  template <int dim, int num_rows, class RowAt, class SharedAt>
  MICA_DEVICE void load_rows(i32 valid_dim, RowAt row_at, SharedAt shared_at) const {
    const i32 lane = threadIdx.x % 32;
#pragma unroll 2
    for (int r = threadIdx.x / 32; r < num_rows; r += warps) {
      const float* from = row_at(r);
      for (int chunk = lane; chunk < dim / 4; chunk += 32) {
        const u32 to = shared_at(r, chunk);
        if (!rows.has(kFeatureUnaligned)) {
          const bool inside = from && chunk * 4 < valid_dim;
          cp_async_16(to, inside ? from + chunk * 4 : static_cast<const float*>(p.q.data), inside ? 16 : 0);
        } else {
          u32 words[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) words[e] = from && chunk * 4 + e < valid_dim ? bits_of(from[chunk * 4 + e]) : 0u;
          store_shared_16(to, words);
        }
      }
    }
  }
  // The same of rows (JoinedRow) of two tensors, of Q or K.
  template <int num_rows, class RowAt>
  MICA_DEVICE void load_joined(u32 shared, RowAt row_at) const {
#pragma unroll 1
    for (int r = threadIdx.x / 32; r < num_rows; r += warps) {
      const Joined from = row_at(r);
      for (int chunk = threadIdx.x % 32; chunk < dim_qk / 4; chunk += 32) {
        const u32 to = shared + QTile::offset(r, chunk);
        if (!rows.has(kFeatureUnaligned)) {
          const bool inside = from.has(chunk * 4);
          cp_async_16(to, inside ? from.at(chunk * 4) : static_cast<const float*>(p.q.data), inside ? 16 : 0);
        } else {
          u32 words[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) words[e] = from.has(chunk * 4 + e) ? bits_of(*from.at(chunk * 4 + e)) : 0u;
          store_shared_16(to, words);
        }
      }
    }
  }
  MICA_DEVICE const float* key_at(const RowsArg& a, const float* base, i32 key) const {
    if (key >= rows.sequence.len_k) return nullptr;
    if (!rows.has(kFeaturePaged)) return base + key * a.stride_row;
    return base + key_row_offset(p.sequences, rows.sequence, rows.batch_index, key, a.stride_batch, a.stride_row);
  }
  MICA_DEVICE void load_q() const {
    if constexpr (kHasQv<Params>)
      return load_joined<tile_q>(smem_q, [&](i32 r) {
        const auto where = rows.row_at(r);
        const bool used = where.query < rows.sequence.len_q;
        return Joined{used ? rows.q_row(where) : nullptr, qv_row(rows, p.qv, where), key_columns(p), p.dim_qk};
      });
    load_rows<dim_qk, tile_q>(
        p.dim_qk,
        [&](i32 r) {
          const auto where = rows.row_at(r);
          return where.query < rows.sequence.len_q ? rows.q_row(where) : nullptr;
        },
        [&](i32 r, i32 chunk) { return smem_q + QTile::offset(r, chunk); });
  }
  MICA_DEVICE void load_k(i32 tile) const {
    if constexpr (kHasQv<Params>)
      return load_joined<tile_k>(smem_k, [&](i32 r) {
        return Joined{key_at(p.k, k_base, tile * tile_k + r), key_at(p.v, v_base, tile * tile_k + r), key_columns(p),
                      p.dim_qk};
      });
    load_rows<dim_qk, tile_k>(
        p.dim_qk, [&](i32 r) { return key_at(p.k, k_base, tile * tile_k + r); },
        [&](i32 r, i32 chunk) { return smem_k + QTile::offset(r, chunk); });
  }
  MICA_DEVICE void load_v(i32 tile) const {
    const u32 shared = shared_address(v_tile);
    load_rows<dim_v, tile_k>(
        p.dim_v, [&](i32 r) { return key_at(p.v, v_base, tile * tile_k + r); },
        [&](i32 r, i32 chunk) { return shared + (r * kVStride + chunk * 4) * 4; });
  }

  // Sixteen columns of Q and K at a time: two k8 steps, whose operands of eight keys one ldmatrix brings.
  MICA_DEVICE void gemm_qk(Scores& scores) const {
    zero(scores);
#pragma unroll 1
    for (int pair = 0; pair < dim_qk / 16; ++pair) {
      OperandA<float> a[kMBlocks][2];
#pragma unroll
      for (int m = 0; m < kMBlocks; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          u32 words[4];
          ldmatrix_x4(words, QTile::step(q_lane, 2 * pair + half) + m * 16 * QTile::kRowBytes);
#pragma unroll
          for (int i = 0; i < 4; ++i) a[m][half].set(i, words[i]);
        }
#pragma unroll
      for (int n = 0; n < tile_k / 8; ++n) {
        u32 words[4];
        ldmatrix_x4(words, QTile::step(k_lane, 2 * pair) + n * 8 * QTile::kRowBytes);
        Split b[2][2];
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i / 2][i % 2] = split_tf32(float_of(words[i]));
#pragma unroll
        for (int m = 0; m < kMBlocks; ++m) OperandA<float>::add_product<2>(scores[m][n], {&a[m][0], &a[m][1]}, b);
      }
    }
  }

  // A lane's scores are those of keys 2t and 2t + 1 of each eight; the product takes them as its k = t and k = t + 4,
  // and V's rows in the same order.
  MICA_DEVICE void gemm_pv(const Scores& probabilities) {
#pragma unroll
    for (int first = 0; first < tile_k / 8; first += kSteps) {
      OperandA<float> a[kMBlocks][kSteps];
#pragma unroll
      for (int m = 0; m < kMBlocks; ++m)
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          const float(&p)[4] = probabilities[m][first + i];
          a[m][i].set(0, bits_of(p[0]));
          a[m][i].set(1, bits_of(p[2]));
          a[m][i].set(2, bits_of(p[1]));
          a[m][i].set(3, bits_of(p[3]));
        }
      const float* v = v_thread + first * 8 * kVStride;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        Split b[kSteps][2];
#pragma unroll
        for (int i = 0; i < 2 * kSteps; ++i) b[i / 2][i % 2] = split_tf32(v[(i / 2 * 8 + i % 2) * kVStride + n * 8]);
#pragma unroll
        for (int m = 0; m < kMBlocks; ++m)
          if constexpr (kSteps == 2)
            OperandA<float>::add_product<2>(out[m][n], {&a[m][0], &a[m][1]}, b);
          else
            OperandA<float>::add_product<1>(out[m][n], {&a[m][0]}, b);
      }
    }
  }

  // Scores to probabilities.
  MICA_DEVICE void weigh(Scores& scores, i32 key_begin, bool masked) {
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) {
      if (kMBlocks > 1 && (masked || (full && p.features))) rows.begin_rows(first_row + m * 16);
      rows.score(scores[m], key_begin);
      if (masked) rows.mask(scores[m], key_begin);
      rows.softmax(scores[m], state[m], out[m]);
      rows.drop(scores[m], key_begin);
    }
  }

  // V arrives during the first product, the next K during the second.
  MICA_DEVICE void attend(const TileRange& tiles, const Range& own) {
    if (own.begin < own.end) load_k(own.begin);
    cp_async_commit();
#pragma unroll 1
    for (i32 tile = own.begin; tile < own.end; ++tile) {
      Scores scores;
      cp_async_wait<0>();
      __syncthreads();
      load_v(tile);
      cp_async_commit();
      gemm_qk(scores);
      weigh(scores, tile * tile_k, tile < tiles.full_begin || tile >= tiles.full_end);
      cp_async_wait<0>();
      __syncthreads();
      if (tile + 1 < own.end) load_k(tile + 1);
      cp_async_commit();
      gemm_pv(scores);
    }
  }

  MICA_DEVICE void run(u8* smem) {
    if (!rows.locate(tile_q)) return;
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i32 first_column = warp / kRowWarps * kColumns;
    first_row = warp % kRowWarps * (16 * kMBlocks);
    smem_q = shared_address(smem);
    constexpr ForwardFp32Sm80Layout kAt = forward_fp32_sm80_layout(tile_q, tile_k, dim_qk, dim_v);
    static_assert(kAt.k == tile_q * QTile::kRowBytes && kAt.v - kAt.k == tile_k * QTile::kRowBytes);
    smem_k = smem_q + kAt.k;
    v_tile = reinterpret_cast<float*>(smem + kAt.v);
    q_lane = smem_q + QTile::offset(first_row + lane % 16, lane / 16);
    k_lane = smem_k + QTile::offset(lane % 8, lane / 8);
    v_thread = v_tile + 2 * (lane % 4) * kVStride + first_column + lane / 4;
    k_base = rows.key_base(p.k);
    v_base = rows.key_base(p.v);
    rows.begin_rows(first_row);
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) state[m][0] = state[m][1] = empty_state<FloatMath>();
    zero(out);
    const TileRange tiles = rows.touched(tile_k);
    load_q();  // in the group of the first K
    attend(tiles, rows.share_of(tiles));

    cp_async_wait<0>();
    __syncthreads();  // Q, K and V have been read
    const Parts parts(smem);
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) parts.store(0, first_row + m * 16, first_column, state[m], out[m]);
    __syncthreads();
    for (i32 index = threadIdx.x; index < rows.rows * (dim_v / 4); index += 32 * warps)
      rows.join(parts, index / (dim_v / 4), index % (dim_v / 4) * 4);
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::RowParams<MICA_QV> params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  static_assert(MICA_STAGES == 1);
  using Kernel = mica::ForwardFp32Sm80<mica::RowParams<MICA_QV>, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K,
                                       MICA_WARPS, MICA_FULL>;
  Kernel kernel{params, {params}};
  kernel.run(smem);
}
