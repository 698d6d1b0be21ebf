// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper by the copy engine, persistent: blocks draw one key tile after the other, and the next
// one's first tiles are on their way while dK and dV are stored. A warp draws, tells the others, and asks for K, V and
// Q.
#pragma once

#include "device/work_ring_sm90.cuh"
#include "kernels/parts/backward_tma_loose_sm90.cuh"

namespace mica {

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, u32 served, int variant>
struct BackwardTmaSm90<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, Course::DRAWN, served, variant>
    : BackwardTmaLoose<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, true, served, variant> {
  using Base = BackwardTmaLoose<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, true, served, variant>;
  using Base::band;
  using Base::batch_index;
  using Base::goes_round;
  using Base::head_k;
  using Base::kConsumerBarrier;
  using Base::kConsumerRegisters;
  using Base::kConsumers;
  using Base::key_begin;
  using Base::keys_full;
  using Base::kHoldsValues;
  using Base::kIntegers;
  using Base::kKeyColumns;
  using Base::kLayout;
  using Base::kProducerRegisters;
  using Base::maps;
  using Base::p;
  using Base::part;
  using Base::sequence;
  using Base::smem_k;
  using Base::smem_v;
  using Base::tiles;
  using typename Base::KTile;
  using typename Base::Place;
  using typename Base::Values;
  using typename Base::VTile;
  // A key tile as it is announced: Item, Owner.
  struct Item {
    i32 count;  // of steps; < 0: there is no further key tile
    i32 key_begin, len_q, len_k;
    TileRange tiles;
  };
  struct Owner {
    Sequence sequence;
    i32 head_k, batch_index, part, unused;
  };
  static constexpr u32 kItemBytes = sizeof(Item) + sizeof(Owner);
  static_assert(kItemBytes == backward_tma_sm90_item_bytes());

  WorkRing<kItemBytes> work_ring;
  u32 keys_empty, values;  // of V: barriers for each consumer's rows full, and then empty

  MICA_DEVICE u32 values_full(i32 group) const { return values + group * 8; }
  MICA_DEVICE u32 values_empty(i32 group) const { return values + (kConsumers + group) * 8; }

  MICA_DEVICE void run(u8* smem) {
    griddepcontrol_launch_dependents();
    this->place_rings(smem);
    work_ring.shared = smem_k + kLayout.work;
    keys_empty = smem_k + kLayout.keys_empty;
    values = smem_k + kLayout.values;
    init_barriers();
    __syncthreads();
    if (threadIdx.x < 128) {
      setmaxnreg_dec<kProducerRegisters>();
      if (threadIdx.x < 32)
        deal_out();
      else if (threadIdx.x < 64)
        bring_all_stats();
      else if (threadIdx.x < 96)
        add_all_dq();
      else
        ask_all_do();
    } else {
      setmaxnreg_inc<kConsumerRegisters>();
      consume();
    }
  }

  MICA_DEVICE void init_barriers() const {
    if (threadIdx.x == 0) {
      this->init_rings();
      fence_for_wgmma();
    } else if (threadIdx.x == 32) {
      mbarrier_init(keys_full, 1);
      mbarrier_init(keys_empty, 4 * kConsumers);
      for (i32 group = 0; group < kConsumers; ++group) {
        mbarrier_init(values_full(group), 1);
        mbarrier_init(values_empty(group), 128);
      }
      work_ring.init(warps - 1);
      fence_for_wgmma();
    } else if (threadIdx.x == 64) {
      this->prefetch_maps();
    }
  }

  // One warp: draws the key tile that comes next, tells the others, and one lane asks for K, V and one Q after the
  // other. The next one is drawn when the last Q has been asked for: late, since whoever is free first should get it.
  MICA_DEVICE void deal_out() {
    WorkCounter counter{maps.work_counter, maps.work_epoch, maps.work_items};
    Place place;
    u32 parity = 1;  // of K and V of the key tile before
    // In a fixed order a block waits for key tiles before its own. If the first ones belonged to the blocks, one of
    // them could be with a block for which there is no room, beside another stream's that wait likewise: they are
    // drawn, too. So it is with whole numbers, beside a loud key, unless all blocks run at once.
    const bool may_wait = kIntegers ? !maps.key_peers : p.dq_semaphores != nullptr;
    bool is_own = !may_wait || !maps.work_counter;
    if (!is_own) counter.first = 0;
    if (maps.packed_order || !is_own) griddepcontrol_wait();
    for (;; is_own = false) {
      if constexpr (goes_round)
        if (maps.round_tiles > 0) counter.await_drawn(this->round_end);
      if constexpr (kIntegers) this->await_peers();
      if (!is_own) counter.ask();
      const i32 item = is_own ? i32(blockIdx.x) : warp_max(counter.answer());
      if (item < 0) break;
      if (!this->locate_item(item)) continue;
      const i32 count = this->num_steps();
      if constexpr (goes_round) this->find_walk(count);
      if constexpr (kIntegers) this->find_peers();
      // Consumers that need no keys let them go as soon as they hear of it: after it has been waited for.
      if (count == 0 && threadIdx.x == 0) pass_keys(parity);
      __syncwarp();
      announce(count);
      if (count > 0 && threadIdx.x == 0) ask_item(count, place, parity);
      __syncwarp();
      parity ^= 1;
    }
    announce(-1);
  }
  MICA_DEVICE void announce(i32 count) {
    work_ring.wait_empty();
    work_ring.store(0, Item{count, key_begin, sequence.len_q, sequence.len_k, tiles});
    work_ring.store(sizeof(Item), Owner{sequence, head_k, batch_index, part, 0});
    work_ring.announce();
  }
  // The other warps: how many steps the next key tile has; < 0: there is none. What decides how often a loop runs is
  // known to be the same in all lanes.
  MICA_DEVICE i32 take_item() {
    work_ring.wait_full();
    const Item item = work_ring.template load<Item>(0);
    key_begin = warp_max(item.key_begin);
    tiles = TileRange{warp_max(item.tiles.begin), warp_max(item.tiles.full_begin), warp_max(item.tiles.full_end),
                      warp_max(item.tiles.end)};
    sequence.len_q = warp_max(item.len_q);
    sequence.len_k = warp_max(item.len_k);
    band = this->band_of_lengths();
    const i32 count = warp_max(item.count);
    if constexpr (goes_round) this->find_walk(count);
    return count;
  }
  // Whose keys they are: read when it is needed, since registers are short.
  MICA_DEVICE void find_owner() {
    const Owner owner = work_ring.template load<Owner>(sizeof(Item));
    sequence = owner.sequence;
    head_k = owner.head_k;
    batch_index = owner.batch_index;
    part = owner.part;
  }
  // A producer's warp: acts on one key tile after the other. act(count).
  template <class Act>
  MICA_DEVICE void for_each_taken(Act act) {
    for (;;) {
      const i32 count = take_item();
      if (count < 0) return;
      find_owner();
      work_ring.release();
      act(count);
    }
  }

  // One lane. The first Q goes ahead of K and V, whose room is in use for longer; the first consumer's rows of V are
  // free first.
  MICA_DEVICE void ask_item(i32 count, Place& place, u32 parity) const {
    auto query = this->first_query_tile();
    this->ask_q(query, place);
    if constexpr (kHoldsValues) ask_values(parity);
    ask_keys(parity);
    if constexpr (!kHoldsValues) ask_values(parity);
    for (i32 step = 1; step < count; ++step) {
      place.next();
      this->next(query);
      this->ask_q(query, place);
    }
    place.next();
  }
  MICA_DEVICE void ask_keys(u32 parity) const {
    mbarrier_wait(keys_empty, parity);
    mbarrier_arrive_expecting(keys_full, KTile::kPanels * tile_k * kKeyColumns * 2);
#pragma unroll
    for (int panel = 0; panel < KTile::kPanels; ++panel)
      tma_load(smem_k + panel * KTile::kPanelBytes, maps.k.map,
               {panel * kKeyColumns, i32(sequence.k_begin) + key_begin, head_k * maps.k.head_step,
                sequence.k_slot * maps.k.slot_step},
               keys_full);
  }
  MICA_DEVICE void ask_values(u32 parity) const {
    for (i32 group = 0; group < kConsumers; ++group) {
      const u32 full = values_full(group);
      mbarrier_wait(values_empty(group), parity);
      if constexpr (kHoldsValues) {
        constexpr u32 kBytes = 64 * dim_v * 2;
        mbarrier_arrive_expecting(full, kBytes);
        tma_load(smem_v + group * kBytes, maps.v.map,
                 {0, i32(sequence.k_begin) + key_begin + group * 64, head_k * maps.v.head_step,
                  sequence.k_slot * maps.v.slot_step},
                 full);
      } else {
        mbarrier_arrive_expecting(full, VTile::kBytes / kConsumers);
        this->template ask_key_rows<VTile>(smem_v + group * 64 * 128, maps.v, group * 64, full);
      }
    }
  }
  // One lane: a key tile without a step needs no keys, but the barriers count it.
  MICA_DEVICE void pass_keys(u32 parity) const {
    mbarrier_wait(keys_empty, parity);
    mbarrier_arrive(keys_full);
    for (i32 group = 0; group < kConsumers; ++group) {
      mbarrier_wait(values_empty(group), parity);
      mbarrier_arrive(values_full(group));
    }
  }
  // Warps, of which one lane acts where it is one lane's work.
  MICA_DEVICE void add_all_dq() {
    u32 parity = 0;
    griddepcontrol_wait();  // which clears the accumulator
    for_each_taken([&](i32 count) {
      bool whole = false;
      if constexpr (kIntegers) whole = this->adds_integers();
      if (threadIdx.x % 32 != 0 || !p.dq_accumulator) return;
      await_first_part(count, parity);
      this->add_dq(count, parity, whole);
      if (!maps.heads_done) return;
      bulk_wait();
      this->count_done();
    });
    bulk_wait();
  }
  // The turn of a key tile's first query tile is taken when there is something to add: others, who are there already,
  // would wait for it through two steps. In a fixed order, or without a step, the phase of `empty` that this lane has
  // ended is waited for instead: a branch makes consumers of 64 columns spill.
  MICA_DEVICE void await_first_part(i32 count, u32 parity) const {
    const u32 is_awaited = count > 0 && !p.dq_semaphores;
    mbarrier_wait(is_awaited ? this->dq_ring.full(0) : this->dq_ring.empty(0), parity ^ is_awaited ^ 1);
  }
  MICA_DEVICE void ask_all_do() {
    RingPlace<2> place;
    i32 steps = 0;
    griddepcontrol_wait();  // dO may have been converted
    for_each_taken([&](i32 count) {
      if constexpr (kIntegers)
        this->ask_do_after_factors(count, place, steps);
      else if (threadIdx.x % 32 == 0)
        this->ask_do(count, place);
    });
  }
  MICA_DEVICE void bring_all_stats() {
    u32 parities = 0;
    Place q_place;
    RingPlace<2> place;
    griddepcontrol_wait();  // also without a step: whoever waits for this kernel relies on what it waited for
    this->begin_rows();
    for_each_taken([&](i32 count) { this->bring_stats(count, q_place, place, parities); });
  }

  // What lives through the loop of steps is little, since registers are short: how many key tiles the block has taken,
  // the place in the ring of Q, and `step`, of which only the place in rings of two matters.
  MICA_DEVICE void consume() {
    Place place;
    i32 step = 0;
    if (group_of_thread() == 1) this->ping_pong_pass(0);
    for (i32 taken = 0;; ++taken) {
      work_ring.place = Base::place_of(taken);
      const i32 count = take_item();
      if (count < 0) break;
      consume_item(count, taken, place, step);
    }
    if constexpr (kHoldsValues) Base::settle_rows();
    if (group_of_thread() == 0) this->ping_pong_wait(0);
  }
  static MICA_DEVICE i32 group_of_thread() { return i32(threadIdx.x) / 128 - 1; }
  MICA_DEVICE void consume_item(i32 count, i32 taken, Place& place, i32& step) {
    float dk[1][dim_qk / 8][4], dv[1][dim_v / 8][4];
    zero(dk);
    zero(dv);
    if (count > 0) {
      const i32 consumer = warp_max(threadIdx.x / 32) - 4, group = consumer / 4;
      mbarrier_wait(keys_full, taken & 1);
      mbarrier_wait(values_full(group), taken & 1);
      clear_unused_rows(group);
      Values values;
      if constexpr (kHoldsValues) {
        const i32 first_row = consumer * 16;
        this->take_values(values, first_row, sequence.len_k - key_begin - first_row);
        mbarrier_arrive(values_empty(group));
      }
      // Otherwise it is made again in every step, from the thread's number.
      this->lane = __shfl_sync(0xffffffffu, threadIdx.x % 32, i32(threadIdx.x % 32));
      if (!goes_round || this->has_keys(group))
        this->template loop<true>(dk, dv, place, values, step & 3, (step & 3) + count, warp_max(group), consumer % 4);
      else
        this->loop_without_keys(place, step & 3, (step & 3) + count, group, consumer % 4);
      step += count;
    }
    const i32 consumer = warp_max(threadIdx.x / 32) - 4, group = consumer / 4, warp = consumer % 4;
    if (count == 0) pass_item(group, taken & 1);
    work_ring.place = Base::place_of(taken);
    find_owner();
    work_ring.release();
    // The first consumer is ahead: for its last dQ it waits for the other's dS, and stores dV meanwhile. The next K can
    // come while dK is stored. Where blocks that share a key tile wait for one another, one of them may be the first to
    // store a part of dQ for which another waits: all of dQ goes first.
    constexpr auto kLeave = Base::Leave::BY_COPY;
    const bool is_first_late = group == 0 && !kIntegers;
    if (!is_first_late) finish(step - 1, count, group, warp);
    if (maps.parts > 1)
      this->template leave_sums<kLeave>(dk, dv, count, consumer);
    else
      this->template leave_dv<kLeave>(dv, consumer);
    if (is_first_late) finish(step - 1, count, group, warp);
    if (maps.parts == 1) this->template leave_dk<kLeave>(dk, consumer);
    if constexpr (!kHoldsValues) {
      fence_for_wgmma();
      Base::settle_rows();
      mbarrier_arrive(values_empty(group));  // by every thread that read rows of it: racecheck follows those alone
    }
  }
  // A key tile without a step: the phases that `pass_keys` ends are waited for like any other.
  MICA_DEVICE void pass_item(i32 group, u32 parity) const {
    mbarrier_wait(keys_full, parity);
    mbarrier_wait(values_full(group), parity);
    if constexpr (kHoldsValues) mbarrier_arrive(values_empty(group));
  }
  // The last dQ; then K is done with.
  MICA_DEVICE void finish(i32 step, i32 count, i32 group, i32 warp) const {
    if (count > 0) this->finish_dq(step, group, warp);
    arrive_as_warp(keys_empty);
  }
  // Rows past the sequence: of K, and the consumer's of V.
  MICA_DEVICE void clear_unused_rows(i32 group) const {
    const i32 valid = sequence.len_k - key_begin, own = valid - group * 64;
    if (valid >= tile_k) return;
    this->template clear_rows<KTile>(smem_k, valid, tile_k, threadIdx.x - 128, 128 * kConsumers);
    if constexpr (!kHoldsValues)
      this->template clear_rows<VTile>(smem_v + group * 64 * 128, max_of(own, 0), 64, threadIdx.x % 128, 128);
    fence_for_wgmma();
    barrier_sync(kConsumerBarrier, 128 * kConsumers);
  }
};

}  // namespace mica
