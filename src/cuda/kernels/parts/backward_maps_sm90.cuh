// SPDX-License-Identifier: Apache-2.0
// What the backward kernels that fetch by the copy engine share: who asks for what, and rows past the sequence.
#pragma once

#include "kernels/parts/backward_fragments_sm90.cuh"
#include "kernels/parts/backward_order.h"

namespace mica {

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages,
          u32 served = serves::PLAIN>
struct BackwardMaps : BackwardFragments<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, served> {
  using Base = BackwardFragments<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, served>;
  using Base::batch_index;
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

  // One lane.
  MICA_DEVICE void prefetch_maps() const {
    tma_prefetch(maps.k.map);
    tma_prefetch(maps.q.map);
    tma_prefetch(maps.v.map);
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
    ask_key_rows<KTile>(smem_k, maps.k, 0, full);
    ask_key_rows<VTile>(smem_v, maps.v, 0, full);
  }
  // A box of K or V, from a row of the block's on.
  template <class Tile>
  MICA_DEVICE void ask_key_rows(u32 shared, const MappedRows& rows, i32 row, u32 barrier) const {
    ask<Tile>(shared, rows, i32(sequence.k_begin) + key_begin + row, head_k, sequence.k_slot, barrier);
  }

  // One warp: the row statistics of a query tile, on their way while the stage is waited for. put(row, lse, delta).
  template <class WaitEmpty, class Put>
  MICA_DEVICE void bring_stats_of(const HeadTile& query, WaitEmpty wait_empty, Put put) const {
    constexpr int kRows = (tile_q + 31) / 32;
    const i32 lane = threadIdx.x % 32, row = counted(query.tile) * tile_q, valid = sequence.len_q - row;
    const i64 stat = query.head * p.stat_rows + sequence.q_slot * i64(p.sequences.slot_len_q) + sequence.q_begin + row;
    float lse[kRows], delta[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const i32 at = lane + i * 32;
      lse[i] = at < valid ? p.row_lse[stat + at] : infinity();
      delta[i] = at < valid ? p.row_delta[stat + at] : 0.0f;
    }
    wait_empty();
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (tile_q % 32 == 0 || lane + i * 32 < tile_q) put(lane + i * 32, lse[i], delta[i]);
  }
  template <class WaitEmpty>
  MICA_DEVICE void bring_stats_of(const HeadTile& query, i32 stage, WaitEmpty wait_empty) const {
    float* to = stats + stage * 2 * tile_q;
    bring_stats_of(query, wait_empty, [to](i32 row, float lse, float delta) {
      to[row] = lse;
      to[tile_q + row] = delta;
    });
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

  // A key tile of packed sequences that are taken from the longest on, so that the last blocks have little to do: of a
  // sequence head by head, whose queries then stay in L2, or, among the last ones, the longest key tiles first.
  MICA_DEVICE bool locate_in_order(i32 index) {
    const i32* items = maps.packed_order + p.batch;
    i32 low = 0, high = p.batch - 1;  // the last sequence whose first item is at most index
    while (low < high) {
      const i32 middle = low + (high - low + 1) / 2;
      if (items[middle] <= index)
        low = middle;
      else
        high = middle - 1;
    }
    const i32 first = items[low], end = items[low + 1];
    if (index >= end) return false;
    const i32 tiles_each = floor_div(end - first, p.by_heads_k);
    const bool is_tail = items[p.batch] - end < maps.tail_items;
    const i32 each = is_tail ? p.heads_k : tiles_each, major = (index - first) / each,
              minor = index - first - major * each;
    batch_index = maps.packed_order[low];
    head_k = is_tail ? minor : major;
    const i32 tile = is_tail ? major : minor;
    return this->locate_in_sequence(this->is_last_first() ? tiles_each - 1 - tile : tile);
  }

  // Sums in a fixed order under a causal mask: key tiles are taken and added from the last to the first, and begin at
  // their diagonals. Those of the last heads come from the first on, which has the most queries, and go from the last
  // query tile back, which all of them see: query tile t is counted as -1 - t there.
  MICA_DEVICE bool adds_last_first() const { return this->is_last_first() && tiles.begin >= 0; }
  static MICA_DEVICE i32 counted(i32 tile) { return tile ^ tile >> 31; }
  // How many key tiles add to a query tile before this one.
  MICA_DEVICE i32 added_before(i32 tile, bool last_first) const {
    const i32 row = tile * tile_q, own = key_begin / tile_k;
    const TileRange keys = key_tiles(this->band, row, min_of(row + tile_q, sequence.len_q), tile_k);
    return last_first ? keys.end - 1 - own : own - keys.begin;
  }
  // Waits for them. seen: a number of them that have added for sure.
  static MICA_DEVICE void await_turn(i32 before, const i32* semaphore, i32 seen = 0) {
    if (seen != before)
      while (before > 0 && load_acquire(semaphore) != before) __nanosleep(20);
  }

  // False if there is nothing to do.
  MICA_DEVICE bool locate_item(i32 item) {
    i32 key_tile = floor_div(item, maps.by_parts);
    const i32 of_parts = item - key_tile * maps.parts;
    part = floor_div(of_parts, maps.by_query_parts);
    const i32 key_tiles = p.batch * p.heads_k * p.tiles_k;
    i32 of_last = key_tile - key_tiles;
    if (backward_takes_parts_apart(dim_qk) && maps.key_semaphores) {
      part = key_tile;
      key_tile = item - part * key_tiles;
      of_last = item - maps.work_items;
    }
    of_last += p.last_heads * p.tiles_k;
    const bool goes_back = this->is_last_first() && p.last_heads > 0 && of_last >= 0;
    if (goes_back) key_tile += (p.tiles_k - 1 - 2 * floor_div(of_last, p.by_last_heads)) * p.last_heads;
    if (!(maps.packed_order ? locate_in_order(key_tile) : this->locate(key_tile))) return false;
    tiles = this->query_tiles();
    if (goes_back) tiles = TileRange{-tiles.end, -tiles.full_end, -tiles.full_begin, -tiles.begin};
    if (maps.query_parts > 1) {
      const i32 each = ceil_div(tiles.end - tiles.begin, maps.query_parts);
      tiles.begin = min_of(tiles.begin + of_parts % maps.query_parts * each, tiles.end);
      tiles.end = min_of(tiles.begin + each, tiles.end);
    }
    return true;
  }
  // The same of a block that takes all key tiles of a head: its part of the queries is the same in all of them.
  MICA_DEVICE bool locate_in_head(i32 item, i32 tile) {
    const i32 head_of_all = floor_div(item, maps.by_parts), of_parts = item - head_of_all * maps.parts;
    part = floor_div(of_parts, maps.by_query_parts);
    const i32 place = floor_div(head_of_all, p.by_heads_k);
    head_k = head_of_all - place * p.heads_k;
    batch_index = maps.packed_order ? maps.packed_order[place] : place;
    if (!this->locate_in_sequence(tile)) return false;
    tiles = this->query_tiles();
    fresh_from = key_begin > 0 ? this->query_tiles_of(key_begin - tile_k).end : 0;
    done_to = kUnlimited;
    if (key_begin + tile_k < sequence.len_k) {
      const TileRange after = this->query_tiles_of(key_begin + tile_k);
      if (after.begin < after.end) done_to = after.begin;
    }
    const i32 each = ceil_div(p.tiles_q, maps.query_parts), first = of_parts % maps.query_parts * each;
    tiles.begin = max_of(tiles.begin, first);
    tiles.end = max_of(min_of(tiles.end, first + each), tiles.begin);
    return true;
  }

  // The key tiles of a block that takes whole heads, one after the other. Where the longest come first, it goes through
  // the grid's rounds to and fro, so that nobody has the longest head of every round.
  template <class Act>
  MICA_DEVICE void for_each_in_heads(Act act) {
    const i32 blocks = i32(gridDim.x), block = i32(blockIdx.x);
    bool goes_back = false;
    for (i32 first = 0; first < maps.work_items; first += blocks, goes_back = maps.packed_order && !goes_back) {
      const i32 item = first + (goes_back ? blocks - 1 - block : block);
      if (item >= maps.work_items) continue;
      for (i32 tile = 0; tile < p.tiles_k && locate_in_head(item, tile); ++tile) act();
    }
  }

  // One warp: its part of the accumulator to which blocks add that come some heads later. Nobody waits for a block
  // with a larger number, and all of them have begun when the zeros are needed.
  MICA_DEVICE void clear_ahead(i32 item) const {
    if (maps.clears_ahead == 0) return;
    const i32 head_before = floor_div(item, maps.by_head_items), own = item - head_before * maps.head_items;
    const i32 head_of_all = head_before + maps.clears_ahead;
    if (head_of_all >= p.batch * p.heads_k) return;
    const i32 slot = floor_div(head_of_all, p.by_heads_k), first_head = (head_of_all - slot * p.heads_k) * p.group;
    // 512 bytes at a time. A query tile's blocks of the group lie beside each other.
    constexpr i32 kUnits = tile_q * dim_qk / 128;
    const i32 units_of_tile = p.group * kUnits, units = p.tiles_q * units_of_tile;
    const i32 each = ceil_div(units, maps.head_items), first = own * each;
    i32 tile = first / units_of_tile, unit = first - tile * units_of_tile;
    const i64 step = i64(p.heads_q) * (tile_q * dim_qk);
    float* to = p.dq_accumulator + ((i64(slot) * p.tiles_q + tile) * p.heads_q + first_head) * (tile_q * dim_qk) +
                threadIdx.x % 32 * 4;
#pragma unroll 1
    for (i32 left = min_of(each, units - first); left > 0; --left) {
      *reinterpret_cast<float4*>(to + unit * 128) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (++unit < units_of_tile) continue;
      unit = 0;
      to += step;
    }
    __threadfence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) add_release(maps.heads_cleared + head_of_all, 1);
  }
  // One lane: before anything is added to this head's dQ.
  MICA_DEVICE void await_zeros() const {
    const i32 head_of_all = batch_index * p.heads_k + head_k;
    if (maps.clears_ahead == 0 || head_of_all < maps.clears_ahead) return;
    while (load_acquire(maps.heads_cleared + head_of_all) != maps.head_items) __nanosleep(40);
    fence_for_copies();
  }

  // One lane, when all of the block's dQ has been added.
  MICA_DEVICE void count_done() const {
    if (maps.heads_done) add_release(maps.heads_done + batch_index * p.heads_k + head_k, 1);
  }

  // Blocks that share a key tile and add to its sums in a fixed order: from the first part to the last, of which the
  // first two may change places. By all consumers.
  MICA_DEVICE i64 key_block() const {
    return (i64(this->batch_index) * p.tiles_k + key_begin / tile_k) * p.heads_k + head_k;
  }
  MICA_DEVICE i32* key_semaphore() const { return maps.key_semaphores + key_block(); }
  MICA_DEVICE void wait_key_semaphore() const {
    if (!maps.key_semaphores) return;
    if (part < kEitherOrder) return;
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
    clear_key_rows<KTile>(smem_k);
    clear_key_rows<VTile>(smem_v);
  }
  // Of K or V past the sequence. By all consumers.
  template <class Tile>
  MICA_DEVICE void clear_key_rows(u32 shared) const {
    const i32 valid = sequence.len_k - key_begin;
    if (valid >= tile_k) return;
    clear_rows<Tile>(shared, valid, tile_k, threadIdx.x - 128, 128 * kConsumers);
    fence_for_wgmma();
    barrier_sync(kConsumerBarrier, 128 * kConsumers);
  }
};

}  // namespace mica
