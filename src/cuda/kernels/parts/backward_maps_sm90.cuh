// SPDX-License-Identifier: Apache-2.0
// What the backward kernels that fetch by the copy engine share: who asks for what, and rows past the sequence.
#pragma once

#include "kernels/parts/backward_fragments_sm90.cuh"

namespace mica {

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages,
          u32 served = serves::PLAIN>
struct BackwardMaps : BackwardFragments<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, served> {
  using Base = BackwardFragments<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, served>;
  using Base::head_k;
  using Base::kConsumerBarrier;
  using Base::kConsumers;
  using Base::key_begin;
  using Base::p;
  using Base::part;
  using Base::sequence;
  using Base::smem_k;
  using Base::smem_v;
  using Base::stats;
  using Base::tiles;
  using typename Base::HeadTile;
  using typename Base::KTile;
  using typename Base::VTile;

  const BackwardMapsParams& maps;
  // Where a block takes whole heads: from query tile `fresh_from` on no earlier key tile is seen, up to `done_to` no
  // later one.
  i32 fresh_from = 0, done_to = 0;

  MICA_DEVICE void prefetch_maps() const {
    if (threadIdx.x != 0) return;
    tma_prefetch(maps.k.map);
    tma_prefetch(maps.v.map);
    tma_prefetch(maps.q.map);
    tma_prefetch(maps.d_o.map);
  }

  // Rows past the sequence that the copy engine brings as numbers, since they are inside the tensor.
  MICA_DEVICE bool is_ragged(i32 row) const {
    return row + tile_q > sequence.len_q && sequence.q_begin + sequence.len_q < maps.q.rows;
  }

  template <class Tile>
  MICA_DEVICE void ask(u32 shared, const MappedRows& rows, i32 row, i32 head, i32 slot, u32 barrier) const {
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel)
      tma_load(shared + panel * Tile::kPanelBytes, rows.map,
               {panel * 64, row, head * rows.head_step, slot * rows.slot_step}, barrier);
  }

  // The same of what other blocks read, too: it stays in the second-level cache.
  template <class Tile>
  MICA_DEVICE void ask_kept(u32 shared, const MappedRows& rows, i32 row, i32 head, i32 slot, u32 barrier) const {
    const u64 policy = keep_policy();
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel)
      tma_load(shared + panel * Tile::kPanelBytes, rows.map,
               {panel * 64, row, head * rows.head_step, slot * rows.slot_step}, barrier, policy);
  }

  MICA_DEVICE void ask_keys(u32 full) const {
    mbarrier_arrive_expecting(full, KTile::kBytes + VTile::kBytes);
    const i32 row = i32(sequence.k_begin) + key_begin;
    ask<KTile>(smem_k, maps.k, row, head_k, sequence.k_slot, full);
    ask<VTile>(smem_v, maps.v, row, head_k, sequence.k_slot, full);
  }

  // One warp: the row statistics of a query tile, on their way while the stage is waited for.
  template <class WaitEmpty>
  MICA_DEVICE void bring_stats_of(const HeadTile& query, i32 stage, WaitEmpty wait_empty) const {
    constexpr int kRows = (tile_q + 31) / 32;
    const i32 lane = threadIdx.x % 32, row = query.tile * tile_q, valid = sequence.len_q - row;
    const i64 stat = query.head * p.stat_rows + sequence.q_slot * i64(p.sequences.slot_len_q) + sequence.q_begin + row;
    float lse[kRows], delta[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const i32 at = lane + i * 32;
      lse[i] = at < valid ? p.row_lse[stat + at] : infinity();
      delta[i] = at < valid ? p.row_delta[stat + at] : 0.0f;
    }
    wait_empty();
    float* to = stats + stage * 2 * tile_q + lane;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (tile_q % 32 == 0 || lane + i * 32 < tile_q) {
        to[i * 32] = lse[i];
        to[tile_q + i * 32] = delta[i];
      }
  }

  template <class Tile>
  static MICA_DEVICE void clear_rows(u32 tile, i32 begin, i32 end, i32 thread, i32 threads) {
    const u32 zeros[4] = {};
#pragma unroll 1
    for (i32 i = begin * Tile::kChunks + thread; i < end * Tile::kChunks; i += threads)
      store_shared_16(tile + Tile::offset(i / Tile::kChunks, i % Tile::kChunks), zeros);
  }
  // By one warp: the rows of Q or dO past the sequence.
  template <class Tile>
  MICA_DEVICE void clear_queries(u32 tile, i32 tile_index) const {
    clear_rows<Tile>(tile, sequence.len_q - tile_index * tile_q, tile_q, threadIdx.x % 32, 32);
    fence_for_wgmma();
  }

  // What the loop over the steps depends on, in uniform registers: only then do wgmma's descriptors stay there, too.
  MICA_DEVICE i32 make_uniform(i32 count) {
    tiles = TileRange{warp_max(tiles.begin), warp_max(tiles.full_begin), warp_max(tiles.full_end), warp_max(tiles.end)};
    return warp_max(count);
  }

  // False if there is nothing to do. Persistent blocks take key tiles head by head.
  template <bool persistent>
  MICA_DEVICE bool locate_item(i32 key_tile, i32 of_parts) {
    part = of_parts / maps.query_parts;
    const bool is_there =
        persistent ? this->locate(key_tile / p.tiles_k, key_tile % p.tiles_k) : this->locate(key_tile);
    if (!is_there) return false;
    tiles = this->query_tiles();
    if (maps.query_parts > 1) {
      const i32 each = ceil_div(tiles.end - tiles.begin, maps.query_parts);
      tiles.begin = min_of(tiles.begin + of_parts % maps.query_parts * each, tiles.end);
      tiles.end = min_of(tiles.begin + each, tiles.end);
    }
    return true;
  }
  template <bool persistent = false>
  MICA_DEVICE bool locate_item(i32 item) {
    return locate_item<persistent>(item / maps.parts, item % maps.parts);
  }
  // The same of a block that takes all key tiles of a head: its part of the queries is the same in all of them.
  MICA_DEVICE bool locate_in_head(i32 item, i32 tile) {
    const i32 of_parts = item % maps.parts;
    part = of_parts / maps.query_parts;
    if (!this->locate(item / maps.parts, tile)) return false;
    tiles = this->query_tiles();
    const TileRange before = this->query_tiles_of(key_begin - tile_k);
    const TileRange after = this->query_tiles_of(key_begin + tile_k);
    fresh_from = key_begin > 0 ? before.end : 0;
    done_to = after.begin < after.end ? after.begin : kUnlimited;
    const i32 each = ceil_div(p.tiles_q, maps.query_parts), first = of_parts % maps.query_parts * each;
    tiles.begin = max_of(tiles.begin, first);
    tiles.end = max_of(min_of(tiles.end, first + each), tiles.begin);
    return true;
  }

  // The block's key tiles, one after the other: calls act() where there is something to do. Of a block that has one it
  // is located already. The rounds of single tiles are rotated against each other, since the number of blocks and that
  // of a head's tiles have common factors.
  template <Course course, class Act>
  MICA_DEVICE void for_each_item(Act act) {
    const i32 blocks = i32(gridDim.x);
    if constexpr (course == Course::ONE_TILE) {
      act();
    } else if constexpr (course == Course::TILES) {
      for (i32 first = 0, rotated = i32(blockIdx.x); first + rotated < maps.work_items; first += blocks) {
        if (locate_item<true>(first + rotated)) act();
        rotated = rotated + 1 == blocks ? 0 : rotated + 1;
      }
    } else {
      for (i32 item = i32(blockIdx.x); item < maps.work_items; item += blocks)
        for (i32 tile = 0; tile < p.tiles_k; ++tile)
          if (locate_in_head(item, tile)) act();
    }
  }

  // Blocks that share a key tile and add to its sums in a fixed order: from the first part to the last. By all
  // consumers.
  MICA_DEVICE i32* key_semaphore() const {
    return maps.key_semaphores + (i64(this->batch_index) * p.tiles_k + key_begin / tile_k) * p.heads_k + head_k;
  }
  MICA_DEVICE void wait_key_semaphore() const {
    if (!maps.key_semaphores) return;
    if (threadIdx.x == 128)
      while (load_acquire(key_semaphore()) != part) __nanosleep(40);
    barrier_sync(kConsumerBarrier, 128 * kConsumers);
  }
  MICA_DEVICE void release_key_semaphore() const {
    if (!maps.key_semaphores) return;
    __threadfence();
    barrier_sync(kConsumerBarrier, 128 * kConsumers);
    if (threadIdx.x == 128) add_release(key_semaphore(), 1);
  }

  // By all consumers.
  MICA_DEVICE void wait_for_keys(u32 full, u32 parity = 0) const {
    mbarrier_wait(full, parity);
    const i32 valid = sequence.len_k - key_begin;
    if (valid >= tile_k) return;
    clear_rows<KTile>(smem_k, valid, tile_k, threadIdx.x - 128, 128 * kConsumers);
    clear_rows<VTile>(smem_v, valid, tile_k, threadIdx.x - 128, 128 * kConsumers);
    fence_for_wgmma();
    barrier_sync(kConsumerBarrier, 128 * kConsumers);
  }
};

}  // namespace mica
