// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper where dK and dV of 64 keys fill the registers of two warpgroups: each has half of their
// columns, and of the scores one computes P and the other dS.
//
//   first consumer                            second
//   S^T = K Q^T, P^T -> shared memory         dP^T = V dO^T
//   meet                                      meet, read P^T
//   dV += P^T dO   (columns 0 to 127)         dV += P^T dO (128 to 255), dS^T = P^T (dP^T - delta) -> shared memory
//   meet, read dS^T                           meet
//   dK += dS^T Q, dQ = dS K   (columns as above)
//
// dQ leaves through the room of the stage: half of the columns of Q and dO are as large as half of dQ in fp32, and
// nobody but the group that owns them reads them at the end.
#pragma once

#include "kernels/parts/backward_fragments_sm90.cuh"

namespace mica {

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, u32 served>
struct BackwardColumnsSm90 : BackwardFragments<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, served> {
  using Base = BackwardFragments<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, served>;
  using Base::dq_ring;
  using Base::kConsumerBarrier;
  using Base::kConsumers;
  using Base::key_begin;
  using Base::p;
  using Base::ring;
  using Base::smem_do;
  using Base::smem_ds;
  using Base::smem_k;
  using Base::smem_q;
  using Base::smem_v;
  using Base::stats;
  using Base::tiles;
  using typename Base::KTile;
  using typename Base::Operand;
  using typename Base::OTile;
  using typename Base::Place;
  using typename Base::QTile;
  using typename Base::Scores;
  using typename Base::STile;
  using typename Base::VTile;
  static_assert(tile_k == 64 && kConsumers == 2 && dim_qk == dim_v && served == serves::PLAIN);
  static constexpr int kColumns = dim_qk / 2;        // of a group
  static constexpr int kPanels = kColumns / 64;      // likewise
  static constexpr int kBlockBytesDQ = 16 * 64 * 4;  // 16 rows and 64 columns of dQ
  static_assert(kColumns == 128 && 4 * kBlockBytesDQ == kPanels * QTile::kPanelBytes);

  u32 smem_p;

  MICA_DEVICE void run(u8* smem) {
    if (!this->begin(smem, 2, 0)) return;
    smem_p = smem_ds + STile::kBytes;
    this->init_barriers(128 * kConsumers + 1);  // and the thread that adds dQ
    const i32 count = this->num_steps();
    if (uniform_warp() < 4) {
      give_up_registers<Base::kProducerRegisters>();
      if (threadIdx.x < Base::kLoaders)
        this->produce(count);
      else if (threadIdx.x == Base::kWriter)
        this->write_dq(
            count, [&](i32 step, float* where) { add_dq(step, where); },
            [&](i32 step) { mbarrier_arrive(ring.empty(Place::of_step(step).stage)); });
    } else {
      take_registers<Base::kConsumerRegisters>();
      if (uniform_warp() < 8)
        consume<0>(count);
      else
        consume<1>(count);
    }
  }

  // Where 16 rows of the first or second 64 columns of a group's dQ lie in a stage: in the group's columns of dO, of Q.
  MICA_DEVICE u32 block_dq(i32 stage, i32 group, i32 half, i32 row_block) const {
    const u32 room = half == 0 ? smem_do + stage * OTile::kBytes : smem_q + stage * QTile::kBytes;
    return room + group * kPanels * QTile::kPanelBytes + row_block * kBlockBytesDQ;
  }
  MICA_DEVICE void add_dq(i32 step, float* where) const {
    if (!p.dq_accumulator) return;
    for (i32 i = 0; i < 16; ++i) {
      const i32 row_block = i / 4, group = i / 2 % 2, half = i % 2;
      bulk_reduce_add(where + dq_accumulator_index(dim_qk, row_block, group * (kColumns / 8) + half * 8, 0),
                      block_dq(step % stages, group, half, row_block), kBlockBytesDQ);
    }
  }

  // Code for each group: with branches inside the loop the accumulators would not stay in their registers.
  template <int group>
  MICA_DEVICE void consume(i32 count) {
    const i32 warp = uniform_warp() % 4;
    const i32 first_row = warp * 16;  // of this warp's keys, in the tile
    float dk[1][kColumns / 8][4], dv[1][kColumns / 8][4];
    zero(dk);
    zero(dv);
    if (count > 0) {
      Scores x;  // S^T or dP^T
      this->load_keys();
      begin_scores<group>(x, 0, true);
      wgmma_wait<0>();
      wgmma_hold(x[0]);
      auto walk = this->first_walk();
      for (i32 step = 0; step < count; ++step, this->next(walk)) {
        const i32 stage = Place::of_step(step).stage, tile = walk.tile;
        const u32 q = smem_q + stage * QTile::kBytes, d_o = smem_do + stage * OTile::kBytes;
        const float* row_stats = stats + stage * 2 * tile_q;
        Operand probability, gradient;  // P^T and dS^T, rounded
        if constexpr (group == 0) {
          if (tile < tiles.full_begin || tile >= tiles.full_end) this->mask(x, key_begin + first_row, tile * tile_q);
          this->probabilities(x[0], row_stats);
          this->round(probability, x[0]);
          this->share(smem_p, first_row, probability);
        }
        barrier_sync(kConsumerBarrier, 128 * kConsumers);
        if constexpr (group == 1) this->take(probability, smem_p, first_row);
        this->template gemm_operand<kColumns, OTile>(dv[0], probability, d_o + group * kPanels * OTile::kPanelBytes);
        if constexpr (group == 1) {
          this->gradients(x[0], probability, row_stats + tile_q, 0, smem_ds, first_row);
          this->round(gradient, x[0]);
          this->share(smem_ds, first_row, gradient);
          fence_for_wgmma();
        }
        wgmma_wait<0>();
        wgmma_hold(dv[0]);
        barrier_sync(kConsumerBarrier, 128 * kConsumers);
        if constexpr (group == 0) this->take(gradient, smem_ds, first_row);
        float dq[8][4];
        this->template gemm_dq<64>(dq, smem_ds, group * kColumns);
        this->template gemm_operand<kColumns, QTile>(dk[0], gradient, q + group * kPanels * QTile::kPanelBytes);
        wgmma_wait<1>();
        wgmma_hold(dq);
        store_dq(dq, block_dq(stage, group, 0, warp));
        this->template gemm_dq<64>(dq, smem_ds, group * kColumns + 64);
        wgmma_wait<1>();
        wgmma_hold(dk[0]);
        begin_scores<group>(x, step + 1, step + 1 < count);
        wgmma_wait<1>();
        wgmma_hold(dq);
        barrier_sync(kConsumerBarrier + 1 + group, 128);  // all warps of the group have read Q
        store_dq(dq, block_dq(stage, group, 1, warp));
        fence_for_wgmma();
        ring.release_by_thread(Place::of_step(step));
        __syncwarp();
        arrive_as_warp(dq_ring.full(0));
        wgmma_wait<0>();
        wgmma_hold(x[0]);
      }
      barrier_sync(kConsumerBarrier, 128 * kConsumers);  // K and V are done with: their room is for dK and dV
    }
    if (p.dk.data) {
      if (key_begin == 0) this->template clear_leftpad<128 * kConsumers>(p.dk, p.dk_dtype, p.dim_qk);
      this->template store_rows<KTile>(0, p.dk, p.dk_dtype, p.dim_qk, dk, p.score.scale, first_row, group * kColumns,
                                       first_row);
    }
    if (p.dv.data) {
      if (key_begin == 0) this->template clear_leftpad<128 * kConsumers>(p.dv, p.dv_dtype, p.dim_v);
      this->template store_rows<VTile>(KTile::kBytes, p.dv, p.dv_dtype, p.dim_v, dv, 1.0f, first_row, group * kColumns,
                                       first_row);
    }
  }

  // S^T or dP^T of a step, begun. Where there is none, a product all the same, of what is there: a branch would keep
  // the compiler from leaving products under way.
  template <int group>
  MICA_DEVICE void begin_scores(Scores& x, i32 step, bool is_there) const {
    const i32 stage = Place::of_step(step).stage;
    const u32 keys = group == 0 ? smem_k : smem_v;
    const u32 queries = group == 0 ? smem_q + stage * QTile::kBytes : smem_do + stage * OTile::kBytes;
    if (is_there) ring.wait_full(Place::of_step(step));
    this->template gemm_rows<dim_qk, KTile, QTile>(x[0], keys, is_there ? queries : keys);
  }
  // 64 columns of dQ of this warp's 16 rows, for the thread that adds it.
  static MICA_DEVICE void store_dq(const float (&dq)[8][4], u32 block) {
#pragma unroll
    for (int n = 0; n < 8; ++n) store_shared_floats(block + (n * 32 + threadIdx.x % 32) * 16, dq[n]);
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, 1)
    MICA_KERNEL_NAME(const __grid_constant__ mica::BackwardParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::BackwardColumnsSm90<MICA_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS,
                                           MICA_STAGES, MICA_SERVED>;
  Kernel kernel{{params}};
  kernel.run(smem);
}
