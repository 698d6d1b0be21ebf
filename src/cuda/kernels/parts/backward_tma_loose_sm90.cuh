// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper by the copy engine: the steps of blocks whose two consumer warpgroups are loosely
// coupled. dQ of a query tile, for which each needs dS of both, is left for the next step, so that one may make
// exponentials while the other has its products. Lanes ask for Q and dO of one query tile after the other; a warp
// brings the row statistics; one lane adds dQ to its accumulator.
#pragma once

#include "device/kept_sums.cuh"
#include "device/wgmma_registers.cuh"
#include "kernels/options/cap.cuh"
#include "kernels/parts/backward_tma_parts_sm90.cuh"
#include "kernels/whole/key_norms.cuh"

namespace mica {

// What a block of a course does.
template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, Course course,
          u32 served, int variant>
struct BackwardTmaSm90;

// The blocks that add to a tile of dQ in any order. Who comes first stores its part; the others wait until it has
// arrived. Turns are taken relaxed. Who opens a tile releases, and who waits for that acquires: what the copy engine
// has done lies in the second-level cache by then (bulk_wait).
struct DqTurns {
  static constexpr u32 kOpen = 1u << 31;
  u32* words;  // null: there are zeros to add to

  MICA_DEVICE u32 take(i64 tile) const { return words ? atomic_add(words + tile, 1) : kOpen; }
  // When the part is ready.
  MICA_DEVICE bool is_first(u32 turn, i64 tile) const {
    if (turn == 0) return true;
    if (turn < kOpen)
      while (load_acquire(reinterpret_cast<const i32*>(words + tile)) >= 0) __nanosleep(20);
    return false;
  }
  MICA_DEVICE void open(i64 tile) const { add_release(reinterpret_cast<i32*>(words + tile), i32(kOpen)); }
};

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, bool draws, u32 served,
          int variant>
struct BackwardTmaLoose
    : BackwardTmaParts<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, draws, served, variant> {
  using Base = BackwardTmaParts<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, draws, served, variant>;
  using Base::band;
  using Base::batch_index;
  using Base::goes_round;
  using Base::head_k;
  using Base::kBytesDQ;
  using Base::kColumnsDQ;
  using Base::kConsumers;
  using Base::key_begin;
  using Base::keys_full;
  using Base::kHoldsValues;
  using Base::kIntegers;
  using Base::kKeyColumns;
  using Base::kLayout;
  using Base::kOwnBarrier;
  using Base::kRoom;
  using Base::kRowsEach;
  using Base::kScalesRows;
  using Base::kStatColumns;
  using Base::kTransposed;
  using Base::landed;
  using Base::maps;
  using Base::p;
  using Base::part;
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
  static constexpr bool kCapped = served == serves::SOFTCAP;
  static_assert((kCapped && !goes_round) || served == serves::PLAIN);
  static constexpr int kPingPongBarrier = kOwnBarrier + kConsumers;  // and the next: of each consumer's exponentials
  // What the producers need for their addresses, where the consumers can spare it.
  static constexpr bool kFewSpare = kTransposed || kCapped;
  static constexpr int kProducerRegisters = kFewSpare ? 24 : 40, kConsumerRegisters = kFewSpare ? 240 : 232;
  using Values = u32[kHoldsValues ? dim_v / 16 : 1][4];  // a warp's 16 rows of V

  Ring<2> do_ring, ds_ring, dq_ring;  // the last has a stage for each consumer
  i32 walk_begin = 0;                 // the query tile of the first step
  i32 walk_head = 0;                  // and its head, of those of the block
  i32 head_begin = 0;                 // the query tile with which a further head begins
  i32 round_end = 0;                  // the item after those that wait for one another

  // Without a mask all key tiles of a head would be at the same queries, and wait for whoever is the first to store a
  // part of dQ: each begins at its own diagonal and goes round. In a fixed order they begin further apart.
  MICA_DEVICE void find_walk(i32 count) {
    walk_begin = tiles.begin;
    walk_head = 0;
    if (maps.round_tiles > 0 && count > 0) {
      const i32 step = round_of(count).begin(key_begin / tile_k), tiles_each = tiles.end;
      walk_head = step / tiles_each;
      walk_begin = step - walk_head * tiles_each;
      head_begin = tiles.begin;
    } else {
      const i32 tiles_each = max_of(tiles.end - tiles.begin, 1);
      if (maps.dq_turns) walk_begin = tiles.begin + key_begin / tile_q % tiles_each;
      head_begin = walk_begin;
    }
  }
  MICA_DEVICE BackwardRound round_of(i32 count) const {
    return BackwardRound::of(key_begin / tile_k, maps.round_tiles, ceil_div(sequence.len_k, tile_k), count);
  }
  MICA_DEVICE HeadTile first_query_tile() const {
    return goes_round ? HeadTile{this->first_head() + walk_head, walk_begin} : Base::first_query_tile();
  }
  MICA_DEVICE void next(HeadTile& query) const {
    if constexpr (goes_round) {
      if (++query.tile == tiles.end) query.tile = tiles.begin;
      if (query.tile != head_begin) return;
      const i32 head_end = min_of(this->first_head() + p.part_heads, (head_k + 1) * p.group);
      if (++query.head == head_end) query.head = this->first_head();
    } else {
      Base::next(query);
    }
  }
  // False if there is nothing to do. Key tiles that wait for one another follow one another, and no block has two of
  // them: when no further one can begin, all that were dealt out but the last ones can go on.
  MICA_DEVICE bool locate_item(i32 item) {
    if constexpr (goes_round)
      if (maps.round_tiles > 0) return locate_in_round(item);
    return Base::locate_item(item);
  }
  // By a warp, once the preparation is done: of the key head.
  MICA_DEVICE KeyNorms head_norms() const {
    return norms_of_head(maps.key_norms + i64(batch_index * p.heads_k + head_k) * kNormChunks, sequence.len_k);
  }
  MICA_DEVICE bool locate_in_round(i32 item) {
    const i32 heads = p.batch * p.heads_k;
    part = maps.parts > 1 ? floor_div(item, maps.by_parts) : 0;
    i32 index = item - part * (heads * p.tiles_k);
    const i32 first_head = floor_div(index, p.by_tiles_k) / p.section_heads * p.section_heads;
    const i32 heads_here = min_of(p.section_heads, heads - first_head);
    index -= first_head * p.tiles_k;
    const i32 first = index / (heads_here * maps.round_tiles) * maps.round_tiles;
    const i32 count = min_of(maps.round_tiles, p.tiles_k - first);
    index -= first * heads_here;
    const i32 head = index / count, of_round = index - head * count;
    round_end = item - of_round + count;
    if (!this->locate(first_head + head, first + of_round)) return false;
    tiles = this->query_tiles();
    return true;
  }

  MICA_DEVICE void place_rings(u8* smem) {
    this->place_tiles(smem);
    do_ring.barriers = smem_k + kLayout.do_ring;
    ds_ring.barriers = smem_k + kLayout.ds_ring;
    dq_ring.barriers = smem_k + kLayout.dq_ring;
  }
  // One lane.
  MICA_DEVICE void init_rings() const {
    ring.init(1, 4 * kConsumers);
    do_ring.init(1 + 32 + (kScalesRows ? 32 : 0), 128 * kConsumers);
    ds_ring.init(4 * kConsumers, 4 * kConsumers);
    dq_ring.init(4, 1);
    for (i32 stage = 0; stage < stages + 2; ++stage) mbarrier_init(landed + stage * 8, 1);
  }

  MICA_DEVICE void ask_q(const HeadTile& query, const Place& place) const {
    const i32 row = this->counted(query.tile) * tile_q;
    const u32 barrier = this->is_ragged(row) ? landed + place.stage * 8 : ring.full(place.stage);
    ring.wait_empty(place);
    mbarrier_arrive_expecting(barrier, QTile::kBytes);
    this->template ask_kept<QTile>(smem_q + place.stage * QTile::kBytes, maps.q, i32(sequence.q_begin) + row,
                                   query.head, sequence.q_slot, barrier);
  }

  // One lane each. They go through the steps of a key tile.
  MICA_DEVICE void ask_do(i32 count, RingPlace<2>& place) const {
    auto query = this->first_query_tile();
    for (i32 step = 0; step < count; ++step, place.next(), this->next(query)) ask_one_do(query, place);
  }
  MICA_DEVICE void ask_one_do(const HeadTile& query, const RingPlace<2>& place) const {
    const i32 row = this->counted(query.tile) * tile_q;
    const bool ragged = this->is_ragged(row);
    const u32 full = do_ring.full(place.stage), barrier = ragged ? landed + (stages + place.stage) * 8 : full;
    do_ring.wait_empty(place);
    mbarrier_arrive_expecting(barrier, OTile::kBytes);
    this->template ask_kept<OTile>(smem_do + place.stage * OTile::kBytes, maps.d_o, i32(sequence.q_begin) + row,
                                   query.head, sequence.q_slot, barrier);
    if (ragged) mbarrier_arrive(full);
  }
  // One warp: beside it the factors of rows, which are needed a step later: they are there when the next dO is asked
  // for, the last of them before their own. steps: before, of which four matter.
  MICA_DEVICE void ask_do_after_factors(i32 count, RingPlace<2>& place, i32& steps) const {
    auto query = this->first_query_tile();
    KeyNorms norms;
    RowSizes sizes;
    if (count > 0) sizes = load_sizes(query);
    if (count == 1) norms = head_norms();
    for (i32 step = 0; step < count; ++step, ++steps, place.next()) {
      const bool is_last = step + 1 == count;
      if (is_last) {
        do_ring.wait_empty(place);
        store_factors(sizes, norms, steps);
        __syncwarp();
      }
      if (threadIdx.x % 32 == 0) ask_one_do(query, place);
      __syncwarp();  // before others write where the factors of four steps ago were
      if (is_last) continue;
      if (step == 0) norms = head_norms();
      store_factors(sizes, norms, steps);
      this->next(query);
      sizes = load_sizes(query);
      __syncwarp();
    }
  }
  // The same with scales of rows of dS, which are there with their dO.
  MICA_DEVICE void ask_do_beside_scales(i32 count, RingPlace<2>& place) const {
    auto query = this->first_query_tile();
    KeyNorms norms;
    for (i32 step = 0; step < count; ++step, place.next(), this->next(query)) {
      const RowSizes sizes = load_sizes(query);
      do_ring.wait_empty(place);
      if (threadIdx.x % 32 == 0) ask_one_do(query, place);
      __syncwarp();
      if (step == 0) norms = head_norms();
      if (step == 0 && threadIdx.x % 32 == 0) *factors_of(0) = have_one_scale(norms) ? head_scale(norms) : 0.0f;
      store_scales(sizes, norms, place.stage);
      fence_for_wgmma();  // they lie in rows that products read
      mbarrier_arrive(do_ring.full(place.stage));
    }
  }
  // The consumers' halves of a tile come one after the other. whole: they are whole numbers.
  MICA_DEVICE void add_dq(i32 count, u32& parity, bool whole = false) {
    if (kIntegers && !whole)
      add_dq_in_order(count, parity);
    else if (goes_round && p.dq_semaphores)
      add_dq_in_round(count, parity);
    else if (p.dq_semaphores)
      add_dq_in_order(count, parity);
    else
      add_dq_freely(count, parity, whole);
  }
  // Whether the consumers leave whole numbers; by all of the warp, for all who ask later.
  MICA_DEVICE bool adds_integers() const {
    const KeyNorms norms = head_norms();
    if (threadIdx.x % 32 == 0) maps.head_norms[batch_index * p.heads_k + head_k] = norms;
    return have_one_scale(norms);
  }
  // Others wait for every part: nothing stands between it and its release. The next tile's turn is looked up while a
  // part is on its way.
  MICA_DEVICE void add_dq_in_order(i32 count, u32& parity) {
    const bool last_first = this->adds_last_first(), stores = maps.dq_turns != nullptr;
    i32* const turns = kIntegers ? maps.dq_order : p.dq_semaphores;
    auto query = this->first_query_tile();
    i64 block = 0;
    i32 before = 0, seen = 0;  // seen: of the tile's count
    const auto find = [&] {
      this->head = query.head;
      const i32 tile = this->counted(query.tile);
      block = this->dq_tile(tile);
      before = this->added_before(tile, last_first);
    };
    if (count > 0) find();
    for (i32 step = 0; step < count; ++step, parity ^= 1) {
      i32* own = turns + block;
      this->await_turn(before, own, seen);
      if (before == 0 && stores)
        send_tile<true>(block, parity);
      else
        send_tile<false>(block, parity);
      if (step + 1 < count) {
        this->next(query);
        find();
        seen = load_relaxed(turns + block);
      }
      bulk_wait();
      add_release(own, 1);
    }
  }
  // Whoever comes next to a tile is some steps behind: a part is released a step later, when it has arrived. Steps are
  // hardly longer than what this lane has to do: it waits for nothing but halves and turns.
  MICA_DEVICE void add_dq_in_round(i32 count, u32& parity) {
    const BackwardRound round = round_of(count);
    const bool stores = maps.dq_turns != nullptr, is_spread = round.is_spread();
    auto query = this->first_query_tile();
    i32 *own = nullptr, *last = nullptr;  // where a tile's parts are counted, of this step and of the one before it
    i64 block = 0;
    i32 before = 0, seen = 0;
    const auto find = [&] {
      this->head = query.head;
      block = this->dq_tile(query.tile);
      own = p.dq_semaphores + block;
      before = round.added_before(key_begin / tile_k, step_of(query));
    };
    if (count > 0) find();
    for (i32 step = 0; step < count; ++step, parity ^= 1) {
      const bool is_first = before == 0 && stores;
      dq_ring.wait_full({0, parity});
      this->await_turn(before, own, seen);
      begin_half(block, 0, is_first);
      if (step > 0) {
        bulk_wait_read_but<1>();
        mbarrier_arrive(dq_ring.empty(1));
        if (is_spread) {
          bulk_wait_but<1>();
          add_release(last, 1);
        }
      }
      dq_ring.wait_full({1, parity});
      begin_half(block, 1, is_first);
      last = own;
      if (step + 1 < count) {
        this->next(query);
        find();
        seen = load_relaxed(own);
      }
      bulk_wait_read_but<1>();
      mbarrier_arrive(dq_ring.empty(0));
      if (is_spread) continue;
      bulk_wait();
      add_release(last, 1);
    }
    if (count == 0) return;
    bulk_wait();
    mbarrier_arrive(dq_ring.empty(1));
    if (is_spread) add_release(last, 1);
  }
  MICA_DEVICE i32 step_of(const HeadTile& query) const {
    return (query.head - this->first_head()) * tiles.end + query.tile;
  }
  template <bool is_first>
  MICA_DEVICE void send_tile(i64 block, u32 parity) const {
    for (i32 group = 0; group < kConsumers; ++group) {
      dq_ring.wait_full({group, parity});
      send_half(block, group, is_first);
    }
  }
  MICA_DEVICE void add_dq_freely(i32 count, u32& parity, bool whole) {
    const DqTurns turns{maps.dq_turns};
    auto query = this->first_query_tile();
    for (i32 step = 0; step < count; ++step, this->next(query), parity ^= 1) {
      this->head = query.head;
      const i64 block = this->dq_tile(query.tile);
      const u32 turn = turns.take(block);
      if (whole && !maps.dq_turns) atomic_add(reinterpret_cast<u32*>(maps.dq_order + block), 1u);  // kOffsetBits each
      bool is_first = false;
      for (i32 group = 0; group < kConsumers; ++group) {
        dq_ring.wait_full({group, parity});
        if (group == 0) is_first = turns.is_first(turn, block);
        send_half(block, group, is_first, whole);
      }
      if (!is_first) continue;
      bulk_wait();
      turns.open(block);
    }
  }
  // Adds it to what is there, or stores it, until it has been read.
  MICA_DEVICE void send_half(i64 block, i32 group, bool is_first, bool whole = false) const {
    begin_half(block, group, is_first, whole);
    bulk_wait_read();
    mbarrier_arrive(dq_ring.empty(group));
  }
  // Other blocks add to it, too: it should stay in the second-level cache, as Q and dO do.
  MICA_DEVICE void begin_half(i64 block, i32 group, bool is_first, bool whole = false) const {
    float* where = p.dq_accumulator + block * (tile_q * dim_qk);
    const auto send = [=](float* to, u32 from, u32 bytes) {
      if (is_first)
        bulk_store_kept(to, from, bytes);
      else if (whole)
        bulk_reduce_add_integers_kept(to, from, bytes);
      else
        bulk_reduce_add_kept(to, from, bytes);
    };
    if constexpr (kTransposed || kRowsEach) {
      send(where + group * (kBytesDQ / 8), smem_dq + group * (kBytesDQ / 2), kBytesDQ / 2);
    } else if constexpr (Base::kByColumns) {
      // Columns that nobody has stay where they are.
      const i32 bytes = min_of(round_up(p.dim_qk, 8) * (tile_q * 4) - group * (kBytesDQ / 2), kBytesDQ / 2);
      if (bytes > 0) send(where + group * (kBytesDQ / 8), smem_dq + group * (kBytesDQ / 2), bytes);
    } else {
      constexpr int kFirst = kColumnsDQ * 64,
                    kRowBlock = dim_qk * 64;  // bytes of 16 rows: of the first consumer, of all
      for (i32 rows = 0; rows < tile_q / 16; ++rows) {
        const i32 from = rows * kRowBlock + group * kFirst;
        send(where + from / 4, smem_dq + from, group == 0 ? kFirst : kRowBlock - kFirst);
      }
    }
    bulk_commit();
  }

  // One warp: the row statistics, which come with dO, and zeros in the place of rows past the sequence. parities: of
  // the barriers of what has landed.
  MICA_DEVICE void bring_stats(i32 count, Place& q_place, RingPlace<2>& place, u32& parities) const {
    auto query = this->first_query_tile();
    for (i32 step = 0; step < count; ++step, place.next(), q_place.next(), this->next(query)) {
      const i32 tile = this->counted(query.tile);
      const bool ragged = this->is_ragged(tile * tile_q);
      const auto await_landed = [&](i32 stage) {
        mbarrier_wait(landed + stage * 8, parities >> stage & 1);
        parities ^= 1u << stage;
      };
      if (ragged) {
        await_landed(q_place.stage);
        this->template clear_queries<QTile>(smem_q + q_place.stage * QTile::kBytes, tile);
        __syncwarp();
        arrive_as_warp(ring.full(q_place.stage));
      }
      this->bring_rows(query, place.stage, [&] { do_ring.wait_empty(place); });
      if (ragged) {
        await_landed(stages + place.stage);
        this->template clear_queries<OTile>(smem_do + place.stage * OTile::kBytes, tile);
      }
      mbarrier_arrive(do_ring.full(place.stage));
    }
  }

  // What a lane has of the sizes of a query tile's rows: of rows n, 32 + n and so on; zeros past the sequence.
  static constexpr int kRowsOfLane = (tile_q + 31) / 32;
  struct RowSizes {
    float norm[kRowsOfLane], delta[kRowsOfLane];
  };
  MICA_DEVICE RowSizes load_sizes(const HeadTile& query) const {
    const i32 row = this->counted(query.tile) * tile_q, valid = sequence.len_q - row;
    const i64 stat = query.head * p.stat_rows + sequence.q_slot * i64(p.sequences.slot_len_q) + sequence.q_begin + row;
    RowSizes sizes;
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const i32 at = i32(threadIdx.x % 32) + 32 * i;
      sizes.norm[i] = at < valid ? maps.row_norm[stat + at] : 0.0f;
      sizes.delta[i] = at < valid ? p.row_delta[stat + at] : 0.0f;
    }
    return sizes;
  }
  // By what rows of dQ become whole numbers. Zeros where their head does not have one scale.
  MICA_DEVICE void store_factors(const RowSizes& sizes, const KeyNorms& norms, i32 step) const {
    static_assert(!kIntegers || kScalesRows || tile_q % 32 == 0);
    const bool have_one = have_one_scale(norms);
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i)
      factors_of(step)[i32(threadIdx.x % 32) + 32 * i] =
          have_one ? integers_scale(dq_bound(norms, sizes.norm[i], sizes.delta[i])) : 0.0f;
  }
  MICA_DEVICE float* factors_of(i32 step) const {
    return reinterpret_cast<float*>(room + kRoom.factors) + (kScalesRows ? 0 : step % kFactorStages * tile_q);
  }
  // The same but for what the head has of it: by what rows of dS are multiplied before their product with K, those of
  // a row and the one after it as two bf16. Ones where their head does not have one scale.
  MICA_DEVICE void store_scales(const RowSizes& sizes, const KeyNorms& norms, i32 stage) const {
    const u32 to = this->stat_rows().stage(stage, tile_q) + StatRows::kBeside;
    const bool have_one = have_one_scale(norms);
    const float per_head = 1.0f / head_scale(norms);
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const i32 row = i32(threadIdx.x % 32) + 32 * i;
      const float own = have_one ? integers_scale(dq_bound(norms, sizes.norm[i], sizes.delta[i])) * per_head : 1.0f;
      const u32 pair = pack<Bf16>(own, __shfl_xor_sync(0xffffffffu, own, 1));
      if (row % 2 == 0 && row < tile_q) store_shared_4(to + row * StatRows::kRowBytes, pair);
    }
  }

  // As RingPlace<2>::of_step, without the divisions that a count of unknown sign takes.
  static MICA_DEVICE RingPlace<2> place_of(i32 step) { return {step & 1, u32(step >> 1 & 1)}; }

  // Consumers make exponentials in turn (ping-pong): left alone they fall into step, and nobody has
  // products while both compute.
  MICA_DEVICE void ping_pong_wait(i32 group) const { barrier_sync(kPingPongBarrier + group, 128 * kConsumers); }
  MICA_DEVICE void ping_pong_pass(i32 group) const { barrier_arrive(kPingPongBarrier + group, 128 * kConsumers); }
  // valid: of the warp's 16 rows; the others become zeros.
  MICA_DEVICE void take_values(Values& values, i32 first_row, i32 valid) const {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < dim_v / 16; ++i) {
      ldmatrix_x4(values[i], smem_v + (first_row + lane % 16) * (dim_v * 2) + (2 * i + lane / 16) * 16);
      if (lane / 4 >= valid) values[i][0] = values[i][2] = 0;
      if (lane / 4 + 8 >= valid) values[i][1] = values[i][3] = 0;
    }
  }
  // dp (64 keys x tile_q) = V dO^T, less the deltas of rows if they are columns, begun.
  MICA_DEVICE void gemm_values(float (&dp)[tile_q / 8][4], const Values& values, u32 d_o, u64 rows) const {
    const u64 from_do = matrix_descriptor(d_o, 16, 1024);
    wgmma_hold(dp);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < dim_v / 16; ++i)
      WgmmaOfRegisters<Element>::add(dp, values[i], advance(from_do, i / 4 * OTile::kPanelBytes + i % 4 * 32), i > 0);
    this->add_deltas(dp, rows);
    wgmma_commit();
  }
  // s (64 keys x tile_q) = K Q^T, less the logarithms of rows if they are there, begun.
  template <bool has_rows = true>
  MICA_DEVICE void begin_scores(float (&s)[tile_q / 8][4], const Place& place, u64 rows, i32 group) const {
    const u32 keys = smem_k + group * 64 * 128, q = smem_q + place.stage * QTile::kBytes;
    if constexpr (kKeyColumns == 64) {
      this->template gemm_rows<dim_qk, KTile, QTile>(s, keys, q, [&] {
        if constexpr (has_rows) this->add_logarithms(s, rows);
      });
    } else {
      constexpr int kSteps = kKeyColumns / 16;  // of a panel of K
      const u64 from_k = matrix_descriptor(keys, 16, 1024), from_q = matrix_descriptor(q, 16, 1024);
      wgmma_hold(s);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < dim_qk / 16; ++i)
        Wgmma<Element, tile_q>::add(s, advance(from_k, i / kSteps * KTile::kPanelBytes + i % kSteps * 32),
                                    advance(from_q, i / 4 * QTile::kPanelBytes + i % 4 * 32), i > 0);
      if constexpr (has_rows) this->add_logarithms(s, rows);
      wgmma_commit();
    }
  }
  MICA_DEVICE bool is_partly_hidden(i32 tile) const { return tile < tiles.full_begin || tile >= tiles.full_end; }
  // P^T of products under softcap, and P^T times its slope, 1 - tanh^2, both rounded. Most tiles are all seen and have
  // small scores alone: those need nothing but the first polynomial, and its slope as a line.
  MICA_DEVICE void weigh_capped(Operand& probability, Operand& weights, Scores& s, const float* lse, i32 first_key,
                                i32 tile) const {
    const bool hides = is_partly_hidden(tile);
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < tile_q / 2; ++i) largest = fmaxf(largest, fabsf(s[0][i / 4][i % 4]));
    if (!hides && __all_sync(0xffffffffu, beyond_limit<FloatMath>(p.score.tiny, largest) < 0.0f)) {
      const float step = cap_slope_step(p.score);
      weigh(probability, weights, s[0], lse, [&](float x, float row, float& slope) {
        const float beyond = beyond_limit<FloatMath>(p.score.tiny, x);
        slope = fmaf(beyond, step, kCapSlope);
        return fmaf(x, cap_factor(p.score.tiny, beyond), -row);
      });
      return;
    }
    this->features.scale(s, p);
    if (hides) this->mask(s, first_key, this->counted(tile) * tile_q);
    const float inverse_cap = p.score.cap_log2 > 0.0f ? 1.0f / p.score.cap_log2 : 0.0f;
    weigh(probability, weights, s[0], lse, [&](float x, float row, float& slope) {
      const float t = x * inverse_cap;
      slope = fminf(fmaxf(fmaf(-t, t, 1.0f), 0.0f), 1.0f);  // a hidden score is infinite
      return x - row;
    });
  }
  // exponent(x, lse, slope).
  template <class Exponent>
  MICA_DEVICE void weigh(Operand& probability, Operand& weights, float (&s)[tile_q / 8][4], const float* lse,
                         Exponent exponent) const {
#pragma unroll
    for (int i = 0; i < tile_q / 16; ++i) {
      float weighed[2][4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int n = 2 * i + j;
        const float2 row = *reinterpret_cast<const float2*>(lse + n * 8 + this->lane % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float slope;
          s[n][e] = ex2_approx(exponent(s[n][e], e % 2 ? row.y : row.x, slope));
          weighed[j][e] = s[n][e] * slope;
        }
      }
      pack_a<Element>(probability[i], s[2 * i], s[2 * i + 1]);
      pack_a<Element>(weights[i], weighed[0], weighed[1]);
    }
  }
  // dP becomes dS.
  MICA_DEVICE void differentiate(float (&dp)[tile_q / 8][4], const Operand& weights, const float* delta) const {
#pragma unroll
    for (int n = 0; n < tile_q / 8; ++n) {
      const float2 row = *reinterpret_cast<const float2*>(delta + n * 8 + this->lane % 4 * 2);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 x = unpack<Element>(weights[n / 2][n % 2 * 2 + half]);
        float* d = dp[n] + 2 * half;
        d[0] = x.x * (d[0] - row.x);
        d[1] = x.y * (d[1] - row.y);
      }
    }
  }
  // The product dQ of a tile comes after dK of the next one; in the first step it
  // is of nothing, and not used.
  // goes_on: to a further key tile. first: of which only the places in rings of two matter.
  template <bool goes_on>
  MICA_DEVICE void loop(float (&dk)[1][dim_qk / 8][4], float (&dv)[1][dim_v / 8][4], Place& place, const Values& values,
                        i32 first, i32 end, i32 group, i32 warp) const {
    const i32 first_row = group * 64 + warp * 16;
    Scores s;
    ring.wait_full(place);
    begin_scores<false>(s[0], place, 0, group);
    if constexpr (kStatColumns) {
      do_ring.wait_full(place_of(first));
      wgmma_fence();
      this->add_logarithms(s[0], this->rows_of(place_of(first).stage));
      wgmma_commit();
    }
    auto query = this->first_query_tile();
    for (i32 step = first; step < end; ++step, this->next(query)) {
      const RingPlace<2> now = place_of(step);
      const u32 q = smem_q + place.stage * QTile::kBytes, d_o = smem_do + now.stage * OTile::kBytes;
      const u32 ds = smem_ds + now.stage * DsTile::kBytes;
      const float* row_stats = stats + now.stage * 2 * tile_q;  // where they are no columns
      Operand probability, weights, gradient;                   // P^T, with softcap times its slope, and dS^T, rounded
      wgmma_wait<0>();
      wgmma_hold(s[0]);
      ping_pong_wait(group);
      if constexpr (!kStatColumns) do_ring.wait_full(now);
      Scores dp;
      if constexpr (kHoldsValues)
        gemm_values(dp[0], values, d_o, this->rows_of(now.stage));
      else
        this->template gemm_rows<dim_v, VTile, OTile>(dp[0], smem_v + group * 64 * 128, d_o,
                                                      [&] { this->add_deltas(dp[0], this->rows_of(now.stage)); });
      if constexpr (kCapped) {
        weigh_capped(probability, weights, s, row_stats, key_begin + first_row, query.tile);
      } else {
        if (is_partly_hidden(query.tile)) this->mask(s, key_begin + first_row, this->counted(query.tile) * tile_q);
        this->weigh_scores(s[0], row_stats);
        this->round(probability, s[0]);
      }
      this->template gemm_operand<dim_v, OTile>(dv[0], probability, d_o);
      if (goes_on || group == 0 || step + 1 < end) ping_pong_pass(group ^ 1);
      typename Base::Scales scales;
      if constexpr (kScalesRows) this->load_scales(scales, now.stage);
      wgmma_wait<1>();
      wgmma_hold(dp[0]);
      if constexpr (kCapped)
        differentiate(dp[0], weights, row_stats + tile_q);
      else
        this->differentiate_scores(dp[0], probability, row_stats + tile_q);
      this->round(gradient, dp[0]);
      ds_ring.wait_empty(now);
      if constexpr (kScalesRows)
        this->share_scaled(ds, first_row, gradient, scales);
      else
        this->share(ds, first_row, gradient);
      fence_for_wgmma();
      __syncwarp();
      if (this->lane == 0) mbarrier_arrive(ds_ring.full(now.stage));
      this->template gemm_operand<dim_qk, QTile>(dk[0], gradient, q);
      float dq[kColumnsDQ / 8][4];
      if (step > first) ds_ring.wait_full(place_of(step - 1));
      this->gemm_dq(dq, step > first ? smem_ds + (now.stage ^ 1) * DsTile::kBytes : smem_k, group);
      const bool is_last = step + 1 == end;
      if constexpr (kStatColumns) do_ring.wait_full(place_of(is_last ? step : step + 1));
      wgmma_wait<1>();
      wgmma_hold(dv[0]);
      wgmma_hold(dk[0]);
      do_ring.release_by_thread(now);
      // After the last tile the scores are those of the tile itself, of no rows, and not used: a branch would keep the
      // compiler from leaving products under way.
      const Place old = place;
      if (!is_last) place.next();
      ring.wait_full(place);
      begin_scores(s[0], place, is_last ? this->no_rows() : this->rows_of(place_of(step + 1).stage), group);
      if (!is_last && this->lane == 0) mbarrier_arrive(ring.empty(old.stage));
      wgmma_wait<1>();
      wgmma_hold(dq);
      if (step > first) {
        if (this->lane == 0) mbarrier_arrive(ds_ring.empty(now.stage ^ 1));
        if (p.dq_accumulator) hand_over_half(dq, step - 1, group, warp);
      }
    }
    wgmma_wait<0>();
    wgmma_hold(s[0]);
    ring.release(place);
    place.next();
  }
  // The steps of a consumer without keys, of a block that goes on: its part of dQ is all that there is to do.
  MICA_DEVICE void loop_without_keys(Place& place, i32 first, i32 end, i32 group, i32 warp) const {
    for (i32 step = first; step < end; ++step, place.next()) {
      const RingPlace<2> now = place_of(step);
      ping_pong_wait(group);
      ping_pong_pass(group ^ 1);
      ring.wait_full(place);
      ring.release(place);
      do_ring.wait_full(now);
      do_ring.release_by_thread(now);
      ds_ring.wait_empty(now);
      if (step < first + 2) {
        this->share_zeros(smem_ds + now.stage * DsTile::kBytes, group * 64 + warp * 16);
        fence_for_wgmma();
        __syncwarp();
      }
      arrive_as_warp(ds_ring.full(now.stage));
      if (step > first) finish_dq(step - 1, group, warp);
    }
  }
  // dQ of the last tile.
  MICA_DEVICE void finish_dq(i32 step, i32 group, i32 warp) const {
    const RingPlace<2> last = place_of(step);
    float dq[kColumnsDQ / 8][4];
    ds_ring.wait_full(last);
    this->gemm_dq(dq, smem_ds + last.stage * DsTile::kBytes, group);
    wgmma_wait<0>();
    wgmma_hold(dq);
    arrive_as_warp(ds_ring.empty(last.stage));
    if (p.dq_accumulator) hand_over_half(dq, step, group, warp);
  }
  MICA_DEVICE void hand_over_half(const float (&dq)[kColumnsDQ / 8][4], i32 step, i32 group, i32 warp) const {
    const float* factors = nullptr;
    if constexpr (kIntegers) factors = factors_of(step);
    this->hand_over(dq, group, warp, dq_ring, RingPlace<2>{group, u32(step & 1)}, factors);
  }
};

}  // namespace mica
