// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper, with wgmma. A block owns tile_k keys of one key head and loops over the query tiles
// that see them, for every query head of the group. The warps of its first warpgroup fetch Q, dO and the row
// statistics, and add dQ to its accumulator; each of the other warpgroups owns 64 of the keys and keeps their dK and dV
// in registers:
//
//   S^T = K Q^T     dP^T = V dO^T            | own keys, all queries of the tile; S of the next tile is begun early
//   dV += P^T dO    dK += dS^T Q             | P^T and dS^T are the A operand where they lie, in registers
//   dS^T -> shared memory; consumers meet
//   dQ = dS K       -> shared memory         | all keys of the block, own columns
#pragma once

#include "kernels/parts/backward_fragments_sm90.cuh"

namespace mica {

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, u32 served>
struct BackwardSm90 : BackwardFragments<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, served> {
  using Base = BackwardFragments<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, served>;
  using Base::band;
  using Base::batch_index;
  using Base::dq_ring;
  using Base::features;
  using Base::kConsumerBarrier;
  using Base::kConsumers;
  using Base::kDropout;
  using Base::key_begin;
  using Base::kLoaders;
  using Base::kPairs;
  using Base::kPairThreads;
  using Base::kScore;
  using Base::p;
  using Base::ring;
  using Base::smem_do;
  using Base::smem_ds;
  using Base::smem_k;
  using Base::smem_pairs;
  using Base::smem_q;
  using Base::smem_v;
  using Base::stats;
  using Base::tiles;
  using typename Base::KTile;
  using typename Base::Operand;
  using typename Base::OTile;
  using typename Base::Pairs;
  using typename Base::Place;
  using typename Base::QTile;
  using typename Base::Scores;
  using typename Base::STile;
  using typename Base::VTile;
  static_assert(kConsumers * 64 == tile_k);
  static constexpr int kColumnsDQ = dim_qk / kConsumers;  // of a group
  static constexpr int kBytesDQ = tile_q * dim_qk * 4;
  using Base::kLayout;
  static_assert(kLayout.dq - kLayout.ds == 2 * STile::kBytes && kLayout.ring - kLayout.dq == kBytesDQ);

  u32 smem_dq;

  MICA_DEVICE void run(u8* smem) {
    if (!this->begin(smem)) return;
    smem_dq = smem_k + kLayout.dq;
    this->init_barriers(128 * kConsumers);
    const i32 count = this->num_steps();
    if (threadIdx.x < 128) {
      setmaxnreg_dec<Base::kProducerRegisters>();
      if (threadIdx.x < kLoaders)
        this->produce(count);
      else if (threadIdx.x == Base::kWriter && p.dq_accumulator)
        this->write_dq(
            count, [&](i32, float* where) { bulk_reduce_add(where, smem_dq, kBytesDQ); },
            [&](i32) { mbarrier_arrive(dq_ring.empty(0)); });
      else if (threadIdx.x >= 128 - kPairThreads)
        this->produce_pairs(count);
    } else {
      setmaxnreg_inc<Base::kConsumerRegisters>();
      consume(count);
    }
  }

  MICA_DEVICE void consume(i32 count) {
    const i32 consumer = uniform_warp() - 4, group = consumer / 4, warp = consumer % 4;
    const i32 first_row = group * 64 + warp * 16;  // of this warp's keys, in the tile
    float dk[1][dim_qk / 8][4], dv[1][dim_v / 8][4];
    zero(dk);
    zero(dv);
    if (count > 0) {
      Scores s;
      this->load_keys();
      ring.wait_full(Place::of_step(0));
      this->template gemm_rows<dim_qk, KTile, QTile>(s[0], smem_k + group * 64 * 128, smem_q);
      wgmma_wait<0>();
      wgmma_hold(s[0]);
      auto query = this->first_query_tile();
      for (i32 step = 0; step < count; ++step, this->next(query)) {
        const i32 stage = Place::of_step(step).stage, tile = query.tile;
        const u32 q = smem_q + stage * QTile::kBytes, d_o = smem_do + stage * OTile::kBytes;
        const u32 ds = smem_ds + step % 2 * STile::kBytes;
        Scores dp;
        Operand probability, gradient;  // P^T and dS^T, rounded
        u32 keep = 0;
        if constexpr (kScore)
          if (tile == tiles.begin) features.begin(p, batch_index, query.head);
        if constexpr (kDropout) keep = load_shared_4(this->kept(stage, threadIdx.x - 128));
        this->template gemm_rows<dim_v, VTile, OTile>(dp[0], smem_v + group * 64 * 128, d_o);
        const float* row_stats = stats + stage * 2 * tile_q;
        if (this->has(kFeatureSoftcap)) features.scale(s, p);
        if (tile < tiles.full_begin || tile >= tiles.full_end) this->mask(s, key_begin + first_row, tile * tile_q);
        if constexpr (kScore) {
          const i32 distance = tile * tile_q + band.shift - key_begin - first_row;
          if (this->has(kFeatureSoftcap))
            this->template scored_probabilities<true>(s[0], row_stats, distance, ds, first_row);
          else
            this->template scored_probabilities<false>(s[0], row_stats, distance, ds, first_row);
        } else if constexpr (kPairs) {
          const u32 pairs = smem_pairs + stage * Pairs::kBytes;
          if (this->has(kFeatureBias) && p.bias.dtype == MICA_FP16)
            this->template biased_probabilities<Fp16>(s[0], row_stats, pairs, first_row);
          else
            this->template biased_probabilities<Bf16>(s[0], row_stats, pairs, first_row);
        } else {
          this->probabilities(s[0], row_stats);
        }
        if constexpr (kDropout) {
          this->round(probability, s[0]);
          this->share(ds, first_row, probability);
#pragma unroll
          for (int i = 0; i < tile_q / 2; ++i)
            if (!(keep >> i & 1)) s[0][i / 4][i % 4] = 0.0f;
        }
        this->round(probability, s[0]);
        this->template gemm_operand<dim_v, OTile>(dv[0], probability, d_o);
        wgmma_wait<1>();
        wgmma_hold(dp[0]);
        this->gradients(dp[0], probability, row_stats + tile_q, keep, ds, first_row);
        this->round(gradient, dp[0]);
        this->share(ds, first_row, gradient);
        this->template gemm_operand<dim_qk, QTile>(dk[0], gradient, q);
        fence_for_wgmma();
        barrier_sync(kConsumerBarrier, 128 * kConsumers);
        float dq[kColumnsDQ / 8][4];
        this->template gemm_dq<kColumnsDQ>(dq, ds, group * kColumnsDQ);
        // After the last tile the scores are those of the tile itself, and not used: a branch would keep the compiler
        // from leaving products under way.
        wgmma_wait<1>();
        wgmma_hold(dk[0]);
        wgmma_hold(dv[0]);
        const Place next = Place::of_step(min_of(step + 1, count - 1));
        ring.wait_full(next);
        this->template gemm_rows<dim_qk, KTile, QTile>(s[0], smem_k + group * 64 * 128,
                                                       smem_q + next.stage * QTile::kBytes);
        wgmma_wait<1>();
        wgmma_hold(dq);
        ring.release_by_thread(Place::of_step(step));
        if (p.dq_accumulator) hand_over(dq, step, group);
        wgmma_wait<0>();
        wgmma_hold(s[0]);
      }
      barrier_sync(kConsumerBarrier, 128 * kConsumers);  // K and V are done with: their room is for dK and dV
    }
    if (p.dk.data) {
      if (key_begin == 0) this->template clear_leftpad<128 * kConsumers>(p.dk, p.dk_dtype, p.dim_qk);
      this->template store_rows<KTile>(0, p.dk, p.dk_dtype, p.dim_qk, dk, p.score.scale, first_row, 0, first_row);
    }
    if (p.dv.data) {
      if (key_begin == 0) this->template clear_leftpad<128 * kConsumers>(p.dv, p.dv_dtype, p.dim_v);
      this->template store_rows<VTile>(KTile::kBytes, p.dv, p.dv_dtype, p.dim_v, dv,
                                       kDropout ? p.dropout.rescale : 1.0f, first_row, 0, first_row);
    }
  }

  // dQ to the warp that writes it.
  MICA_DEVICE void hand_over(const float (&dq)[kColumnsDQ / 8][4], i32 step, i32 group) const {
    const i32 warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const RingPlace<1> place = RingPlace<1>::of_step(step);
    dq_ring.wait_empty(place);
#pragma unroll
    for (int n = 0; n < kColumnsDQ / 8; ++n)
      store_shared_floats(smem_dq + dq_accumulator_index(dim_qk, warp, group * (kColumnsDQ / 8) + n, lane) * 4, dq[n]);
    fence_for_wgmma();
    __syncwarp();
    arrive_as_warp(dq_ring.full(place.stage));
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, 1)
    MICA_KERNEL_NAME(const __grid_constant__ mica::BackwardParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::BackwardSm90<MICA_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS,
                                    MICA_STAGES, MICA_SERVED>;
  Kernel kernel{{params}};
  kernel.run(smem);
}
