// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper where dK and dV of a key tile fill the registers of two or three warpgroups: each
// computes the scores of its part of the keys, and has its part of the columns of dK, dV and dQ. Fetched by the copy
// engine.
//
//   S = Q K^T, dP = dO V^T                    | all queries of the tile, own keys
//   P^T, dS^T -> shared memory; consumers meet
//   dV^T += dO^T P     dK^T += Q^T dS         | own columns, all keys
//   dQ = dS K                                 | own columns, 64 at a time, added to the accumulator from the registers
#pragma once

#include "cuda/kernels/parts/backward_drawn_sm90.h"
#include "device/pair_sums.cuh"
#include "kernels/parts/backward_maps_sm90.cuh"
#include "kernels/whole/key_norms.cuh"

namespace mica {

// ORDERED: key tiles add to dQ in a fixed order. One lane waits for the semaphore and tells the consumers, and releases
// it when all of them have added. Or, kIntegersVariant, in any order, in whole numbers (dq_integers.h), whose factors a
// warp brings; heads whose keys do not have one scale add floats in order.
template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, Course course,
          u32 served, int variant>
struct BackwardHalvesSm90 : BackwardMaps<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, served> {
  using Base = BackwardMaps<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, served>;
  static_assert(served == serves::PLAIN || served == serves::SOFTCAP);
  static_assert(course == Course::ONE_TILE || course == Course::ORDERED);
  static constexpr bool kOrdered = course == Course::ORDERED, kIntegers = variant == kIntegersVariant;
  static_assert(kOrdered || !kIntegers);
  static constexpr bool kCapped = served == serves::SOFTCAP;
  using Base::band;
  using Base::batch_index;
  using Base::features;
  using Base::head;
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
  using typename Base::OTile;
  using typename Base::Place;
  using typename Base::QTile;
  using typename Base::STile;
  using typename Base::VTile;
  static_assert(tile_q == 64 && tile_k % (8 * kConsumers) == 0);
  static constexpr int kProducerRegisters = kConsumers == 2 ? 24 : 32, kConsumerRegisters = kConsumers == 2 ? 240 : 160;
  static constexpr int kAddedBarrier = kConsumerBarrier + 1;  // named: all consumers have added their dQ
  static constexpr int kKeys = tile_k / kConsumers;           // of a group's scores
  // A group has its part of the columns of dK and dV, in blocks of 64 that are rows, transposed; or, where they do not
  // come out even, all columns of its own keys.
  static constexpr bool kSharesK = dim_qk % (64 * kConsumers) == 0, kSharesV = dim_v % (64 * kConsumers) == 0;
  static constexpr int kBlocksK = dim_qk / 64 / (kSharesK ? kConsumers : 1), kKeysK = kSharesK ? tile_k : kKeys;
  static constexpr int kBlocksV = dim_v / 64 / (kSharesV ? kConsumers : 1), kKeysV = kSharesV ? tile_k : kKeys;
  // Its columns of dQ: 64, and where there are more, another slice.
  static constexpr int kColumnsDQ = dim_qk / kConsumers, kRestDQ = kColumnsDQ - 64;
  static_assert(kColumnsDQ * kConsumers == dim_qk && (kRestDQ == 0 || kRestDQ == 32 || kRestDQ == 64));
  using Scores = float[kKeys / 8][4];  // queries are rows
  using GradientK = float[kBlocksK][kKeysK / 8][4];
  using GradientV = float[kBlocksV][kKeysV / 8][4];
  static constexpr BackwardHalvesSm90Layout kLayout =
      backward_halves_sm90_layout(tile_q, tile_k, dim_qk, dim_v, stages);
  static constexpr int kDoStages = kLayout.do_stages;
  using DoPlace = RingPlace<kDoStages>;
  static_assert(kLayout.v == KTile::kBytes && kLayout.q - kLayout.v == VTile::kBytes &&
                kLayout.d_o - kLayout.q == stages * QTile::kBytes &&
                kLayout.p - kLayout.d_o == kDoStages * OTile::kBytes && kLayout.ds - kLayout.p == 2 * STile::kBytes &&
                kLayout.ring - kLayout.ds == 2 * STile::kBytes);

  Ring<kDoStages> do_ring;
  u32 smem_p, keys_full, q_landed, do_landed, dq_open, dq_added;

  MICA_DEVICE void run(u8* smem) {
    griddepcontrol_launch_dependents();
    if (threadIdx.x == 0) this->prefetch_maps();
    if (!this->locate_item(blockIdx.x)) {
      griddepcontrol_wait();
      return;
    }
    room = smem;
    smem_k = shared_address(smem);
    smem_v = smem_k + kLayout.v;
    smem_q = smem_k + kLayout.q;
    smem_do = smem_k + kLayout.d_o;
    smem_p = smem_k + kLayout.p;
    smem_ds = smem_k + kLayout.ds;
    ring.barriers = smem_k + kLayout.ring;
    do_ring.barriers = smem_k + kLayout.do_ring;
    keys_full = smem_k + kLayout.keys_full;
    do_landed = smem_k + kLayout.do_landed;
    q_landed = smem_k + kLayout.q_landed;
    dq_open = smem_k + kLayout.dq_open;
    dq_added = smem_k + kLayout.dq_added;
    stats = reinterpret_cast<float*>(smem + kLayout.stats);
    const i32 count = this->num_steps();
    if (threadIdx.x == 0) {
      ring.init(1 + 32, 128 * kConsumers);
      do_ring.init(1 + 32, 4 * kConsumers);
      mbarrier_init(keys_full, 1);
      for (i32 stage = 0; stage < kDoStages; ++stage) mbarrier_init(do_landed + stage * 8, 1);
      // Factors of rows are written and read in between: by every thread, since racecheck follows those alone.
      mbarrier_init(dq_open, kIntegers ? 32 : 1);
      mbarrier_init(dq_added, kIntegers ? 128 * kConsumers : 4 * kConsumers);
      for (i32 stage = 0; stage < stages; ++stage) mbarrier_init(q_landed + stage * 8, 1);
      fence_for_wgmma();
      if (count > 0) this->ask_keys(keys_full);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
      setmaxnreg_dec<kProducerRegisters>();
      if (threadIdx.x == 0)
        fetch(count);
      else if (threadIdx.x / 32 == 1)
        bring_stats(count);
      else if (kIntegers && threadIdx.x / 32 == 2)
        keep_whole(count);
      else if (kOrdered && threadIdx.x == 64)
        keep_order(count, p.dq_semaphores);
      else if (threadIdx.x / 32 == 3)
        clear_and_count();
    } else {
      setmaxnreg_inc<kConsumerRegisters>();
      consume(count);
    }
  }

  // One warp.
  MICA_DEVICE void clear_and_count() const {
    griddepcontrol_wait();  // which clears the counters
    this->clear_ahead(blockIdx.x);
    if (!maps.heads_done) return;
    barrier_sync(kAddedBarrier, 128 * kConsumers + 32);
    if (threadIdx.x % 32 == 0) this->count_done();
  }
  static MICA_DEVICE i32 tile_of(const typename Base::HeadTile& query) {
    return kOrdered ? Base::counted(query.tile) : query.tile;
  }

  // One lane, which has asked for K and V already.
  MICA_DEVICE void fetch(i32 count) const {
    griddepcontrol_wait();  // dO may have been converted
    Place place;
    auto query = this->first_query_tile();
    for (i32 step = 0; step < count; ++step, place.next(), this->next(query)) {
      const bool ragged = this->is_ragged(tile_of(query) * tile_q);
      ring.wait_empty(place);
      ask_rows<QTile>(smem_q + place.stage * QTile::kBytes, maps.q, query, ring.full(place.stage),
                      q_landed + place.stage * 8, ragged);
      const DoPlace do_place = DoPlace::of_step(step);
      do_ring.wait_empty(do_place);
      ask_rows<OTile>(smem_do + do_place.stage * OTile::kBytes, maps.d_o, query, do_ring.full(do_place.stage),
                      do_landed + do_place.stage * 8, ragged);
    }
  }
  template <class Tile>
  MICA_DEVICE void ask_rows(u32 shared, const MappedRows& rows, const typename Base::HeadTile& query, u32 full,
                            u32 landed, bool ragged) const {
    const u32 barrier = ragged ? landed : full;
    mbarrier_arrive_expecting(barrier, Tile::kBytes);
    this->template ask<Tile>(shared, rows, i32(sequence.q_begin) + tile_of(query) * tile_q, query.head, sequence.q_slot,
                             barrier);
    if (ragged) mbarrier_arrive(full);
  }

  // One warp: the row statistics, and zeros in the place of rows past the sequence.
  MICA_DEVICE void bring_stats(i32 count) const {
    u32 q_parities = 0, do_parities = 0;
    griddepcontrol_wait();  // also without a step: whoever waits for this kernel relies on what it waited for
    // Consumers add to dQ what they make of these statistics.
    if (threadIdx.x % 32 == 0 && count > 0) this->await_zeros();
    __syncwarp();
    Place place;
    auto query = this->first_query_tile();
    for (i32 step = 0; step < count; ++step, place.next(), this->next(query)) {
      const bool ragged = this->is_ragged(tile_of(query) * tile_q);
      this->bring_stats_of(query, place.stage, [&] { ring.wait_empty(place); });
      if (ragged) {
        mbarrier_wait(q_landed + place.stage * 8, q_parities >> place.stage & 1);
        q_parities ^= 1u << place.stage;
        this->template clear_queries<QTile>(smem_q + place.stage * QTile::kBytes, tile_of(query));
      }
      mbarrier_arrive(ring.full(place.stage));
      const DoPlace do_place = DoPlace::of_step(step);
      do_ring.wait_empty(do_place);
      if (ragged) {
        mbarrier_wait(do_landed + do_place.stage * 8, do_parities >> do_place.stage & 1);
        do_parities ^= 1u << do_place.stage;
        this->template clear_queries<OTile>(smem_do + do_place.stage * OTile::kBytes, tile_of(query));
      }
      mbarrier_arrive(do_ring.full(do_place.stage));
    }
  }

  // One warp: by what the rows of a step's dQ become whole numbers; zeros where they are floats.
  MICA_DEVICE float* factors() const { return reinterpret_cast<float*>(room + kLayout.bytes); }
  MICA_DEVICE void keep_whole(i32 count) {
    griddepcontrol_wait();  // which measures rows and keys, and clears the counts
    const i32 head_of_all = batch_index * p.heads_k + head_k, lane = threadIdx.x % 32;
    const KeyNorms norms = norms_of_head(maps.key_norms + i64(head_of_all) * kNormChunks, sequence.len_k);
    if (lane == 0) maps.head_norms[head_of_all] = norms;  // as all blocks of the head
    if (!have_one_scale(norms)) {
      factors()[lane] = factors()[lane + 32] = 0.0f;
      keep_order(count, maps.dq_order);
      return;
    }
    auto query = this->first_query_tile();
    for (i32 step = 0; step < count; ++step, this->next(query)) {
      const i32 row = query.tile * tile_q, valid = sequence.len_q - row;
      const i64 stat =
          query.head * p.stat_rows + sequence.q_slot * i64(p.sequences.slot_len_q) + sequence.q_begin + row;
      float own[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const i32 at = lane + 32 * i;
        own[i] = at < valid ? integers_scale(dq_bound(norms, maps.row_norm[stat + at], p.row_delta[stat + at])) : 1.0f;
      }
      if (step > 0) mbarrier_wait(dq_added, (step - 1) % 2);
      factors()[lane] = own[0];
      factors()[lane + 32] = own[1];
      head = query.head;
      if (lane == 0) atomic_add(reinterpret_cast<u32*>(maps.dq_order + this->dq_tile(query.tile)), 1u);
      mbarrier_arrive(dq_open);
    }
  }
  // One lane, or a warp. The next tile's turn is looked up before this one's release, which takes a while.
  MICA_DEVICE void keep_order(i32 count, i32* semaphores) {
    if constexpr (!kIntegers) griddepcontrol_wait();  // which clears the semaphores
    const bool last_first = this->adds_last_first();
    auto query = this->first_query_tile();
    i32 seen = 0;  // of the tile's count
    for (i32 step = 0; step < count; ++step) {
      head = query.head;
      const i64 semaphore = this->dq_tile(tile_of(query));
      if (semaphores) this->await_turn(this->added_before(tile_of(query), last_first), semaphores + semaphore, seen);
      mbarrier_arrive(dq_open);
      this->next(query);
      head = query.head;
      mbarrier_wait(dq_added, step % 2);
      if (!semaphores) continue;
      if (step + 1 < count) seen = load_relaxed(semaphores + this->dq_tile(tile_of(query)));
      if (!kIntegers || threadIdx.x % 32 == 0) add_release(semaphores + semaphore, 1);
    }
  }

  MICA_DEVICE void consume(i32 count) {
    count = this->make_uniform(count);
    const i32 consumer = warp_max(threadIdx.x / 32) - 4, group = consumer / 4, warp = consumer % 4;
    const u32 own_rows = group * kKeys * 128;
    const u32 own_panels_k = kSharesK ? group * kBlocksK * QTile::kPanelBytes : 0, own_rows_k = kSharesK ? 0 : own_rows;
    const u32 own_panels_v = kSharesV ? group * kBlocksV * OTile::kPanelBytes : 0, own_rows_v = kSharesV ? 0 : own_rows;
    // The slices of dQ: side by side, or the narrower ones behind all of the others.
    const i32 first_dq = group * (kSharesK ? kColumnsDQ : 64);
    const i32 rest_dq = kSharesK ? first_dq + 64 : 64 * kConsumers + group * kRestDQ;
    const bool has_upper_dq = first_dq + 32 < p.dim_qk;  // columns in the second half of its 64
    GradientK dk;                                        // transposed, both
    GradientV dv;
    zero(dk);
    zero(dv);
    if (count > 0) {
      Scores s;
      this->wait_for_keys(keys_full);
      Place place;
      ring.wait_full(place);
      begin_scores<QTile, KTile>(s, smem_q, made_anew(smem_k) + own_rows);
      wgmma_wait<0>();
      wgmma_hold(s);
      auto query = this->first_query_tile();
      const i32 dq_before = warp_max(this->dq_tiles_before());
      for (i32 step = 0; step < count; ++step, this->next(query)) {
        const DoPlace do_place = DoPlace::of_step(step);
        const u32 q = smem_q + place.stage * QTile::kBytes, d_o = smem_do + do_place.stage * OTile::kBytes;
        const u32 probabilities = smem_p + step % 2 * STile::kBytes, ds = smem_ds + step % 2 * STile::kBytes;
        Scores dp;
        if constexpr (kCapped) features.scale(reinterpret_cast<float(&)[1][kKeys / 8][4]>(s), p);
        do_ring.wait_full(do_place);
        begin_scores<OTile, VTile>(dp, d_o, made_anew(smem_v) + own_rows);
        if (query.tile < tiles.full_begin || query.tile >= tiles.full_end) mask_rows(s, tile_of(query), warp, group);
        const i32 first_block = group * (kKeys / 8);
        float last[4];  // of P, before softcap's slope
        if constexpr (kCapped)
          weigh_capped_rows(s, last, stats + place.stage * 2 * tile_q + warp * 16, probabilities, first_block, warp);
        else
          weigh_rows(s, stats + place.stage * 2 * tile_q + warp * 16);
        wgmma_wait<0>();
        wgmma_hold(dp);
        differentiate_rows(dp, s, stats + (place.stage * 2 + 1) * tile_q + warp * 16);
        if constexpr (!kCapped) share_twos(probabilities, s, first_block, warp);
        share_twos(ds, dp, first_block, warp);
        share_last(probabilities, ds, kCapped ? last : s[kKeys / 8 - 1], dp[kKeys / 8 - 1], first_block, warp);
        fence_for_wgmma();
        barrier_sync(kConsumerBarrier, 128 * kConsumers);
        float dq[8][4];
        float rest[max_of(kRestDQ, 32) / 8][4];
        float* to = dq_place(dq_before + tile_of(query), query.head, first_dq, warp);
        this->template gemm_dq<64>(dq, ds, first_dq);
        begin_gradient<OTile>(dv, d_o + own_panels_v, probabilities + own_rows_v);
        wgmma_wait<1>();
        wgmma_hold(dq);
        if constexpr (kOrdered) mbarrier_wait(dq_open, step % 2);
        float scales[2] = {0.0f, 0.0f};
        if constexpr (kIntegers) {
          const float* own = factors() + warp * 16 + threadIdx.x % 32 / 4;
          scales[0] = own[0];
          scales[1] = own[8];
        }
        if (p.dq_accumulator) {
          add_dq<0, 4>(to, dq, scales);
          if (kRestDQ > 0 || has_upper_dq) add_dq<4, 8>(to, dq, scales);
        }
        if constexpr (kRestDQ > 0) this->template gemm_dq<kRestDQ>(rest, ds, rest_dq);
        begin_gradient<QTile>(dk, q + own_panels_k, ds + own_rows_k);
        wgmma_wait<1>();
        hold(dv);
        arrive_as_warp(do_ring.empty(do_place.stage));
        if constexpr (kRestDQ > 0) {
          wgmma_hold(rest);
          if (p.dq_accumulator) add_dq<0, kRestDQ / 8>(to + (rest_dq - first_dq) / 8 * 128, rest, scales);
        }
        if constexpr (kIntegers) {
          mbarrier_arrive(dq_added);
        } else if constexpr (kOrdered) {
          __syncwarp();
          arrive_as_warp(dq_added);
        }
        // After the last tile the scores are those of the tile itself, and not used: a branch would keep the compiler
        // from leaving products under way.
        const Place old = place;
        if (step + 1 < count) place.next();
        ring.wait_full(place);
        begin_scores<QTile, KTile>(s, smem_q + place.stage * QTile::kBytes, made_anew(smem_k) + own_rows);
        wgmma_wait<1>();
        hold(dk);
        ring.release_by_thread(old);
        wgmma_wait<0>();
        wgmma_hold(s);
      }
      barrier_sync(kConsumerBarrier, 128 * kConsumers);  // K and V are done with: their room is for dK and dV
    }
    if (maps.heads_done) barrier_arrive(kAddedBarrier, 128 * kConsumers + 32);
    const i32 first_k = (kSharesK ? group * kColumnsDQ : 0) + warp * 16, key_k = kSharesK ? 0 : group * kKeys;
    const i32 first_v = (kSharesV ? group * (dim_v / kConsumers) : 0) + warp * 16, key_v = kSharesV ? 0 : group * kKeys;
    if (maps.parts > 1) {
      in_turn(consumer, [&] { add_keys<dim_qk>(maps.dk_accumulator, dk, first_k, key_k); });
      in_turn(4 * kConsumers + consumer, [&] { add_keys<dim_v>(maps.dv_accumulator, dv, first_v, key_v); });
      return;
    }
    if (p.dk.data) {
      if (key_begin == 0) this->template clear_leftpad<128 * kConsumers>(p.dk, p.dk_dtype, p.dim_qk);
      store<KTile>(0, p.dk, p.dk_dtype, p.dim_qk, dk, p.score.scale, first_k, key_k);
    }
    if (p.dv.data) {
      if (key_begin == 0) this->template clear_leftpad<128 * kConsumers>(p.dv, p.dv_dtype, p.dim_v);
      store<VTile>(KTile::kBytes, p.dv, p.dv_dtype, p.dim_v, dv, 1.0f, first_v, key_v);
    }
  }
  // By a warp, where blocks that share a key tile add in a fixed order: when those before this one have added what the
  // same warp of theirs has; the first two in either order. place: of dK or dV and the warp, each of which has a
  // semaphore, so that a block follows another closely.
  static constexpr i32 kPlaces = backward_halves_places(kConsumers);
  template <class Add>
  MICA_DEVICE void in_turn(i32 place, Add add) const {
    if (!maps.key_semaphores) {
      add();
      return;
    }
    const i32 item = i32(blockIdx.x), turn = item - floor_div(item, maps.by_parts) * maps.parts;
    i32* semaphore = maps.key_semaphores + this->key_block() * kPlaces + place;
    if (turn >= kEitherOrder && threadIdx.x % 32 == 0)
      while (load_acquire(semaphore) != turn) __nanosleep(40);
    __syncwarp();
    add();
    __threadfence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) add_release(semaphore, 1);
  }
  // The group's part of dK or dV to their sums, transposed blocks, where other blocks have the group's other heads.
  // null: not wanted.
  template <int dim, int blocks, int n_blocks>
  MICA_DEVICE void add_keys(float* accumulator, const float (&x)[blocks][n_blocks][4], i32 first_column,
                            i32 first_key) const {
    static_assert(backward_transposes_dq(tile_k));
    if (!accumulator) return;
    float* to = accumulator + this->key_block() * (tile_k * dim) +
                dq_accumulator_index(tile_k, first_column / 16, first_key / 8, threadIdx.x % 32);
#pragma unroll
    for (int m = 0; m < blocks; ++m)
#pragma unroll
      for (int n = 0; n < n_blocks; ++n) reduce_add_4(to + (m * 4 * (tile_k / 8) + n) * 128, x[m][n]);
  }
  template <int blocks, int n>
  static MICA_DEVICE void hold(float (&x)[blocks][n][4]) {
#pragma unroll
    for (int m = 0; m < blocks; ++m) wgmma_hold(x[m]);
  }

  // c (64 queries x own keys) = A B^T, begun.
  template <class ATile, class BTile>
  static MICA_DEVICE void begin_scores(Scores& c, u32 a, u32 b) {
    const u64 from_a = matrix_descriptor(a, 16, 1024), from_b = matrix_descriptor(b, 16, 1024);
    wgmma_hold(c);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < ATile::kPanels * 4; ++i)
      Wgmma<Element, kKeys>::add(c, advance(from_a, i / 4 * ATile::kPanelBytes + i % 4 * 32),
                                 advance(from_b, i / 4 * BTile::kPanelBytes + i % 4 * 32), i > 0);
    wgmma_commit();
  }
  // c (blocks of 64 columns x keys) += A^T B, begun; b lies by keys.
  template <class ATile, int blocks, int n_blocks>
  static MICA_DEVICE void begin_gradient(float (&c)[blocks][n_blocks][4], u32 a, u32 b) {
    const u64 from_a = matrix_descriptor(a, ATile::kPanelBytes, 1024), from_b = matrix_descriptor(b, 16, 1024);
    hold(c);
    wgmma_fence();
#pragma unroll
    for (int m = 0; m < blocks; ++m)
#pragma unroll
      for (int i = 0; i < tile_q / 16; ++i)
        Wgmma<Element, 8 * n_blocks>::add_a_transposed(c[m], advance(from_a, m * ATile::kPanelBytes + i * 16 * 128),
                                                       advance(from_b, i * 32), 1);
    wgmma_commit();
  }

  MICA_DEVICE void mask_rows(Scores& s, i32 tile, i32 warp, i32 group) const {
    const i32 lane = threadIdx.x % 32, first = key_begin + group * kKeys + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Range keys = keys_of_row(band, tile * tile_q + warp * 16 + half * 8 + lane / 4);
      hide_outside<kKeys / 8>(s, half, keys.begin - first, keys.end - first);
    }
  }
  // lse, delta: of this warp's 16 queries.
  MICA_DEVICE void weigh_rows(Scores& s, const float* lse) const {
    const float rows[2] = {lse[threadIdx.x % 32 / 4], lse[threadIdx.x % 32 / 4 + 8]};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = ex2_approx(fmaf(s[n][e], p.score.scale_log2, -rows[e / 2]));
  }
  // Scores that softcap has seen to. P is shared; what is left is P times the slope of the softcap, 1 - tanh^2.
  MICA_DEVICE void weigh_capped_rows(Scores& s, float (&last)[4], const float* lse, u32 probabilities, i32 first_block,
                                     i32 warp) const {
    const float rows[2] = {lse[threadIdx.x % 32 / 4], lse[threadIdx.x % 32 / 4 + 8]};
    const float inverse_cap = 1.0f / p.score.cap_log2;
    Scores weights;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        // A hidden score is infinite.
        const float t = s[n][e] * inverse_cap, slope = fminf(fmaxf(fmaf(-t, t, 1.0f), 0.0f), 1.0f);
        s[n][e] = ex2_approx(s[n][e] - rows[e / 2]);
        weights[n][e] = s[n][e] * slope;
      }
    share_twos(probabilities, s, first_block, warp);
#pragma unroll
    for (int e = 0; e < 4; ++e) last[e] = s[kKeys / 8 - 1][e];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = weights[n][e];
  }
  static MICA_DEVICE void differentiate_rows(Scores& dp, const Scores& probability, const float* delta) {
    const float rows[2] = {delta[threadIdx.x % 32 / 4], delta[threadIdx.x % 32 / 4 + 8]};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) dp[n][e] = probability[n][e] * (dp[n][e] - rows[e / 2]);
  }

  // P^T or dS^T, by keys, from block `first_block` of eight on, two at a time.
  static MICA_DEVICE void share_twos(u32 tile, const Scores& x, i32 first_block, i32 warp) {
    const i32 lane = threadIdx.x % 32, chunk = warp * 2 + lane / 8 % 2;
#pragma unroll
    for (int n = 0; n + 1 < kKeys / 8; n += 2) {
      u32 words[4];
      pack_a<Element>(words, x[n], x[n + 1]);
      stmatrix_x4_trans(tile + STile::offset((first_block + n + lane / 16) * 8 + lane % 8, chunk), words);
    }
  }
  // Where their number is odd, the last block of both, together.
  static MICA_DEVICE void share_last(u32 probabilities, u32 ds, const float (&s)[4], const float (&d)[4],
                                     i32 first_block, i32 warp) {
    if constexpr (kKeys / 8 % 2 == 1) {
      const i32 lane = threadIdx.x % 32, chunk = warp * 2 + lane / 8 % 2;
      u32 words[4];
      pack_a<Element>(words, s, d);
      stmatrix_x4_trans(
          (lane < 16 ? probabilities : ds) + STile::offset((first_block + kKeys / 8 - 1) * 8 + lane % 8, chunk), words);
    }
  }

  // Blocks of eight columns of dQ of this warp's 16 queries. scales: of the lane's two rows, by which they become whole
  // numbers; zeros: they are floats.
  template <int begin, int end, int n_blocks>
  static MICA_DEVICE void add_dq(float* to, float (&dq)[n_blocks][4], const float (&scales)[2]) {
    if constexpr (!kIntegers) {
#pragma unroll
      for (int n = begin; n < end; ++n) reduce_add_4(to + n * 128, dq[n]);
      return;
    }
    if (scales[0] == 0.0f) {
#pragma unroll
      for (int n = begin; n < end; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          reduce_add_pair(to + n * 128 + half * kPairsApart, dq[n][2 * half], dq[n][2 * half + 1]);
      return;
    }
    u32 unlike = 0;  // bits by which one differs that is too large to have its number in its low bits
#pragma unroll
    for (int n = begin; n < end; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        dq[n][e] = fmaf(dq[n][e], scales[e / 2], kOffset);
        unlike |= bits_of(dq[n][e]) ^ kOffsetExponent;
      }
    // A larger one is rounded once more.
    if (unlike & kExponentMask)
#pragma unroll
      for (int n = begin; n < end; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) dq[n][e] = float_of(u32(round_to_integer(dq[n][e]) - i32(kOffset)) + kOffsetBits);
#pragma unroll
    for (int n = begin; n < end; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        reduce_add_pair(to + n * 128 + half * kPairsApart, bits_of(dq[n][2 * half]), bits_of(dq[n][2 * half + 1]));
  }
  // This thread's first quad of columns.
  MICA_DEVICE float* dq_place(i32 tile_of_all, i32 head_q, i32 first_column, i32 warp) const {
    const i32 lane = threadIdx.x % 32, block = first_column / 8;
    return p.dq_accumulator + (i64(tile_of_all) * p.heads_q + head_q) * (tile_q * dim_qk) +
           (kIntegers ? dq_pair_index(dim_qk, warp, block, lane) : dq_accumulator_index(dim_qk, warp, block, lane));
  }

  // dK or dV through the tile at `offset` of shared memory, 16 bytes a thread: columns from first_column and keys from
  // first_key on. By all consumers.
  template <class Tile, int blocks, int n_blocks>
  MICA_DEVICE void store(u32 offset, const RowsArg& t, i32 dtype, i32 dim, float (&x)[blocks][n_blocks][4], float scale,
                         i32 first_column, i32 first_key) const {
    const i32 lane = threadIdx.x % 32;
    const i32 valid = sequence.slot_len_k - sequence.leftpad - key_begin;
    const i64 base = this->key_offset(t);
#pragma unroll
    for (int m = 0; m < blocks; ++m)
#pragma unroll
      for (int n = 0; n < n_blocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[m][n][e] *= scale;
    if (dtype != ElementTraits<Element>::kDtype) {
#pragma unroll
      for (int m = 0; m < blocks; ++m)
#pragma unroll
        for (int n = 0; n < n_blocks; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const i32 column = first_column + m * 64 + e / 2 * 8 + lane / 4;
            const i32 row = first_key + n * 8 + lane % 4 * 2 + e % 2;
            if (row < valid && column < dim)
              this->store_one(t.data, base + row * t.stride_row + column, dtype, x[m][n][e]);
          }
      return;
    }
#pragma unroll
    for (int m = 0; m < blocks; ++m)
#pragma unroll
      for (int n = 0; n + 1 < n_blocks; n += 2) {
        u32 words[4];
        pack_a<Element>(words, x[m][n], x[m][n + 1]);
        stmatrix_x4_trans(
            smem_k + offset +
                Tile::offset(first_key + (n + lane / 16) * 8 + lane % 8, (first_column + m * 64) / 8 + lane / 8 % 2),
            words);
      }
    if constexpr (n_blocks % 2 == 1) {  // the last of them by element
#pragma unroll
      for (int m = 0; m < blocks; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          reinterpret_cast<u16*>(room + offset +
                                 Tile::offset(first_key + (n_blocks - 1) * 8 + lane % 4 * 2 + e % 2,
                                              (first_column + m * 64) / 8 + e / 2))[lane / 4] =
              u16(pack<Element>(x[m][n_blocks - 1][e], 0.0f));
    }
    barrier_sync(kConsumerBarrier, 128 * kConsumers);
#pragma unroll 2
    for (i32 i = threadIdx.x - 128; i < tile_k * Tile::kChunks; i += 128 * kConsumers) {
      const i32 row = i / Tile::kChunks, chunk = i % Tile::kChunks;
      if (row < valid && chunk * 8 < dim)
        *reinterpret_cast<uint4*>(static_cast<u16*>(t.data) + base + row * t.stride_row + chunk * 8) =
            *reinterpret_cast<const uint4*>(room + offset + Tile::offset(row, chunk));
    }
  }
};

}  // namespace mica
