// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper, with wgmma. A block owns tile_k keys of one key head and walks the query tiles that
// see them, for every query head of the group. Its first warpgroup fetches Q, dO and the row statistics; each of the
// others owns 64 of the keys and keeps their dK and dV in registers:
//
//   S^T = K Q^T     dP^T = V dO^T            | own keys, all queries of the tile
//   dV += P^T dO    dK += dS^T Q             | P^T and dS^T are the A operand where they lie, in registers
//   dS^T -> shared memory; consumers meet
//   dQ = dS K       added to global memory   | all keys of the block, own columns
#pragma once

#include "device/panel_tile.cuh"
#include "device/wgmma.cuh"
#include "kernels/backward_block.cuh"

namespace mica {

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages>
struct BackwardSm90 : BackwardBlock<Element, tile_q, tile_k, warps, false> {
  using Base = BackwardBlock<Element, tile_q, tile_k, warps, false>;
  using Base::head;
  using Base::head_k;
  using Base::key_begin;
  using Base::p;
  using Base::sequence;
  using Base::stats;
  static constexpr int kConsumers = warps / 4 - 1;  // warpgroups
  static constexpr int kColumnsDQ = dim_qk / kConsumers;
  static_assert(kConsumers * 64 == tile_k && tile_q == 64 && kColumnsDQ % 32 == 0);
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = (65536 / 128 - kProducerRegisters) / kConsumers / 8 * 8;
  static constexpr int kConsumerBarrier = 1;  // named

  using QTile = PanelTile<dim_qk, tile_q>;
  using OTile = PanelTile<dim_v, tile_q>;  // dO
  using KTile = PanelTile<dim_qk, tile_k>;
  using VTile = PanelTile<dim_v, tile_k>;
  using STile = PanelTile<tile_q, tile_k>;  // dS^T
  using Scores = float[1][tile_q / 8][4];
  using Operand = u32[tile_q / 16][4];

  u32 smem_k, smem_v, smem_q, smem_do, smem_ds, barriers;
  TileRange tiles;

  MICA_DEVICE u32 full(i32 step) const { return barriers + step % stages * 8; }
  MICA_DEVICE u32 empty(i32 step) const { return full(step) + stages * 8; }
  static MICA_DEVICE u32 parity(i32 step) { return step / stages % 2; }
  // Query heads in turn, each with all of its tiles.
  MICA_DEVICE i32 head_of(i32 step) const { return head_k * p.group + step / (tiles.end - tiles.begin); }
  MICA_DEVICE i32 tile_of(i32 step) const { return tiles.begin + step % (tiles.end - tiles.begin); }

  MICA_DEVICE void run(u8* smem) {
    if (!this->locate(blockIdx.x)) return;
    tiles = this->query_tiles();
    smem_k = shared_address(smem);
    smem_v = smem_k + KTile::kBytes;
    smem_q = smem_v + VTile::kBytes;
    smem_do = smem_q + stages * QTile::kBytes;
    smem_ds = smem_do + stages * OTile::kBytes;
    barriers = smem_ds + 2 * STile::kBytes;
    stats = reinterpret_cast<float*>(smem + (barriers - smem_k) + 2 * stages * 8);
    if (threadIdx.x == 0)
      for (i32 stage = 0; stage < stages; ++stage) {
        mbarrier_init(full(stage), 128);
        mbarrier_init(empty(stage), 4 * kConsumers);
      }
    __syncthreads();
    const i32 count = (tiles.end - tiles.begin) * p.group;
    if (threadIdx.x < 128) {
      give_up_registers<kProducerRegisters>();
      produce(count);
    } else {
      take_registers<kConsumerRegisters>();
      consume(count);
    }
  }

  // A tile ahead of the one whose copies are waited for.
  MICA_DEVICE void produce(i32 count) const {
    for (i32 step = 0; step < count + 1; ++step) {
      if (step < count) {
        mbarrier_wait(empty(step), parity(step) ^ 1);
        load_queries(head_of(step), tile_of(step) * tile_q, step % stages);
      }
      cp_async_commit();
      if (step == 0) continue;
      cp_async_wait<1>();
      fence_for_wgmma();
      mbarrier_arrive(full(step - 1));
    }
  }
  MICA_DEVICE void load_queries(i32 head_q, i32 row, i32 stage) const {
    const i32 valid = sequence.len_q - row;
    QTile::load(smem_q + stage * QTile::kBytes,
                static_cast<const u16*>(p.q.data) + this->query_offset(p.q, head_q, row), p.q.stride_row, valid,
                p.dim_qk);
    OTile::load(smem_do + stage * OTile::kBytes,
                static_cast<const u16*>(p.d_o.data) + this->query_offset(p.d_o, head_q, row), p.d_o.stride_row, valid,
                p.dim_v);
    this->template load_stats<128>(head_q, row, stage);
  }

  MICA_DEVICE void consume(i32 count) {
    const i32 group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const i32 first_row = group * 64 + warp * 16;  // of this warp's keys, in the tile
    float dk[1][dim_qk / 8][4], dv[1][dim_v / 8][4];
    zero(dk);
    zero(dv);
    if (count > 0) load_keys(group);
    for (i32 step = 0; step < count; ++step) {
      const i32 stage = step % stages, tile = tile_of(step);
      const u32 q = smem_q + stage * QTile::kBytes, d_o = smem_do + stage * OTile::kBytes;
      const u32 ds = smem_ds + step % 2 * STile::kBytes;
      head = head_of(step);
      Scores s, dp;
      Operand probability, gradient;  // P^T and dS^T, rounded
      mbarrier_wait(full(step), parity(step));
      gemm_rows<dim_qk, KTile, QTile>(s[0], smem_k + group * 64 * 128, q);
      gemm_rows<dim_v, VTile, OTile>(dp[0], smem_v + group * 64 * 128, d_o);
      wgmma_wait<1>();
      wgmma_hold(s[0]);
      if (tile < tiles.full_begin || tile >= tiles.full_end) this->mask(s, key_begin + first_row, tile * tile_q);
      probabilities(s[0], stats + stage * 2 * tile_q);
      round(probability, s[0]);
      gemm_operand<dim_v, OTile>(dv[0], probability, d_o);
      wgmma_wait<1>();
      wgmma_hold(dp[0]);
      gradients(dp[0], probability, stats + (stage * 2 + 1) * tile_q);
      round(gradient, dp[0]);
      share(ds, first_row, gradient);
      gemm_operand<dim_qk, QTile>(dk[0], gradient, q);
      fence_for_wgmma();
      barrier_sync(kConsumerBarrier, 128 * kConsumers);
      if (p.dq_accumulator) {
        float dq[kColumnsDQ / 8][4];
        gemm_dq(dq, ds, group);
        wgmma_wait<0>();
        wgmma_hold(dq);
        wgmma_hold(dk[0]);
        wgmma_hold(dv[0]);
        release(empty(step));
        float* accumulator = p.dq_accumulator + this->dq_tile(tile) * (tile_q * dim_qk);
#pragma unroll
        for (int n = 0; n < kColumnsDQ / 8; ++n)
          reduce_add_4(accumulator + dq_accumulator_index(dim_qk, warp, group * (kColumnsDQ / 8) + n, lane), dq[n]);
      } else {
        wgmma_wait<0>();
        wgmma_hold(dk[0]);
        wgmma_hold(dv[0]);
        release(empty(step));
      }
    }
    if (p.dk.data) {
      if (key_begin == 0) this->template clear_leftpad<128 * kConsumers>(p.dk, p.dk_dtype, p.dim_qk);
      this->store_keys(p.dk, p.dk_dtype, p.dim_qk, dk, p.score.scale, first_row, 0);
    }
    if (p.dv.data) {
      if (key_begin == 0) this->template clear_leftpad<128 * kConsumers>(p.dv, p.dv_dtype, p.dim_v);
      this->store_keys(p.dv, p.dv_dtype, p.dim_v, dv, 1.0f, first_row, 0);
    }
  }

  // K and V of the block; a group needs its own keys, and at the end of a tile all of K.
  MICA_DEVICE void load_keys(i32 group) const {
    load_rows<KTile>(smem_k, p.k, group, p.dim_qk);
    load_rows<VTile>(smem_v, p.v, group, p.dim_v);
    cp_async_commit();
    cp_async_wait<0>();
    fence_for_wgmma();
    barrier_sync(kConsumerBarrier, 128 * kConsumers);
  }
  template <class Tile>
  MICA_DEVICE void load_rows(u32 shared, const RowsArg& tensor, i32 group, i32 valid_dim) const {
    const int thread = threadIdx.x % 128, chunk = thread % Tile::kChunks;
    const u16* global = static_cast<const u16*>(tensor.data) + this->key_offset(tensor);
    for (int row = group * 64 + thread / Tile::kChunks; row < group * 64 + 64; row += 128 / Tile::kChunks) {
      const bool inside = key_begin + row < sequence.len_k && chunk * 8 < valid_dim;
      cp_async_16(shared + Tile::offset(row, chunk), inside ? global + row * tensor.stride_row + chunk * 8 : global,
                  inside ? 16 : 0);
    }
  }

  static MICA_DEVICE void release(u32 barrier) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
  }

  // c (64 keys x tile_q) = A B^T over dim columns, begun.
  template <int dim, class ATile, class BTile>
  static MICA_DEVICE void gemm_rows(float (&c)[tile_q / 8][4], u32 a, u32 b) {
    wgmma_hold(c);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < dim / 16; ++i)
      Wgmma<Element, tile_q>::add(c, matrix_descriptor(a + i / 4 * ATile::kPanelBytes + i % 4 * 32, 16, 1024),
                                  matrix_descriptor(b + i / 4 * BTile::kPanelBytes + i % 4 * 32, 16, 1024), i > 0);
    wgmma_commit();
  }
  // c (64 keys x dim) += operand (64 keys x tile_q) B, begun.
  template <int dim, class BTile>
  static MICA_DEVICE void gemm_operand(float (&c)[dim / 8][4], const Operand& operand, u32 b) {
    wgmma_hold(c);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_q / 16; ++i)
      Wgmma<Element, dim>::add_transposed(c, operand[i], matrix_descriptor(b + i * 16 * 128, BTile::kPanelBytes, 1024));
    wgmma_commit();
  }
  // dQ (tile_q x own columns) = dS K over all keys of the block, begun.
  MICA_DEVICE void gemm_dq(float (&dq)[kColumnsDQ / 8][4], u32 ds, i32 group) const {
    const i32 column = group * kColumnsDQ;
    const u32 k = smem_k + column / 64 * KTile::kPanelBytes + column % 64 * 2;
    wgmma_hold(dq);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i)
      Wgmma<Element, kColumnsDQ>::add_both_transposed(
          dq, matrix_descriptor(ds + i * 16 * 128, STile::kPanelBytes, 1024),
          matrix_descriptor(k + i * 16 * 128, KTile::kPanelBytes, 1024), i > 0);
    wgmma_commit();
  }

  MICA_DEVICE void probabilities(float (&s)[tile_q / 8][4], const float* lse) const {
#pragma unroll
    for (int n = 0; n < tile_q / 8; ++n) {
      const float2 row = *reinterpret_cast<const float2*>(lse + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = ex2_approx(fmaf(s[n][e], p.score.scale_log2, -(e % 2 ? row.y : row.x)));
    }
  }
  // dP becomes dS. P is taken as it was rounded: its registers are needed.
  static MICA_DEVICE void gradients(float (&dp)[tile_q / 8][4], const Operand& probability, const float* delta) {
#pragma unroll
    for (int n = 0; n < tile_q / 8; ++n) {
      const float2 row = *reinterpret_cast<const float2*>(delta + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 x = unpack<Element>(probability[n / 2][n % 2 * 2 + half]);
        dp[n][2 * half] = x.x * (dp[n][2 * half] - row.x);
        dp[n][2 * half + 1] = x.y * (dp[n][2 * half + 1] - row.y);
      }
    }
  }
  static MICA_DEVICE void round(Operand& operand, const float (&x)[tile_q / 8][4]) {
#pragma unroll
    for (int i = 0; i < tile_q / 16; ++i) pack_a<Element>(operand[i], x[2 * i], x[2 * i + 1]);
  }
  static MICA_DEVICE void share(u32 tile, i32 first_row, const Operand& gradient) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < tile_q / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store_shared_4(tile + STile::offset(first_row + half * 8 + lane / 4, n) + lane % 4 * 4,
                       gradient[n / 2][n % 2 * 2 + half]);
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, 1)
    MICA_KERNEL_NAME(const __grid_constant__ mica::BackwardParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel =
      mica::BackwardSm90<MICA_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS, MICA_STAGES>;
  Kernel kernel{{params}};
  kernel.run(smem);
}
