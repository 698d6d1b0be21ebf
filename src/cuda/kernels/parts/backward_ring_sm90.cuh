// SPDX-License-Identifier: Apache-2.0
// What the backward kernels for Hopper share of a block: K and V, a ring of query tiles, and its producers. A step is
// one query tile of one query head. Threads of the first warpgroup fetch Q, dO and the row statistics, add dQ to its
// accumulator, and see to what pairs bring; the other warpgroups are consumers.
#pragma once

#include "device/panel_tile.cuh"
#include "device/ring_sm90.cuh"
#include "device/wgmma.cuh"
#include "kernels/options/pairs_tile.cuh"
#include "kernels/parts/backward_block.cuh"

namespace mica {

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, u32 served>
struct BackwardRing : BackwardBlock<Element, tile_q, tile_k, warps, (served & ~kFeatureChunk) != 0, served> {
  using Base = BackwardBlock<Element, tile_q, tile_k, warps, (served & ~kFeatureChunk) != 0, served>;
  using Base::band;
  using Base::batch_index;
  using Base::features;
  using Base::head;
  using Base::head_k;
  using Base::key_begin;
  using Base::p;
  using Base::sequence;
  using Base::stats;
  static constexpr int kConsumers = warps / 4 - 1;  // warpgroups
  static constexpr bool kScore = served & serves::SCORE, kPairs = served & serves::PAIRS,
                        kDropout = served & kFeatureDropout;
  // Threads of the first warpgroup: those that fetch, a warp that adds dQ, those that see to what pairs bring.
  static constexpr int kLoaders = kDropout || kPairs ? 32 : 64;
  static constexpr int kWriter = kLoaders;  // the thread
  static constexpr int kPairThreads = kDropout || kPairs ? 64 : 0;
  // In steps of 8. What a warpgroup takes, others of the block gave up: more than the launch brought would be waited
  // for for ever.
  static constexpr int kLaunchRegisters = 65536 / (32 * warps) / 8 * 8;
  static constexpr int kProducerRegisters = dim_qk <= 64 ? 72 : 40;
  static constexpr int kConsumerRegisters =
      (kLaunchRegisters * (kConsumers + 1) - kProducerRegisters) / kConsumers / 8 * 8;
  static constexpr int kConsumerBarrier = 1;  // named

  // Tiles are whole panels of 64 columns; products stop at the dimension.
  static constexpr int kPaddedQk = round_up(dim_qk, 64), kPaddedV = round_up(dim_v, 64);
  using QTile = PanelTile<kPaddedQk, tile_q>;
  using OTile = PanelTile<kPaddedV, tile_q>;  // dO
  using KTile = PanelTile<kPaddedQk, tile_k>;
  using VTile = PanelTile<kPaddedV, tile_k>;
  using STile = PanelTile<tile_q, tile_k>;  // dS^T
  using Pairs = PanelTile<tile_k, tile_q>;  // bias or mask
  using Scores = float[1][tile_q / 8][4];
  using Operand = u32[tile_q / 16][4];

  static constexpr BackwardSm90Layout kLayout =
      backward_sm90_layout(tile_q, tile_k, dim_qk, dim_v, stages, backward_pair_bits(served));
  static_assert(kLayout.v == KTile::kBytes && kLayout.q - kLayout.v == VTile::kBytes &&
                kLayout.d_o - kLayout.q == stages * QTile::kBytes &&
                kLayout.ds - kLayout.d_o == stages * OTile::kBytes &&
                kLayout.dq_ring - kLayout.ring == Ring<stages>::kBytes);

  u8* room;  // shared memory
  u32 smem_k, smem_v, smem_q, smem_do, smem_ds, smem_pairs;
  Ring<stages> ring;
  Ring<1> dq_ring;
  TileRange tiles;
  i32 part = 0;  // of the group's query heads

  using Place = RingPlace<stages>;
  // The query head and tile of a step: head after head, each with all of its tiles. Consumers count it on; the warps
  // that fetch divide, since they have fewer registers to keep it in.
  struct HeadTile {
    i32 head, tile;
  };
  MICA_DEVICE HeadTile query_tile_of(i32 step) const {
    const i32 tiles_each = tiles.end - tiles.begin, index = step % tiles_each;
    return {first_head() + step / tiles_each, tiles.begin + index};
  }
  MICA_DEVICE i32 first_head() const { return head_k * p.group + part * p.part_heads; }
  MICA_DEVICE HeadTile first_query_tile() const { return {first_head(), tiles.begin}; }
  MICA_DEVICE void next(HeadTile& query) const {
    const bool is_last = query.tile == tiles.end - 1;
    query.tile = is_last ? tiles.begin : query.tile + 1;
    query.head += is_last;
  }

  // Finds the block's keys and its shared memory. False if there is nothing to do.
  MICA_DEVICE bool begin(u8* smem) {
    if (!this->locate(blockIdx.x)) return false;
    tiles = this->query_tiles();
    room = smem;
    smem_k = shared_address(smem);
    smem_v = smem_k + kLayout.v;
    smem_q = smem_k + kLayout.q;
    smem_do = smem_k + kLayout.d_o;
    smem_ds = smem_k + kLayout.ds;
    ring.barriers = smem_k + kLayout.ring;
    dq_ring.barriers = smem_k + kLayout.dq_ring;
    stats = reinterpret_cast<float*>(smem + kLayout.stats);
    smem_pairs = smem_k + kLayout.pairs;
    return true;
  }
  // releases: how many arrivals make a stage empty.
  MICA_DEVICE void init_barriers(i32 releases) const {
    if (threadIdx.x == 0) {
      ring.init(kLoaders + kPairThreads, releases);
      dq_ring.init(4 * kConsumers, 1);
    }
    __syncthreads();
  }
  MICA_DEVICE i32 num_steps() const {
    return (tiles.end - tiles.begin) * min_of(p.part_heads, p.group - part * p.part_heads);
  }

  // Consumers take the next tile's Q before they leave a stage, so a tile must be announced before the stage after the
  // next is waited for: with two stages at once, with three while the next one is on its way. The first tiles are
  // fetched together.
  MICA_DEVICE void produce(i32 count) const {
    constexpr int kAhead = stages > 2 ? 1 : 0;
    for (i32 step = 0; step < count + 1; ++step) {
      if (kAhead == 0 && step >= stages) announce<0>(step - 1);
      if (step < count) {
        const Place place = Place::of_step(step);
        const HeadTile query = query_tile_of(step);
        ring.wait_empty(place);
        load_queries(query.head, query.tile * tile_q, place.stage);
      }
      cp_async_commit();
      if (step > 0 && (kAhead == 1 || step < stages)) announce<1>(step - 1);
    }
  }
  template <int under_way>
  MICA_DEVICE void announce(i32 step) const {
    cp_async_wait<under_way>();
    fence_for_wgmma();
    mbarrier_arrive(ring.full(Place::of_step(step).stage));
  }
  MICA_DEVICE void load_queries(i32 head_q, i32 row, i32 stage) const {
    const i32 valid = sequence.len_q - row;
    // The statistics are on their way while the copies are asked for.
    constexpr int kRows = tile_q / kLoaders;
    const i64 stat = head_q * p.stat_rows + sequence.q_slot * i64(p.sequences.slot_len_q) + sequence.q_begin + row;
    float lse[kRows], delta[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const i32 at = threadIdx.x + i * kLoaders;
      lse[i] = at < valid ? p.row_lse[stat + at] : infinity();
      delta[i] = at < valid ? p.row_delta[stat + at] : 0.0f;
    }
    QTile::template load<kLoaders>(smem_q + stage * QTile::kBytes,
                                   static_cast<const u16*>(p.q.data) + this->query_offset(p.q, head_q, row),
                                   p.q.stride_row, valid, p.dim_qk);
    OTile::template load<kLoaders>(smem_do + stage * OTile::kBytes,
                                   static_cast<const u16*>(p.d_o.data) + this->query_offset(p.d_o, head_q, row),
                                   p.d_o.stride_row, valid, p.dim_v);
    float* to = stats + stage * 2 * tile_q + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      to[i * kLoaders] = lse[i];
      to[tile_q + i * kLoaders] = delta[i];
    }
  }

  MICA_DEVICE void produce_pairs(i32 count) {
    features.begin(p, batch_index, 0);
    for (i32 step = 0; step < count; ++step) {
      const Place place = Place::of_step(step);
      const HeadTile query = query_tile_of(step);
      head = query.head;
      ring.wait_empty(place);
      if constexpr (kDropout) draw(query.tile * tile_q, place.stage);
      if constexpr (kPairs)
        load_pairs_tile<tile_q, tile_k, kPairThreads>(smem_pairs + place.stage * Pairs::kBytes, p, band, batch_index,
                                                      head, query.tile * tile_q, key_begin);
      mbarrier_arrive(ring.full(place.stage));
    }
  }

  // Dropout: a word for each consumer thread says which of its 32 pairs are kept, bit n * 4 + e for element (n, e) of
  // its fragment. A Philox block is about two queries (8 apart) and 8 keys of 32, pairs of four threads; one thread
  // draws the eight blocks that those four need.
  MICA_DEVICE u32 kept(i32 stage, i32 consumer_thread) const {
    return smem_pairs + (stage * 128 * kConsumers + consumer_thread) * 4;
  }
  MICA_DEVICE void draw(i32 query_begin, i32 stage) const {
#pragma unroll 1
    for (i32 unit = threadIdx.x - (128 - kPairThreads); unit < tile_k / 2; unit += kPairThreads) {
      const i32 keys = unit / 16 * 32, pair = unit / 4 % 4, quarter = unit % 4;
      u32 words[2][2] = {};  // of 16 keys each, and of the first or second key of the pair
#pragma unroll
      for (int n = 0; n < tile_q / 8; n += 2)
#pragma unroll
        for (int parity = 0; parity < 2; ++parity) {
          const PhiloxBlock<ScalarWords> block = features.block_of(
              p, batch_index, head, query_begin + n * 8 + quarter * 2 + parity, key_begin + keys + pair * 2);
#pragma unroll
          for (int k = 0; k < 16; ++k) {
            const int bit = (n + k / 8) * 4 + k / 2 % 2 * 2 + parity;
            if (dropout_bits(block, k) < p.dropout.threshold) words[k / 4 % 2][k % 2] |= 1u << bit;
          }
        }
      const i32 thread = keys / 16 * 32 + pair * 8 + quarter;
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) store_shared_4(kept(stage, thread + i * 32 + j * 4), words[i][j]);
    }
  }

  // Calls add(step, where) when the key tiles before it have added and dQ of a step is ready; that adds by
  // bulk_reduce_add. done(step): its source has been read. steps_before: of the block's earlier key tiles. One thread.
  template <class Add, class Done>
  MICA_DEVICE void write_dq(i32 count, Add add, Done done, i32 steps_before = 0) {
    for (i32 step = 0; step < count; ++step) {
      const RingPlace<1> place = RingPlace<1>::of_step(steps_before + step);
      const HeadTile query = query_tile_of(step);
      head = query.head;
      const i64 block = this->dq_tile(query.tile);
      if (p.dq_semaphores) this->spin_on_semaphore(query.tile, block);
      dq_ring.wait_full(place);
      add(step, p.dq_accumulator + block * (tile_q * dim_qk));
      bulk_commit();
      bulk_wait_read();
      done(step);
      if (!p.dq_semaphores) continue;
      bulk_wait();
      add_release(p.dq_semaphores + block, 1);
    }
    bulk_wait();
  }

  // K and V of the block, by all consumers.
  MICA_DEVICE void load_keys() const {
    load_rows<KTile>(smem_k, p.k, p.dim_qk);
    load_rows<VTile>(smem_v, p.v, p.dim_v);
    cp_async_commit();
    cp_async_wait<0>();
    fence_for_wgmma();
    barrier_sync(kConsumerBarrier, 128 * kConsumers);
  }
  template <class Tile>
  MICA_DEVICE void load_rows(u32 shared, const RowsArg& tensor, i32 valid_dim) const {
    const int thread = threadIdx.x - 128, chunk = thread % Tile::kChunks;
    const u16* global = static_cast<const u16*>(tensor.data) + this->key_offset(tensor);
    for (int row = thread / Tile::kChunks; row < tile_k; row += 128 * kConsumers / Tile::kChunks) {
      const bool inside = key_begin + row < sequence.len_k && chunk * 8 < valid_dim;
      cp_async_16(shared + Tile::offset(row, chunk), inside ? global + row * tensor.stride_row + chunk * 8 : global,
                  inside ? 16 : 0);
    }
  }
};

}  // namespace mica
