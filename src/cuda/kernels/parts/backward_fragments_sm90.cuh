// SPDX-License-Identifier: Apache-2.0
// What a consumer warpgroup of the backward kernels for Hopper does: the products, and P and dS between them. Fragments
// are 64 keys by tile_q queries, 16 keys of them in each warp.
#pragma once

#include "device/tma.cuh"
#include "kernels/parts/backward_ring_sm90.cuh"

namespace mica {

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, u32 served>
struct BackwardFragments : BackwardRing<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, served> {
  using Base = BackwardRing<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, served>;
  using Base::features;
  using Base::kDropout;
  using Base::key_begin;
  using Base::kScore;
  using Base::lane;
  using Base::p;
  using Base::room;
  using Base::sequence;
  using Base::smem_k;
  using typename Base::KTile;
  using typename Base::Operand;
  using typename Base::Pairs;
  using typename Base::STile;

  // c (64 keys x tile_q) = A B^T over dim columns, begun, and what more() adds to it.
  template <int dim, class ATile, class BTile, int blocks, class More = void (*)()>
  static MICA_DEVICE void gemm_rows(
      float (&c)[blocks][4], u32 a, u32 b, More more = [] {}) {
    const u64 from_a = matrix_descriptor(a, 16, 1024), from_b = matrix_descriptor(b, 16, 1024);
    wgmma_hold(c);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < dim / 16; ++i)
      Wgmma<Element, 8 * blocks>::add(c, advance(from_a, i / 4 * ATile::kPanelBytes + i % 4 * 32),
                                      advance(from_b, i / 4 * BTile::kPanelBytes + i % 4 * 32), i > 0);
    more();
    wgmma_commit();
  }
  // c (64 keys x columns) += operand (64 keys x tile_q) B, begun.
  template <int columns, class BTile, int steps>
  static MICA_DEVICE void gemm_operand(float (&c)[columns / 8][4], const u32 (&operand)[steps][4], u32 b) {
    const u64 from_b = matrix_descriptor(b, BTile::kPanelBytes, 1024);
    wgmma_hold(c);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < steps; ++i)
      Wgmma<Element, columns>::add_transposed(c, operand[i], advance(from_b, i * 16 * 128));
    wgmma_commit();
  }
  // dq (tile_q x columns, from first_column on) = dS K over all keys of the block, begun.
  template <int columns>
  MICA_DEVICE void gemm_dq(float (&dq)[columns / 8][4], u32 ds, i32 first_column) const {
    const u64 from_ds = matrix_descriptor(ds, STile::kPanelBytes, 1024);
    const u64 from_k = matrix_descriptor(smem_k + first_column / 64 * KTile::kPanelBytes + first_column % 64 * 2,
                                         KTile::kPanelBytes, 1024);
    wgmma_hold(dq);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i)
      Wgmma<Element, columns>::add_both_transposed(dq, advance(from_ds, i * 16 * 128), advance(from_k, i * 16 * 128),
                                                   i > 0);
    wgmma_commit();
  }

  MICA_DEVICE void probabilities(float (&s)[tile_q / 8][4], const float* lse) const {
#pragma unroll
    for (int n = 0; n < tile_q / 8; ++n) {
      const float2 row = *reinterpret_cast<const float2*>(lse + n * 8 + lane % 4 * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = ex2_approx(fmaf(s[n][e], p.score.scale_log2, -(e % 2 ? row.y : row.x)));
    }
  }
  // The same with a bias, which lies by queries and is read transposed.
  template <class BiasElement>
  MICA_DEVICE void biased_probabilities(float (&s)[tile_q / 8][4], const float* lse, u32 pairs, i32 first_row) const {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < tile_q / 8; n += 2) {
      u32 words[4];
      ldmatrix_x4_trans(words, pairs + Pairs::offset((n + lane / 16) * 8 + lane % 8, first_row / 8 + lane / 8 % 2));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 row = *reinterpret_cast<const float2*>(lse + (n + j) * 8 + lane % 4 * 2);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 bias = unpack<BiasElement>(words[2 * j + half]);
          float* x = s[n + j] + 2 * half;
          x[0] = ex2_approx(fmaf(x[0], p.score.scale_log2, fmaf(bias.x, kLog2E, -row.x)));
          x[1] = ex2_approx(fmaf(x[1], p.score.scale_log2, fmaf(bias.y, kLog2E, -row.y)));
        }
      }
    }
  }
  // The same with ALiBi and softcap, whose scores are scaled already. P times the slope of the softcap waits for dP in
  // dS's place. distance: of the tile's first query and the warp's first key.
  template <bool capped>
  MICA_DEVICE void scored_probabilities(float (&s)[tile_q / 8][4], const float* lse, i32 distance, u32 ds,
                                        i32 first_row) const {
    const i32 lane = threadIdx.x % 32;
    const float scale = capped ? 1.0f : p.score.scale_log2, inverse_cap = capped ? 1.0f / p.score.cap_log2 : 0.0f;
    const float alibi = this->has(kFeatureAlibi) ? features.slope_log2 : 0.0f;
    const float first = float(distance + lane % 4 * 2 - lane / 4);
#pragma unroll
    for (int i = 0; i < tile_q / 16; ++i) {
      float weights[2][4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int n = 2 * i + j;
        const float2 row = *reinterpret_cast<const float2*>(lse + n * 8 + lane % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& x = s[n][e];
          // 1 - tanh^2; a hidden score is infinite.
          const float t = x * inverse_cap, slope = fminf(fmaxf(fmaf(-t, t, 1.0f), 0.0f), 1.0f);
          const float far = fabsf(first + float(n * 8 + e % 2 - e / 2 * 8));
          x = ex2_approx(fmaf(x, scale, -fmaf(alibi, far, e % 2 ? row.y : row.x)));
          weights[j][e] = capped ? x * slope : x;
        }
      }
      u32 words[4];
      pack_a<Element>(words, weights[0], weights[1]);
#pragma unroll
      for (int k = 0; k < 4; ++k) store_shared_4(place(ds, first_row, 2 * i + k / 2, k % 2), words[k]);
    }
  }
  // dP becomes dS. P is taken as it was rounded: its registers are needed. Where dS needs another P than dV, it is in
  // dS's place.
  MICA_DEVICE void gradients(float (&dp)[tile_q / 8][4], const Operand& probability, const float* delta, u32 keep,
                             u32 ds, i32 first_row) const {
#pragma unroll
    for (int n = 0; n < tile_q / 8; ++n) {
      const float2 row = *reinterpret_cast<const float2*>(delta + n * 8 + lane % 4 * 2);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        u32 pair = probability[n / 2][n % 2 * 2 + half];
        if constexpr (kScore || kDropout) pair = load_shared_4(place(ds, first_row, n, half));
        const float2 x = unpack<Element>(pair);
        float* d = dp[n] + 2 * half;
        if constexpr (kDropout) {
          const float left = keep >> (n * 4 + half * 2) & 1 ? p.dropout.rescale : 0.0f;
          const float right = keep >> (n * 4 + half * 2 + 1) & 1 ? p.dropout.rescale : 0.0f;
          d[0] = x.x * fmaf(d[0], left, -row.x);
          d[1] = x.y * fmaf(d[1], right, -row.y);
        } else {
          d[0] = x.x * (d[0] - row.x);
          d[1] = x.y * (d[1] - row.y);
        }
      }
    }
  }
  template <int steps>
  static MICA_DEVICE void round(u32 (&operand)[steps][4], const float (&x)[2 * steps][4]) {
#pragma unroll
    for (int i = 0; i < steps; ++i) pack_a<Element>(operand[i], x[2 * i], x[2 * i + 1]);
  }
  // Where a thread keeps two elements of its fragment in a tile of dS^T.
  static MICA_DEVICE u32 place(u32 tile, i32 first_row, int n, int half) {
    const i32 lane = threadIdx.x % 32;
    return tile + STile::offset(first_row + half * 8 + lane / 4, n) + lane % 4 * 4;
  }
  static MICA_DEVICE void share(u32 tile, i32 first_row, const Operand& gradient) {
#pragma unroll
    for (int n = 0; n < tile_q / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store_shared_4(place(tile, first_row, n, half), gradient[n / 2][n % 2 * 2 + half]);
  }
  static MICA_DEVICE void take(Operand& operand, u32 tile, i32 first_row) {
#pragma unroll
    for (int i = 0; i < tile_q / 4; ++i) operand[i / 4][i % 4] = load_shared_4(place(tile, first_row, i / 2, i % 2));
  }

  // 16 rows of dK or dV from `first_column` on, by their warp, through the tile at `offset` of shared memory that
  // nobody reads any more, from its row `tile_row` on: 16 bytes a lane. Keys past those in use get their zeros.
  template <class Tile, int n_blocks>
  MICA_DEVICE void store_rows(u32 offset, const RowsArg& t, i32 dtype, i32 dim, float (&x)[1][n_blocks][4], float scale,
                              i32 first_row, i32 first_column, i32 tile_row) const {
    if (dtype != ElementTraits<Element>::kDtype) {
      this->store_keys(t, dtype, dim, x, scale, first_row, first_column);
      return;
    }
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < n_blocks / 2; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        x[0][2 * i][e] *= scale;
        x[0][2 * i + 1][e] *= scale;
      }
      u32 words[4];
      pack_a<Element>(words, x[0][2 * i], x[0][2 * i + 1]);
      stmatrix_x4(smem_k + offset + Tile::offset(tile_row + lane % 16, first_column / 8 + 2 * i + lane / 16), words);
    }
    __syncwarp();
    constexpr int kRows = 32 / n_blocks;  // a warp writes at once
    const i32 chunk = first_column / 8 + lane % n_blocks;
    const bool inside = chunk * 8 < dim && (32 % n_blocks == 0 || lane < kRows * n_blocks);
    u16* to = static_cast<u16*>(t.data) + this->key_offset(t) + chunk * 8;
#pragma unroll
    for (int i = 0; i < 16; i += kRows) {
      const i32 in_tile = tile_row + i + lane / n_blocks, row = first_row + i + lane / n_blocks;
      if (key_begin + row < sequence.slot_len_k - sequence.leftpad && inside)
        *reinterpret_cast<uint4*>(to + row * t.stride_row) =
            *reinterpret_cast<const uint4*>(room + offset + Tile::offset(in_tile, chunk));
    }
  }
};

}  // namespace mica
