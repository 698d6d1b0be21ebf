// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper by the copy engine, of whole heads: a block takes all key tiles of a head, and then of
// the next, and fetches one while it stores dK and dV of the last. It is alone with the head's dQ: key tiles before the
// last one that a query tile sees add to it in the workspace, and the last one goes on from there and writes dQ.
//
// One lane asks for K and V, and for Q and dO of one query tile after the other; a warp brings the row statistics; one
// lane keeps dQ. Two consumer warpgroups have the registers, and meet in every step.
#pragma once

#include "kernels/parts/backward_tma_parts_sm90.cuh"

namespace mica {

// has_few: code of its own for tiles at the end of a sequence that have few rows, or keys of one consumer alone.
template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, bool has_few>
struct BackwardTmaHeads : BackwardTmaParts<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages> {
  using Base = BackwardTmaParts<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages>;
  using Base::band;
  using Base::batch_index;
  using Base::done_to;
  using Base::dq_ring;
  using Base::fresh_from;
  using Base::head_k;
  using Base::kBytesDQ;
  using Base::kColumnsDQ;
  using Base::kConsumerBarrier;
  using Base::kConsumers;
  using Base::key_begin;
  using Base::keys_full;
  using Base::kLayout;
  using Base::kRowsEach;
  using Base::kTransposed;
  using Base::landed;
  using Base::maps;
  using Base::p;
  using Base::ring;
  using Base::room;
  using Base::sequence;
  using Base::smem_do;
  using Base::smem_dq;
  using Base::smem_ds;
  using Base::smem_k;
  using Base::smem_q;
  using Base::smem_v;
  using Base::stats;
  using Base::tiles;
  using typename Base::DsTile;
  using typename Base::HeadTile;
  using typename Base::KTile;
  using typename Base::Operand;
  using typename Base::OTile;
  using typename Base::Place;
  using typename Base::QTile;
  using typename Base::Scores;
  using typename Base::VTile;
  static_assert(stages == 2 && !kTransposed);
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

  static constexpr int kFewRows = backward_few_rows();
  static_assert(!has_few || (Base::kStatColumns && tile_q > kFewRows));
  MICA_DEVICE bool ends_with_few_rows() const {
    return has_few && sequence.len_q - (tiles.end - 1) * tile_q <= kFewRows;
  }

  u32 keys_empty, dq_settled;

  MICA_DEVICE void run(u8* smem) {
    griddepcontrol_launch_dependents();
    if (threadIdx.x == 0) this->prefetch_maps();
    if (maps.packed_order) griddepcontrol_wait();
    this->place_tiles(smem);
    dq_ring.barriers = smem_k + kLayout.dq_ring;
    keys_empty = smem_k + kLayout.keys_empty;
    dq_settled = smem_k + kLayout.dq_settled;
    if (threadIdx.x == 0) {
      ring.init(1 + 32, 128 * kConsumers);
      dq_ring.init(4 * kConsumers, 1);
      mbarrier_init(keys_full, 1);
      mbarrier_init(keys_empty, 1);
      mbarrier_init(dq_settled, 1);
      for (i32 stage = 0; stage < stages; ++stage) mbarrier_init(landed + stage * 8, 1);
      fence_for_wgmma();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
      setmaxnreg_dec<kProducerRegisters>();
      if (threadIdx.x == 0)
        fetch();
      else if (threadIdx.x / 32 == 1)
        bring_stats();
      else if (threadIdx.x == 64 && p.dq_accumulator)
        keep_dq();
    } else {
      setmaxnreg_inc<kConsumerRegisters>();
      consume();
    }
  }

  // Whether there are query tiles that a later key tile goes on with. They follow those that none does.
  MICA_DEVICE bool keeps_dq() const { return tiles.end > done_to; }
  // One lane: dQ that a later key tile goes on with. After a key tile it says that all is written.
  MICA_DEVICE void keep_dq() {
    RingPlace<1> place;
    this->for_each_in_heads([&] {
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
  // Where a query tile's dQ is kept from one key tile to the next. Packed queries have a place each, since only their
  // sum is known to whoever reserves it.
  MICA_DEVICE float* kept_dq(const HeadTile& query) const {
    const i32 head = query.head - head_k * p.group;
    const i32 slot = maps.parts > 1 ? batch_index * p.heads_k + head_k : i32(blockIdx.x);
    const i64 place = p.packed_q ? i64(this->dq_tiles_before() + query.tile) * p.heads_q + query.head
                                 : (i64(slot) * p.group + head) * p.tiles_q + query.tile;
    return p.dq_accumulator + place * (tile_q * dim_qk);
  }

  // One lane. The first queries of a key tile are asked for before its keys, whose room is in use for longer.
  MICA_DEVICE void fetch() {
    Place place;
    i32 tiles_before = 0;
    this->for_each_in_heads([&] {
      const i32 count = this->num_steps();
      auto query = this->first_query_tile();
      if (count > 0 && tiles_before == 0) {
        this->ask_keys(keys_full);
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
  MICA_DEVICE void ask_queries(const HeadTile& query, const Place& place) const {
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

  // One warp: the row statistics, and zeros in the place of rows past the sequence.
  MICA_DEVICE void bring_stats() {
    u32 parities = 0;
    griddepcontrol_wait();  // also without a step: whoever waits for this kernel relies on what it waited for
    this->begin_rows();
    Place place;
    this->for_each_in_heads([&] {
      const i32 count = this->num_steps();
      auto query = this->first_query_tile();
      for (i32 step = 0; step < count; ++step, place.next(), this->next(query)) {
        this->bring_rows(query, place.stage, [&] { ring.wait_empty(place); });
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

  MICA_DEVICE void consume() {
    const i32 consumer = warp_max(threadIdx.x / 32) - 4, group = consumer / 4, warp = consumer % 4;
    Place place;
    i32 steps = 0;
    u32 keys_parity = 0, settled_parity = 1;
    this->for_each_in_heads([&] { consume_item(place, steps, keys_parity, settled_parity, consumer, group, warp); });
  }
  // steps: of the block's key tiles before, those whose dQ was handed over. Parities: of K and V of this one, of the
  // last one that kept dQ.
  MICA_DEVICE void consume_item(Place& place, i32& steps, u32& keys_parity, u32& settled_parity, i32 consumer,
                                i32 group, i32 warp) {
    const i32 count = this->make_uniform(this->num_steps());
    fresh_from = warp_max(fresh_from);
    done_to = warp_max(done_to);
    const i32 first_row = group * 64 + warp * 16;  // of this warp's keys, in the tile
    float dk[1][dim_qk / 8][4], dv[1][dim_v / 8][4];
    zero(dk);
    zero(dv);
    if (count > 0) {
      this->wait_for_keys(keys_full, keys_parity);
      keys_parity ^= 1;
    }
    const bool is_without_keys = has_few && count > 0 && !this->has_keys(group);
    if (is_without_keys) loop_without_keys(place, steps, count, settled_parity, group, warp);
    if (count > 0 && !is_without_keys) {
      Scores s;
      const auto begin_scores = [&] {
        this->template gemm_rows<dim_qk, KTile, QTile>(s[0], smem_k + group * 64 * 128,
                                                       smem_q + place.stage * QTile::kBytes,
                                                       [&] { this->add_logarithms(s[0], this->rows_of(place.stage)); });
      };
      ring.wait_full(place);
      begin_scores();
      wgmma_wait<0>();
      wgmma_hold(s[0]);
      auto query = this->first_query_tile();
      const i32 whole = count - i32(ends_with_few_rows());
      for (i32 step = 0; step < whole; ++step, this->next(query)) {
        const u32 q = smem_q + place.stage * QTile::kBytes, d_o = smem_do + place.stage * OTile::kBytes;
        const u32 ds = smem_ds + step % 2 * DsTile::kBytes;
        const float* row_stats = stats + place.stage * 2 * tile_q;
        Scores dp;
        Operand probability, gradient;  // P^T and dS^T, rounded
        this->template gemm_rows<dim_v, VTile, OTile>(dp[0], smem_v + group * 64 * 128, d_o,
                                                      [&] { this->add_deltas(dp[0], this->rows_of(place.stage)); });
        if (query.tile < tiles.full_begin || query.tile >= tiles.full_end)
          this->mask(s, key_begin + first_row, query.tile * tile_q);
        this->weigh_scores(s[0], row_stats);
        this->round(probability, s[0]);
        this->template gemm_operand<dim_v, OTile>(dv[0], probability, d_o);
        wgmma_wait<1>();
        wgmma_hold(dp[0]);
        this->differentiate_scores(dp[0], probability, row_stats + tile_q);
        this->round(gradient, dp[0]);
        this->share(ds, first_row, gradient);
        float dq[kColumnsDQ / 8][4];
        const bool is_done = query.tile < done_to, resumes = is_done && query.tile < fresh_from;
        if (resumes && maps.dq.data) mbarrier_wait(dq_settled, settled_parity);
        take_up(dq, query, group, warp, resumes && maps.dq.data);
        this->template gemm_operand<dim_qk, QTile>(dk[0], gradient, q);
        fence_for_wgmma();
        barrier_sync(kConsumerBarrier, 128 * kConsumers);
        this->template gemm_dq<true>(dq, ds, group);
        wgmma_wait<1>();
        wgmma_hold(dk[0]);
        wgmma_hold(dv[0]);
        // After the last tile the scores are those of the tile itself, and not used: a branch would keep the compiler
        // from leaving products under way.
        const Place old = place;
        const bool is_last = step + 1 == count;
        if (!is_last) place.next();
        ring.wait_full(place);
        begin_scores();
        wgmma_wait<1>();
        wgmma_hold(dq);
        if (!is_last) ring.release_by_thread(old);
        if (is_done)
          finish_dq(dq, query, group, warp);
        else if (p.dq_accumulator)
          this->hand_over(dq, group, warp, dq_ring, RingPlace<1>::of_step(steps++));
        wgmma_wait<0>();
        wgmma_hold(s[0]);
      }
      if constexpr (has_few)
        if (whole < count) step_of_few_rows(dk, dv, s, place, query, steps, whole, settled_parity, group, warp);
      ring.release_by_thread(place);
      place.next();
    }
    if (count > 0) {
      settled_parity ^= u32(keeps_dq());
      barrier_sync(kConsumerBarrier, 128 * kConsumers);  // K, V and dS are done with
      if (threadIdx.x == 128) mbarrier_arrive(keys_empty);
    }
    if (key_begin == 0) clear_unseen();
    this->template leave_keys<Base::Leave::THROUGH_DS>(dk, dv, count, consumer);
    barrier_sync(kConsumerBarrier, 128 * kConsumers);  // the room is for dS again
  }

  // The last step, of a query tile with few rows.
  MICA_DEVICE void step_of_few_rows(float (&dk)[1][dim_qk / 8][4], float (&dv)[1][dim_v / 8][4], Scores& s,
                                    const Place& place, const HeadTile& query, i32& steps, i32 step, u32 settled_parity,
                                    i32 group, i32 warp) const {
    const i32 first_row = group * 64 + warp * 16;
    const u32 q = smem_q + place.stage * QTile::kBytes, d_o = smem_do + place.stage * OTile::kBytes;
    const u32 ds = smem_ds + step % 2 * DsTile::kBytes;
    float few[1][kFewRows / 8][4], dp[kFewRows / 8][4];
#pragma unroll
    for (int i = 0; i < kFewRows / 2; ++i) few[0][i / 4][i % 4] = s[0][i / 4][i % 4];
    u32 probability[kFewRows / 16][4], gradient[kFewRows / 16][4];
    this->template gemm_rows<dim_v, VTile, OTile>(dp, smem_v + group * 64 * 128, d_o,
                                                  [&] { this->add_deltas(dp, this->rows_of(place.stage)); });
    if (query.tile < tiles.full_begin || query.tile >= tiles.full_end)
      this->mask(few, key_begin + first_row, query.tile * tile_q);
    this->weigh_scores(few[0], nullptr);
    this->round(probability, few[0]);
    this->template gemm_operand<dim_v, OTile>(dv[0], probability, d_o);
    wgmma_wait<1>();
    wgmma_hold(dp);
    this->differentiate_scores(dp, probability, nullptr);
    this->round(gradient, dp);
    this->share(ds, first_row, gradient);
    this->template share_zeros<kFewRows>(ds, first_row);
    float dq[kColumnsDQ / 8][4];
    const bool is_done = query.tile < done_to, resumes = is_done && query.tile < fresh_from;
    if (resumes && maps.dq.data) mbarrier_wait(dq_settled, settled_parity);
    take_up(dq, query, group, warp, resumes && maps.dq.data);
    this->template gemm_operand<dim_qk, QTile>(dk[0], gradient, q);
    fence_for_wgmma();
    barrier_sync(kConsumerBarrier, 128 * kConsumers);
    this->template gemm_dq<true>(dq, ds, group);
    wgmma_wait<0>();
    wgmma_hold(dk[0]);
    wgmma_hold(dv[0]);
    wgmma_hold(dq);
    if (is_done)
      finish_dq(dq, query, group, warp);
    else if (p.dq_accumulator)
      this->hand_over(dq, group, warp, dq_ring, RingPlace<1>::of_step(steps++));
  }
  // The steps of a consumer without keys: its part of dQ is all that there is to do.
  MICA_DEVICE void loop_without_keys(Place& place, i32& steps, i32 count, u32 settled_parity, i32 group,
                                     i32 warp) const {
    auto query = this->first_query_tile();
    for (i32 step = 0; step < count; ++step, this->next(query), place.next()) {
      const u32 ds = smem_ds + step % 2 * DsTile::kBytes;
      const bool is_done = query.tile < done_to, resumes = is_done && query.tile < fresh_from;
      float dq[kColumnsDQ / 8][4];
      ring.wait_full(place);
      ring.release_by_thread(place);
      if (step < 2) this->share_zeros(ds, group * 64 + warp * 16);
      if (resumes && maps.dq.data) mbarrier_wait(dq_settled, settled_parity);
      take_up(dq, query, group, warp, resumes && maps.dq.data);
      fence_for_wgmma();
      barrier_sync(kConsumerBarrier, 128 * kConsumers);
      this->template gemm_dq<true>(dq, ds, group);
      wgmma_wait<0>();
      wgmma_hold(dq);
      if (is_done)
        finish_dq(dq, query, group, warp);
      else if (p.dq_accumulator)
        this->hand_over(dq, group, warp, dq_ring, RingPlace<1>::of_step(steps++));
    }
  }

  // What the key tiles before have added to dQ, or zeros.
  MICA_DEVICE void take_up(float (&dq)[kColumnsDQ / 8][4], const HeadTile& query, i32 group, i32 warp,
                           bool is_there) const {
    const float* from =
        kept_dq(query) + dq_accumulator_index(dim_qk, kRowsEach ? group * 4 + warp : warp,
                                              kRowsEach ? 0 : group * (kColumnsDQ / 8), threadIdx.x % 32);
#pragma unroll
    for (int n = 0; n < kColumnsDQ / 8; ++n) {
      dq[n][0] = dq[n][1] = dq[n][2] = dq[n][3] = 0.0f;
      if (is_there && this->has_columns(group, warp, n)) load_copied(dq[n], from + n * 128);
    }
  }
  // dQ in its place: no later key tile is seen.
  MICA_DEVICE void finish_dq(const float (&dq)[kColumnsDQ / 8][4], const HeadTile& query, i32 group, i32 warp) const {
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
