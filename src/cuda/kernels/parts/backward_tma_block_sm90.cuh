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

// A block that goes on to further key tiles fetches the next one while it stores dK and dV. What that costs in the
// loop, long sequences do not win back. A block that takes whole heads is alone with their dQ: key tiles before the
// last one that a query tile sees add to it in the workspace, and the last one goes on from there and writes dQ.
template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, Course course>
struct BackwardTmaSm90 : BackwardMaps<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages> {
  using Base = BackwardMaps<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages>;
  using Base::band;
  using Base::batch_index;
  using Base::done_to;
  using Base::dq_ring;
  using Base::fresh_from;
  using Base::head_k;
  using Base::kConsumerBarrier;
  using Base::kConsumers;
  using Base::key_begin;
  using Base::kPaddedQk;
  using Base::kPaddedV;
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
  static constexpr bool kPersistent = course != Course::ONE_TILE, kWholeHeads = course == Course::HEADS;
  // Consumers of a block with one key tile are loosely coupled: dQ of a query tile is left for the next step, so that
  // one may make exponentials while the other has its products.
  static constexpr bool kLoose = !kPersistent;
  static constexpr int kPingPongBarrier = kConsumerBarrier + 1;  // and the next: of each consumer's exponentials
  // What the producers need for their addresses, where the consumers can spare it.
  static constexpr int kProducerRegisters = kTransposed || (kLoose && tile_q == 128) ? 24 : 40,
                       kConsumerRegisters = kTransposed || (kLoose && tile_q == 128) ? 240 : 232;
  static_assert(kTransposed ? kPaddedQk == 64 * kConsumers && !kWholeHeads : kRowsEach || tile_q == 64);
  static constexpr int kColumnsDQ = kTransposed ? tile_q
                                    : kRowsEach ? kPaddedQk
                                                : kPaddedQk / kConsumers;  // of a product
  static constexpr int kBytesDQ = tile_q * dim_qk * 4;
  static constexpr BackwardTmaSm90Layout kLayout = backward_tma_sm90_layout(tile_q, tile_k, dim_qk, dim_v, stages);
  static_assert(kLayout.dq - kLayout.ds == 2 * DsTile::kBytes && kLayout.ring - kLayout.dq == kBytesDQ);
  static_assert(kLoose || stages == 2);

  u32 smem_dq, keys_full, keys_empty, dq_settled, landed;
  Ring<2> do_ring, ds_ring, dq_rings;  // of loose consumers; the last has a stage for each

  MICA_DEVICE void run(u8* smem) {
    griddepcontrol_launch_dependents();
    this->prefetch_maps();
    if (!kPersistent && !this->locate_item(blockIdx.x)) {
      griddepcontrol_wait();
      return;
    }
    room = smem;
    smem_k = shared_address(smem);
    smem_v = smem_k + kLayout.v;
    smem_q = smem_k + kLayout.q;
    smem_do = smem_k + kLayout.d_o;
    smem_ds = smem_k + kLayout.ds;
    smem_dq = smem_k + kLayout.dq;
    ring.barriers = smem_k + kLayout.ring;
    do_ring.barriers = smem_k + kLayout.do_ring;
    ds_ring.barriers = smem_k + kLayout.ds_ring;
    dq_rings.barriers = smem_k + kLayout.dq_ring;
    dq_ring.barriers = smem_k + kLayout.dq_ring;
    keys_full = smem_k + kLayout.keys_full;
    keys_empty = smem_k + kLayout.keys_empty;
    dq_settled = smem_k + kLayout.dq_settled;
    landed = smem_k + kLayout.landed;
    stats = reinterpret_cast<float*>(smem + kLayout.stats);
    if (threadIdx.x == 0) {
      if constexpr (kLoose) {
        ring.init(1, 4 * kConsumers);
        do_ring.init(1 + 32, 128 * kConsumers);
        ds_ring.init(4 * kConsumers, 4 * kConsumers);
        dq_rings.init(4, 1);
      } else {
        ring.init(1 + 32, 128 * kConsumers);
        dq_ring.init(4 * kConsumers, 1);
      }
      mbarrier_init(keys_full, 1);
      mbarrier_init(keys_empty, 1);
      mbarrier_init(dq_settled, 1);
      for (i32 stage = 0; stage < stages + 2; ++stage) mbarrier_init(landed + stage * 8, 1);
      fence_for_wgmma();
      if (!kPersistent && this->num_steps() > 0) this->ask_keys(keys_full);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
      setmaxnreg_dec<kProducerRegisters>();
      if (threadIdx.x == 0) {
        kLoose ? fetch_q() : fetch();
      } else if (threadIdx.x / 32 == 1) {
        kLoose ? bring_loosely() : bring_stats();
      } else if (threadIdx.x == 64 && p.dq_accumulator) {
        kWholeHeads ? keep_dq() : kLoose ? add_halves() : add_dq();
      } else if (threadIdx.x == 96 && kLoose) {
        fetch_do();
      }
    } else {
      setmaxnreg_inc<kConsumerRegisters>();
      consume();
    }
  }

  // One lane.
  MICA_DEVICE void add_dq() {
    griddepcontrol_wait();  // which clears the accumulator
    i32 steps = 0;
    this->template for_each_item<course>([&] {
      const i32 count = this->num_steps();
      this->write_dq(
          count, [&](i32, float* where) { bulk_reduce_add(where, smem_dq, kBytesDQ); },
          [&](i32) { mbarrier_arrive(dq_ring.empty(0)); }, steps);
      steps += count;
    });
  }

  // The same of loose consumers, whose halves of a tile come one after the other.
  MICA_DEVICE void add_halves() {
    griddepcontrol_wait();
    const i32 count = this->num_steps();
    auto query = this->first_query_tile();
    for (i32 step = 0; step < count; ++step, this->next(query)) {
      this->head = query.head;
      const i64 block = this->dq_tile(query.tile);
      float* where = p.dq_accumulator + block * (tile_q * dim_qk);
      if (p.dq_semaphores) this->spin_on_semaphore(query.tile, block);
      for (i32 group = 0; group < kConsumers; ++group) {
        dq_rings.wait_full({group, u32(step % 2)});
        add_half(where, group);
        bulk_commit();
        bulk_wait_read();
        mbarrier_arrive(dq_rings.empty(group));
      }
      if (!p.dq_semaphores) continue;
      bulk_wait();
      add_release(p.dq_semaphores + block, 1);
    }
    bulk_wait();
  }
  MICA_DEVICE void add_half(float* where, i32 group) const {
    if constexpr (kTransposed || kRowsEach) {
      bulk_reduce_add(where + group * (kBytesDQ / 8), smem_dq + group * (kBytesDQ / 2), kBytesDQ / 2);
    } else {
      constexpr int kFirst = kColumnsDQ * 64,
                    kRowBlock = dim_qk * 64;  // bytes of 16 rows: of the first consumer, of all
      for (i32 block = 0; block < tile_q / 16; ++block) {
        const i32 from = block * kRowBlock + group * kFirst;
        bulk_reduce_add(where + from / 4, smem_dq + from, group == 0 ? kFirst : kRowBlock - kFirst);
      }
    }
  }

  // Whole heads: whether there are query tiles that a later key tile goes on with. They follow those that none does.
  MICA_DEVICE bool keeps_dq() const { return tiles.end > done_to; }
  // One lane, of whole heads: dQ that a later key tile goes on with. After a key tile it says that all is written.
  MICA_DEVICE void keep_dq() {
    RingPlace<1> place;
    this->template for_each_item<course>([&] {
      const i32 count = this->num_steps();
      if (count == 0 || !keeps_dq()) return;
      auto query = this->first_query_tile();
      for (i32 step = 0; step < count; ++step, this->next(query)) {
        if (query.tile < done_to) continue;
        float* where = kept_dq(query);
        dq_ring.wait_full(place);
        if (query.tile >= fresh_from)
          bulk_store(where, smem_dq, kBytesDQ);
        else
          bulk_reduce_add(where, smem_dq, kBytesDQ);
        bulk_commit();
        bulk_wait_read();
        mbarrier_arrive(dq_ring.empty(0));
        place.next();
      }
      bulk_wait();
      mbarrier_arrive(dq_settled);
    });
  }
  // Where a query tile's dQ is kept from one key tile to the next.
  MICA_DEVICE float* kept_dq(const typename Base::QueryTile& query) const {
    const i32 head = query.head - head_k * p.group;
    const i32 slot = maps.parts > 1 ? batch_index * p.heads_k + head_k : i32(blockIdx.x);
    return p.dq_accumulator + ((i64(slot) * p.group + head) * p.tiles_q + query.tile) * (tile_q * dim_qk);
  }

  // One lane. The first queries of a key tile are asked for before its keys, whose room is in use for longer.
  MICA_DEVICE void fetch() {
    Place place;
    i32 tiles_before = 0;
    this->template for_each_item<course>([&] {
      const i32 count = this->num_steps();
      auto query = this->first_query_tile();
      if (count > 0 && tiles_before == 0) {
        if (kPersistent) this->ask_keys(keys_full);
        griddepcontrol_wait();  // dO may have been converted
      }
      for (i32 step = 0; step < count; ++step, place.next(), this->next(query)) {
        ask_queries(query, place);
        if (step > 0 || tiles_before == 0) continue;
        mbarrier_wait(keys_empty, (tiles_before - 1) % 2);
        this->ask_keys(keys_full);
      }
      tiles_before += count > 0;
    });
  }
  MICA_DEVICE void ask_queries(const typename Base::QueryTile& query, const Place& place) const {
    const i32 row = query.tile * tile_q, from = i32(sequence.q_begin) + row;
    const bool ragged = this->is_ragged(row);
    const u32 full = ring.full(place.stage), barrier = ragged ? landed + place.stage * 8 : full;
    ring.wait_empty(place);
    mbarrier_arrive_expecting(barrier, QTile::kBytes + OTile::kBytes);
    const u32 to_q = smem_q + place.stage * QTile::kBytes, to_do = smem_do + place.stage * OTile::kBytes;
    this->template ask<QTile>(to_q, maps.q, from, query.head, sequence.q_slot, barrier);
    this->template ask<OTile>(to_do, maps.d_o, from, query.head, sequence.q_slot, barrier);
    if (ragged) mbarrier_arrive(full);
  }

  // One lane each: Q and dO of loose consumers.
  MICA_DEVICE void fetch_q() const {
    const i32 count = this->num_steps();
    Place place;
    auto query = this->first_query_tile();
    for (i32 step = 0; step < count; ++step, place.next(), this->next(query)) {
      const i32 row = query.tile * tile_q;
      const u32 barrier = this->is_ragged(row) ? landed + place.stage * 8 : ring.full(place.stage);
      ring.wait_empty(place);
      mbarrier_arrive_expecting(barrier, QTile::kBytes);
      this->template ask_kept<QTile>(smem_q + place.stage * QTile::kBytes, maps.q, i32(sequence.q_begin) + row,
                                     query.head, sequence.q_slot, barrier);
    }
  }
  MICA_DEVICE void fetch_do() const {
    const i32 count = this->num_steps();
    RingPlace<2> place;
    auto query = this->first_query_tile();
    griddepcontrol_wait();  // dO may have been converted
    for (i32 step = 0; step < count; ++step, place.next(), this->next(query)) {
      const i32 row = query.tile * tile_q;
      const bool ragged = this->is_ragged(row);
      const u32 full = do_ring.full(place.stage), barrier = ragged ? landed + (stages + place.stage) * 8 : full;
      do_ring.wait_empty(place);
      mbarrier_arrive_expecting(barrier, OTile::kBytes);
      this->template ask_kept<OTile>(smem_do + place.stage * OTile::kBytes, maps.d_o, i32(sequence.q_begin) + row,
                                     query.head, sequence.q_slot, barrier);
      if (ragged) mbarrier_arrive(full);
    }
  }

  // One warp: the row statistics, and zeros in the place of rows past the sequence.
  MICA_DEVICE void bring_stats() {
    u32 parities = 0;
    griddepcontrol_wait();  // also without a step: whoever waits for this kernel relies on what it waited for
    Place place;
    this->template for_each_item<course>([&] {
      const i32 count = this->num_steps();
      auto query = this->first_query_tile();
      for (i32 step = 0; step < count; ++step, place.next(), this->next(query)) {
        this->bring_stats_of(query, place.stage, [&] { ring.wait_empty(place); });
        if (this->is_ragged(query.tile * tile_q)) {
          mbarrier_wait(landed + place.stage * 8, parities >> place.stage & 1);
          parities ^= 1u << place.stage;
          this->template clear_queries<QTile>(smem_q + place.stage * QTile::kBytes, query.tile);
          this->template clear_queries<OTile>(smem_do + place.stage * OTile::kBytes, query.tile);
        }
        mbarrier_arrive(ring.full(place.stage));
      }
    });
  }

  // The same for loose consumers, whose Q comes with none.
  MICA_DEVICE void bring_loosely() {
    u32 parities = 0;
    griddepcontrol_wait();
    Place q_place;
    RingPlace<2> place;
    const i32 count = this->num_steps();
    auto query = this->first_query_tile();
    for (i32 step = 0; step < count; ++step, place.next(), q_place.next(), this->next(query)) {
      const bool ragged = this->is_ragged(query.tile * tile_q);
      const auto await_landed = [&](i32 stage) {
        mbarrier_wait(landed + stage * 8, parities >> stage & 1);
        parities ^= 1u << stage;
      };
      if (ragged) {
        await_landed(q_place.stage);
        this->template clear_queries<QTile>(smem_q + q_place.stage * QTile::kBytes, query.tile);
        __syncwarp();
        arrive_as_warp(ring.full(q_place.stage));
      }
      this->bring_stats_of(query, place.stage, [&] { do_ring.wait_empty(place); });
      if (ragged) {
        await_landed(stages + place.stage);
        this->template clear_queries<OTile>(smem_do + place.stage * OTile::kBytes, query.tile);
      }
      mbarrier_arrive(do_ring.full(place.stage));
    }
  }

  MICA_DEVICE void consume() {
    const i32 consumer = warp_max(threadIdx.x / 32) - 4, group = consumer / 4, warp = consumer % 4;
    Place place;
    i32 steps = 0;
    u32 keys_parity = 0, settled_parity = 1;
    this->template for_each_item<course>(
        [&] { consume_item(place, steps, keys_parity, settled_parity, consumer, group, warp); });
  }
  // steps: of the block's key tiles before, those whose dQ was handed over. Parities: of K and V of this one, of the
  // last one that kept dQ.
  MICA_DEVICE void consume_item(Place& place, i32& steps, u32& keys_parity, u32& settled_parity, i32 consumer,
                                i32 group, i32 warp) {
    const i32 count = this->make_uniform(this->num_steps());
    if constexpr (kWholeHeads) {
      fresh_from = warp_max(fresh_from);
      done_to = warp_max(done_to);
    }
    const i32 first_row = group * 64 + warp * 16;  // of this warp's keys, in the tile
    float dk[1][dim_qk / 8][4], dv[1][dim_v / 8][4];
    zero(dk);
    zero(dv);
    if (count > 0) {
      this->wait_for_keys(keys_full, keys_parity);
      keys_parity ^= 1;
      if constexpr (kLoose) {
        loop_loosely(dk, dv, count, group, warp);
      } else {
        Scores s;
        ring.wait_full(place);
        this->template gemm_rows<dim_qk, KTile, QTile>(s[0], smem_k + group * 64 * 128,
                                                       smem_q + place.stage * QTile::kBytes);
        wgmma_wait<0>();
        wgmma_hold(s[0]);
        auto query = this->first_query_tile();
        for (i32 step = 0; step < count; ++step, this->next(query)) {
          const u32 q = smem_q + place.stage * QTile::kBytes, d_o = smem_do + place.stage * OTile::kBytes;
          const u32 ds = smem_ds + step % 2 * DsTile::kBytes;
          const float* row_stats = stats + place.stage * 2 * tile_q;
          Scores dp;
          Operand probability, gradient;  // P^T and dS^T, rounded
          this->template gemm_rows<dim_v, VTile, OTile>(dp[0], smem_v + group * 64 * 128, d_o);
          if (query.tile < tiles.full_begin || query.tile >= tiles.full_end)
            this->mask(s, key_begin + first_row, query.tile * tile_q);
          this->probabilities(s[0], row_stats);
          this->round(probability, s[0]);
          this->template gemm_operand<dim_v, OTile>(dv[0], probability, d_o);
          wgmma_wait<1>();
          wgmma_hold(dp[0]);
          this->gradients(dp[0], probability, row_stats + tile_q, 0, ds, first_row);
          this->round(gradient, dp[0]);
          share(ds, first_row, gradient);
          float dq[kColumnsDQ / 8][4];
          const bool is_done = kWholeHeads && query.tile < done_to, resumes = is_done && query.tile < fresh_from;
          if constexpr (kWholeHeads) {
            if (resumes && maps.dq.data) mbarrier_wait(dq_settled, settled_parity);
            take_up(dq, query, group, warp, resumes && maps.dq.data);
          }
          this->template gemm_operand<dim_qk, QTile>(dk[0], gradient, q);
          fence_for_wgmma();
          barrier_sync(kConsumerBarrier, 128 * kConsumers);
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
          if (!kPersistent || !is_last) ring.release_by_thread(old);
          if (is_done)
            finish_dq(dq, query, group, warp);
          else if (p.dq_accumulator)
            hand_over(dq, kWholeHeads ? steps++ : steps + step, group, warp);
          wgmma_wait<0>();
          wgmma_hold(s[0]);
        }
      }
      if constexpr (kPersistent) {
        ring.release_by_thread(place);
        place.next();
        if constexpr (kWholeHeads)
          settled_parity ^= u32(keeps_dq());
        else
          steps += count;
      }
      if constexpr (kPersistent) {
        barrier_sync(kConsumerBarrier, 128 * kConsumers);  // K, V and dS are done with
        if (threadIdx.x == 128) mbarrier_arrive(keys_empty);
      }
    }
    if (kWholeHeads && key_begin == 0) clear_unseen();
    if constexpr (kLoose) {
      // The last dQ waits for the other consumer's dS: meanwhile dK and dV are stored.
      leave_keys(dk, dv, count, consumer);
      if (count > 0) finish_loosely(count, group, warp);
    } else {
      leave_keys(dk, dv, count, consumer);
      barrier_sync(kConsumerBarrier, 128 * kConsumers);  // the room is for dS again
    }
  }
  // dK and dV, to their sums or into their place.
  MICA_DEVICE void leave_keys(float (&dk)[1][dim_qk / 8][4], float (&dv)[1][dim_v / 8][4], i32 count,
                              i32 consumer) const {
    if (maps.parts > 1) {
      if (count == 0) return;
      if constexpr (!kPersistent) this->wait_key_semaphore();
      add_keys<dim_qk>(maps.dk_accumulator, dk, consumer);
      add_keys<dim_v>(maps.dv_accumulator, dv, consumer);
      if constexpr (!kPersistent) this->release_key_semaphore();
      return;
    }
    if (p.dv.data) {
      if (key_begin == 0) this->template clear_leftpad<128 * kConsumers>(p.dv, p.dv_dtype, p.dim_v);
      store(p.dv, p.dv_dtype, p.dim_v, dv, 1.0f, consumer);
    }
    if (p.dk.data) {
      if (key_begin == 0) this->template clear_leftpad<128 * kConsumers>(p.dk, p.dk_dtype, p.dim_qk);
      store(p.dk, p.dk_dtype, p.dim_qk, dk, p.score.scale, consumer);
    }
  }
  // Loose consumers make exponentials in turn (ping-pong): left alone they fall into step, and nobody has
  // products while both compute.
  MICA_DEVICE void ping_pong_wait(i32 group) const { barrier_sync(kPingPongBarrier + group, 128 * kConsumers); }
  MICA_DEVICE void ping_pong_pass(i32 group) const { barrier_arrive(kPingPongBarrier + group, 128 * kConsumers); }
  // The query tiles of loose consumers. The product dQ of a tile comes after dK of the next one; in the first step it
  // is of nothing, and not used.
  MICA_DEVICE void loop_loosely(float (&dk)[1][dim_qk / 8][4], float (&dv)[1][dim_v / 8][4], i32 count, i32 group,
                                i32 warp) const {
    const i32 first_row = group * 64 + warp * 16;
    Place place;
    Scores s;
    if (group == 1) ping_pong_pass(0);
    ring.wait_full(place);
    this->template gemm_rows<dim_qk, KTile, QTile>(s[0], smem_k + group * 64 * 128,
                                                   smem_q + place.stage * QTile::kBytes);
    auto query = this->first_query_tile();
    for (i32 step = 0; step < count; ++step, this->next(query)) {
      const RingPlace<2> now = RingPlace<2>::of_step(step);
      const u32 q = smem_q + place.stage * QTile::kBytes, d_o = smem_do + now.stage * OTile::kBytes;
      const u32 ds = smem_ds + now.stage * DsTile::kBytes;
      const float* row_stats = stats + now.stage * 2 * tile_q;
      Operand probability, gradient;  // P^T and dS^T, rounded
      wgmma_wait<0>();
      wgmma_hold(s[0]);
      ping_pong_wait(group);
      do_ring.wait_full(now);
      Scores dp;
      this->template gemm_rows<dim_v, VTile, OTile>(dp[0], smem_v + group * 64 * 128, d_o);
      if (query.tile < tiles.full_begin || query.tile >= tiles.full_end)
        this->mask(s, key_begin + first_row, query.tile * tile_q);
      this->probabilities(s[0], row_stats);
      this->round(probability, s[0]);
      this->template gemm_operand<dim_v, OTile>(dv[0], probability, d_o);
      if (group == 0 || step + 1 < count) ping_pong_pass(group ^ 1);
      wgmma_wait<1>();
      wgmma_hold(dp[0]);
      this->gradients(dp[0], probability, row_stats + tile_q, 0, ds, first_row);
      this->round(gradient, dp[0]);
      ds_ring.wait_empty(now);
      share(ds, first_row, gradient);
      fence_for_wgmma();
      __syncwarp();
      arrive_as_warp(ds_ring.full(now.stage));
      this->template gemm_operand<dim_qk, QTile>(dk[0], gradient, q);
      float dq[kColumnsDQ / 8][4];
      if (step > 0) ds_ring.wait_full(RingPlace<2>::of_step(step - 1));
      gemm_dq(dq, step > 0 ? smem_ds + (now.stage ^ 1) * DsTile::kBytes : smem_k, group);
      wgmma_wait<1>();
      wgmma_hold(dv[0]);
      wgmma_hold(dk[0]);
      do_ring.release_by_thread(now);
      // After the last tile the scores are those of the tile itself, and not used: a branch would keep the compiler
      // from leaving products under way.
      const Place old = place;
      const bool is_last = step + 1 == count;
      if (!is_last) place.next();
      ring.wait_full(place);
      this->template gemm_rows<dim_qk, KTile, QTile>(s[0], smem_k + group * 64 * 128,
                                                     smem_q + place.stage * QTile::kBytes);
      if (!is_last) ring.release(old);
      wgmma_wait<1>();
      wgmma_hold(dq);
      if (step > 0) {
        arrive_as_warp(ds_ring.empty(now.stage ^ 1));
        if (p.dq_accumulator) hand_over_half(dq, step - 1, group, warp);
      }
    }
    wgmma_wait<0>();
    wgmma_hold(s[0]);
  }
  // dQ of a loose consumer's last tile.
  MICA_DEVICE void finish_loosely(i32 count, i32 group, i32 warp) const {
    const RingPlace<2> last = RingPlace<2>::of_step(count - 1);
    float dq[kColumnsDQ / 8][4];
    ds_ring.wait_full(last);
    gemm_dq(dq, smem_ds + last.stage * DsTile::kBytes, group);
    wgmma_wait<0>();
    wgmma_hold(dq);
    if (p.dq_accumulator) hand_over_half(dq, count - 1, group, warp);
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
  // 16 rows of dK or dV by their warp, through rows that nobody else reads: of V, or, where the next ones are on their
  // way, of dS.
  template <int n_blocks>
  MICA_DEVICE void store(const RowsArg& t, i32 dtype, i32 dim, float (&x)[1][n_blocks][4], float scale,
                         i32 consumer) const {
    static_assert(kPaddedQk == kPaddedV);
    __syncwarp();
    using Room = PanelTile<kPaddedV, 16>;
    if constexpr (kPersistent)
      this->template store_rows<Room>(smem_ds - smem_k + consumer * Room::kBytes, t, dtype, dim, x, scale,
                                      consumer * 16, 0, 0);
    else
      this->template store_rows<VTile>(smem_v - smem_k, t, dtype, dim, x, scale, consumer * 16, 0, consumer * 16);
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
    const i32 first_column = kRowsEach ? 0 : group * (kPaddedQk / kConsumers);
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
        Wgmma<Element, kColumnsDQ>::add_b_transposed(dq, rows, k, kWholeHeads || i > 0);
    }
    wgmma_commit();
  }

  // dQ to the thread that adds it; of loose consumers.
  MICA_DEVICE void hand_over(const float (&dq)[kColumnsDQ / 8][4], i32 step, i32 group, i32 warp) const {
    hand_over(dq, group, warp, dq_ring, RingPlace<1>::of_step(step));
  }
  MICA_DEVICE void hand_over_half(const float (&dq)[kColumnsDQ / 8][4], i32 step, i32 group, i32 warp) const {
    hand_over(dq, group, warp, dq_rings, RingPlace<2>{group, u32(step % 2)});
  }
  template <int rings>
  MICA_DEVICE void hand_over(const float (&dq)[kColumnsDQ / 8][4], i32 group, i32 warp, const Ring<rings>& to_ring,
                             RingPlace<rings> place) const {
    constexpr int kDim = kTransposed ? tile_q : dim_qk;
    const i32 lane = threadIdx.x % 32;
    const i32 row_block = kTransposed || kRowsEach ? group * 4 + warp : warp;
    const i32 column_block = kTransposed || kRowsEach ? 0 : group * (kColumnsDQ / 8);
    const u32 to = smem_dq + dq_accumulator_index(kDim, row_block, column_block, lane) * 4;
    to_ring.wait_empty(place);
#pragma unroll
    for (int n = 0; n < kColumnsDQ / 8; ++n)
      if (has_columns(group, warp, n)) store_shared_floats(to + n * 512, dq[n]);
    fence_for_wgmma();
    __syncwarp();
    arrive_as_warp(to_ring.full(place.stage));
  }
  // Whether block n of a group's dQ has columns that exist: the second group's last ones are the rest of a panel.
  static MICA_DEVICE bool has_columns(i32 group, i32 warp, int n) {
    if constexpr (dim_qk % 64 == 0) return true;
    if constexpr (kTransposed) return group * 64 + warp * 16 < dim_qk;
    return (kRowsEach ? 0 : group * kColumnsDQ) + n * 8 < dim_qk;
  }

  // What the key tiles before have added to dQ, or zeros.
  MICA_DEVICE void take_up(float (&dq)[kColumnsDQ / 8][4], const typename Base::QueryTile& query, i32 group, i32 warp,
                           bool is_there) const {
    const float* from =
        kept_dq(query) + dq_accumulator_index(dim_qk, kRowsEach ? group * 4 + warp : warp,
                                              kRowsEach ? 0 : group * (kColumnsDQ / 8), threadIdx.x % 32);
#pragma unroll
    for (int n = 0; n < kColumnsDQ / 8; ++n) {
      dq[n][0] = dq[n][1] = dq[n][2] = dq[n][3] = 0.0f;
      if (is_there && has_columns(group, warp, n)) load_copied(dq[n], from + n * 128);
    }
  }
  // dQ in its place: no later key tile is seen.
  MICA_DEVICE void finish_dq(const float (&dq)[kColumnsDQ / 8][4], const typename Base::QueryTile& query, i32 group,
                             i32 warp) const {
    if (!maps.dq.data) return;
    const i32 lane = threadIdx.x % 32, first_column = (kRowsEach ? 0 : group * kColumnsDQ) + lane % 4 * 8;
    const i32 first_row = query.tile * tile_q + (kRowsEach ? group * 64 : 0) + warp * 16 + lane / 4;
    u16* to = static_cast<u16*>(maps.dq.data) + this->query_offset(maps.dq, query.head, first_row) + first_column;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < kColumnsDQ / 8; n += 4) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          words[i] = pack<Element>(dq[n + i][2 * half] * p.score.scale, dq[n + i][2 * half + 1] * p.score.scale);
        transpose_in_quad(words);
        if (first_row + half * 8 < sequence.slot_len_q && first_column + n * 8 < p.dim_qk)
          *reinterpret_cast<uint4*>(to + half * 8 * maps.dq.stride_row + n * 8) =
              make_uint4(words[0], words[1], words[2], words[3]);
      }
  }
  // dQ of query tiles that see no key. By all consumers.
  MICA_DEVICE void clear_unseen() const {
    if (!maps.dq.data) return;
    TileRange seen = TileRange{0, 0, 0, 0};
    if (sequence.len_k > 0) seen = key_tiles(transpose(band), 0, sequence.len_k, tile_q);
    const i32 begin = seen.begin * tile_q, end = seen.end * tile_q, chunks = p.dim_qk / 8;
    if (begin == 0 && end >= sequence.slot_len_q) return;
    const auto query = this->first_query_tile();
    for (i32 head = query.head; head < min_of(query.head + p.part_heads, (head_k + 1) * p.group); ++head)
      for (i32 i = i32(threadIdx.x) - 128; i < sequence.slot_len_q * chunks; i += 128 * kConsumers) {
        const i32 row = i / chunks;
        if (row >= begin && row < end) continue;
        *reinterpret_cast<uint4*>(static_cast<u16*>(maps.dq.data) + this->query_offset(maps.dq, head, row) +
                                  i % chunks * 8) = make_uint4(0, 0, 0, 0);
      }
  }
};

}  // namespace mica
