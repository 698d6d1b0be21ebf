// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper by the copy engine: backward_sm90 without the options, whose first warpgroup has little
// left to do. One lane asks for K and V, and for Q and dO of one query tile after the other; a warp brings the row
// statistics; one lane adds dQ to its accumulator. Two consumer warpgroups have the registers.
//
// dS lies by queries, so that dQ is a product of rows: of 64 queries and the group's columns, or of the group's 64
// queries and all columns, or, where a tile is no multiple of 64 queries, transposed: dQ^T = K^T dS^T of its columns.
#pragma once

#include "kernels/parts/backward_maps_sm90.cuh"

namespace mica {

// goes_on: a block takes one key tile after the other, and fetches the next one while it stores dK and dV. What that
// costs in the loop, long sequences do not win back.
template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, bool goes_on>
struct BackwardTmaSm90 : BackwardMaps<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages> {
  using Base = BackwardMaps<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages>;
  using Base::batch_index;
  using Base::dq_ring;
  using Base::head_k;
  using Base::kConsumerBarrier;
  using Base::kConsumers;
  using Base::key_begin;
  using Base::maps;
  using Base::p;
  using Base::ring;
  using Base::room;
  using Base::sequence;
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
  using typename Base::VTile;
  using DsTile = PanelTile<tile_k, tile_q>;  // dS, rows are queries
  static_assert(kConsumers == 2 && tile_k == 64 * kConsumers);
  static constexpr bool kTransposed = backward_transposes_dq(tile_q), kRowsEach = tile_q == 64 * kConsumers;
  // What the producers need for their addresses, where the consumers can spare it.
  static constexpr int kProducerRegisters = kTransposed ? 24 : 40, kConsumerRegisters = kTransposed ? 240 : 232;
  static_assert(kTransposed ? dim_qk == 64 * kConsumers : kRowsEach || tile_q == 64);
  static constexpr int kColumnsDQ = kTransposed ? tile_q : kRowsEach ? dim_qk : dim_qk / kConsumers;  // of a product
  static constexpr int kBytesDQ = tile_q * dim_qk * 4;

  static_assert(!goes_on ||
                128 * kConsumers / 32 * 16 * max_of(dim_qk, dim_v) * 2 <= 2 * DsTile::kBytes);  // for dK and dV

  u32 smem_dq, keys_full, keys_empty, landed;

  MICA_DEVICE void run(u8* smem) {
    let_next_kernel_begin();
    this->prefetch_maps();
    if (!goes_on && !this->locate_item(blockIdx.x)) {
      wait_for_earlier_kernel();
      return;
    }
    room = smem;
    smem_k = shared_address(smem);
    smem_v = smem_k + KTile::kBytes;
    smem_q = smem_v + VTile::kBytes;
    smem_do = smem_q + stages * QTile::kBytes;
    smem_ds = smem_do + stages * OTile::kBytes;
    smem_dq = smem_ds + 2 * DsTile::kBytes;
    ring.barriers = smem_dq + kBytesDQ;
    dq_ring.barriers = ring.barriers + ring.kBytes;
    keys_full = dq_ring.barriers + dq_ring.kBytes;
    keys_empty = keys_full + 8;
    landed = keys_empty + 8;
    stats = reinterpret_cast<float*>(smem + (landed + stages * 8 - smem_k));
    if (threadIdx.x == 0) {
      ring.init(1 + 32, 128 * kConsumers);
      dq_ring.init(4 * kConsumers, 1);
      mbarrier_init(keys_full, 1);
      mbarrier_init(keys_empty, 1);
      for (i32 stage = 0; stage < stages; ++stage) mbarrier_init(landed + stage * 8, 1);
      fence_for_wgmma();
      if (!goes_on && this->num_steps() > 0) this->ask_keys(keys_full);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
      give_up_registers<kProducerRegisters>();
      if (threadIdx.x == 0)
        fetch();
      else if (threadIdx.x / 32 == 1)
        bring_stats();
      else if (threadIdx.x == 64 && p.dq_accumulator)
        add_dq();
    } else {
      take_registers<kConsumerRegisters>();
      consume();
    }
  }

  // One lane.
  MICA_DEVICE void add_dq() {
    wait_for_earlier_kernel();  // which clears the accumulator
    i32 steps = 0;
    this->template for_each_item<goes_on>([&] {
      const i32 count = this->num_steps();
      this->write_dq(
          count, [&](i32, float* where) { bulk_reduce_add(where, smem_dq, kBytesDQ); },
          [&](i32) { mbarrier_arrive(dq_ring.empty(0)); }, steps);
      steps += count;
    });
  }

  // One lane. The first queries of a key tile are asked for before its keys, whose room is in use for longer.
  MICA_DEVICE void fetch() {
    Place place;
    i32 tiles_before = 0;
    this->template for_each_item<goes_on>([&] {
      const i32 count = this->num_steps();
      auto walk = this->first_walk();
      if (count > 0 && tiles_before == 0) {
        if (goes_on) this->ask_keys(keys_full);
        wait_for_earlier_kernel();  // dO may have been converted
      }
      for (i32 step = 0; step < count; ++step, place.next(), this->next(walk)) {
        ask_queries(walk, place);
        if (step > 0 || tiles_before == 0) continue;
        mbarrier_wait(keys_empty, (tiles_before - 1) % 2);
        this->ask_keys(keys_full);
      }
      tiles_before += count > 0;
    });
  }
  MICA_DEVICE void ask_queries(const typename Base::Walk& walk, const Place& place) const {
    const i32 row = walk.tile * tile_q, from = i32(sequence.q_begin) + row;
    const bool ragged = this->is_ragged(row);
    const u32 full = ring.full(place.stage), barrier = ragged ? landed + place.stage * 8 : full;
    ring.wait_empty(place);
    mbarrier_arrive_expecting(barrier, QTile::kBytes + OTile::kBytes);
    this->template ask<QTile, dim_qk>(smem_q + place.stage * QTile::kBytes, maps.q, from, walk.head, sequence.q_slot,
                                      barrier);
    this->template ask<OTile, dim_v>(smem_do + place.stage * OTile::kBytes, maps.d_o, from, walk.head, sequence.q_slot,
                                     barrier);
    if (ragged) mbarrier_arrive(full);
  }

  // One warp: the row statistics, and zeros in the place of rows past the sequence.
  MICA_DEVICE void bring_stats() {
    u32 parities = 0;
    wait_for_earlier_kernel();  // also without a step: whoever waits for this kernel relies on what it waited for
    Place place;
    this->template for_each_item<goes_on>([&] {
      const i32 count = this->num_steps();
      auto walk = this->first_walk();
      for (i32 step = 0; step < count; ++step, place.next(), this->next(walk)) {
        this->bring_stats_of(walk, place.stage, [&] { ring.wait_empty(place); });
        if (this->is_ragged(walk.tile * tile_q)) {
          mbarrier_wait(landed + place.stage * 8, parities >> place.stage & 1);
          parities ^= 1u << place.stage;
          this->template clear_queries<QTile>(smem_q + place.stage * QTile::kBytes, walk.tile);
          this->template clear_queries<OTile>(smem_do + place.stage * OTile::kBytes, walk.tile);
        }
        mbarrier_arrive(ring.full(place.stage));
      }
    });
  }

  MICA_DEVICE void consume() {
    const i32 consumer = warp_max(threadIdx.x / 32) - 4, group = consumer / 4, warp = consumer % 4;
    Place place;
    i32 steps = 0;
    u32 keys_parity = 0;
    this->template for_each_item<goes_on>([&] { consume_item(place, steps, keys_parity, consumer, group, warp); });
  }
  // steps: of the block's key tiles before.
  MICA_DEVICE void consume_item(Place& place, i32& steps, u32& keys_parity, i32 consumer, i32 group, i32 warp) {
    const i32 count = this->make_uniform(this->num_steps());
    const i32 first_row = group * 64 + warp * 16;  // of this warp's keys, in the tile
    float dk[1][dim_qk / 8][4], dv[1][dim_v / 8][4];
    zero(dk);
    zero(dv);
    if (count > 0) {
      Scores s;
      this->wait_for_keys(keys_full, keys_parity);
      keys_parity ^= 1;
      ring.wait_full(place);
      this->template gemm_rows<dim_qk, KTile, QTile>(s[0], smem_k + group * 64 * 128,
                                                     smem_q + place.stage * QTile::kBytes);
      wgmma_wait<0>();
      wgmma_hold(s[0]);
      auto walk = this->first_walk();
      for (i32 step = 0; step < count; ++step, this->next(walk)) {
        const u32 q = smem_q + place.stage * QTile::kBytes, d_o = smem_do + place.stage * OTile::kBytes;
        const u32 ds = smem_ds + step % 2 * DsTile::kBytes;
        const float* row_stats = stats + place.stage * 2 * tile_q;
        Scores dp;
        Operand probability, gradient;  // P^T and dS^T, rounded
        this->template gemm_rows<dim_v, VTile, OTile>(dp[0], smem_v + group * 64 * 128, d_o);
        if (walk.tile < tiles.full_begin || walk.tile >= tiles.full_end)
          this->mask(s, key_begin + first_row, walk.tile * tile_q);
        this->probabilities(s[0], row_stats);
        this->round(probability, s[0]);
        this->template gemm_operand<dim_v, OTile>(dv[0], probability, d_o);
        wgmma_wait<1>();
        wgmma_hold(dp[0]);
        this->gradients(dp[0], probability, row_stats + tile_q, 0, ds, first_row);
        this->round(gradient, dp[0]);
        share(ds, first_row, gradient);
        this->template gemm_operand<dim_qk, QTile>(dk[0], gradient, q);
        fence_for_wgmma();
        barrier_sync(kConsumerBarrier, 128 * kConsumers);
        float dq[kColumnsDQ / 8][4];
        gemm_dq(dq, ds, group);
        wgmma_wait<1>();
        wgmma_hold(dk[0]);
        wgmma_hold(dv[0]);
        // After the last tile the scores are those of the tile itself, and not used: a branch would keep the compiler
        // from leaving products under way.
        const Place old = place;
        const bool is_last = step + 1 == count;
        if (!is_last) place.next();
        ring.wait_full(place);
        this->template gemm_rows<dim_qk, KTile, QTile>(s[0], smem_k + group * 64 * 128,
                                                       smem_q + place.stage * QTile::kBytes);
        wgmma_wait<1>();
        wgmma_hold(dq);
        if (!goes_on || !is_last) ring.release_by_thread(old);
        if (p.dq_accumulator) hand_over(dq, steps + step, group, warp);
        wgmma_wait<0>();
        wgmma_hold(s[0]);
      }
      if constexpr (goes_on) {
        ring.release_by_thread(place);
        place.next();
        steps += count;
      }
      barrier_sync(kConsumerBarrier, 128 * kConsumers);  // K, V and dS are done with
      if (goes_on && threadIdx.x == 128) mbarrier_arrive(keys_empty);
    }
    if (maps.parts > 1) {
      add_keys<dim_qk>(maps.dk_accumulator, dk, consumer);
      add_keys<dim_v>(maps.dv_accumulator, dv, consumer);
      return;
    }
    if (p.dk.data) {
      if (key_begin == 0) this->template clear_leftpad<128 * kConsumers>(p.dk, p.dk_dtype, p.dim_qk);
      store<KTile>(smem_k, p.dk, p.dk_dtype, p.dim_qk, dk, p.score.scale, consumer);
    }
    if (p.dv.data) {
      if (key_begin == 0) this->template clear_leftpad<128 * kConsumers>(p.dv, p.dv_dtype, p.dim_v);
      store<VTile>(smem_v, p.dv, p.dv_dtype, p.dim_v, dv, 1.0f, consumer);
    }
    if (goes_on) barrier_sync(kConsumerBarrier, 128 * kConsumers);  // the room is for dS again
  }
  // 16 rows of dK or dV to their sums, where other blocks have the group's other heads. null: not wanted.
  template <int dim>
  MICA_DEVICE void add_keys(float* accumulator, const float (&x)[1][dim / 8][4], i32 consumer) const {
    if (!accumulator) return;
    const i64 block = (i64(batch_index) * p.tiles_k + key_begin / tile_k) * p.heads_k + head_k;
    float* to = accumulator + block * (tile_k * dim) + dq_accumulator_index(dim, consumer, 0, threadIdx.x % 32);
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) reduce_add_4(to + n * 128, x[0][n]);
  }
  // 16 rows of dK or dV by their warp: through the room of K or V; where the next ones are on their way, of dS.
  template <class Tile, int n_blocks>
  MICA_DEVICE void store(u32 tile, const RowsArg& t, i32 dtype, i32 dim, float (&x)[1][n_blocks][4], float scale,
                         i32 consumer) const {
    if constexpr (goes_on) {
      __syncwarp();
      this->template store_rows<PanelTile<8 * n_blocks, 16>>(smem_ds - smem_k + consumer * (16 * 2 * 8 * n_blocks), t,
                                                             dtype, dim, x, scale, consumer * 16, 0, 0);
    } else {
      this->template store_rows<Tile>(tile - smem_k, t, dtype, dim, x, scale, consumer * 16, 0, consumer * 16);
    }
  }

  static MICA_DEVICE void share(u32 ds, i32 first_row, const Operand& gradient) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < tile_q / 16; ++i)
      stmatrix_x4_trans(ds + DsTile::offset(i * 16 + lane / 16 * 8 + lane % 8, first_row / 8 + lane / 8 % 2),
                        gradient[i]);
  }

  // dQ of the group over all keys of the block, begun.
  MICA_DEVICE void gemm_dq(float (&dq)[kColumnsDQ / 8][4], u32 ds, i32 group) const {
    const u64 from_ds = matrix_descriptor(ds + (kRowsEach ? group * 64 * 128 : 0), 16, 1024);
    const i32 first_column = kRowsEach ? 0 : group * (dim_qk / kConsumers);
    const u64 from_k = matrix_descriptor(smem_k + first_column / 64 * KTile::kPanelBytes + first_column % 64 * 2,
                                         KTile::kPanelBytes, 1024);
    wgmma_hold(dq);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i) {
      const u64 rows = advance(from_ds, i / 4 * DsTile::kPanelBytes + i % 4 * 32), k = advance(from_k, i * 16 * 128);
      if constexpr (kTransposed)
        Wgmma<Element, kColumnsDQ>::add_a_transposed(dq, k, rows, i > 0);
      else
        Wgmma<Element, kColumnsDQ>::add_b_transposed(dq, rows, k, i > 0);
    }
    wgmma_commit();
  }

  // dQ to the thread that adds it.
  MICA_DEVICE void hand_over(const float (&dq)[kColumnsDQ / 8][4], i32 step, i32 group, i32 warp) const {
    constexpr int kDim = kTransposed ? tile_q : dim_qk;
    const i32 lane = threadIdx.x % 32;
    const i32 row_block = kTransposed || kRowsEach ? group * 4 + warp : warp;
    const i32 column_block = kTransposed || kRowsEach ? 0 : group * (kColumnsDQ / 8);
    const RingPlace<1> place = RingPlace<1>::of_step(step);
    const u32 to = smem_dq + dq_accumulator_index(kDim, row_block, column_block, lane) * 4;
    dq_ring.wait_empty(place);
#pragma unroll
    for (int n = 0; n < kColumnsDQ / 8; ++n) store_shared_floats(to + n * 512, dq[n]);
    fence_for_wgmma();
    __syncwarp();
    arrive_as_warp(dq_ring.full(place.stage));
  }
};

}  // namespace mica
