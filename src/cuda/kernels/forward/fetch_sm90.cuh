// SPDX-License-Identifier: Apache-2.0
// What brings Q, K and V to the consumers of forward_sm90: three warps of its first warpgroup, each with a loop of its
// own over the query tiles that are announced. The copy engine is asked for panels, in boxes of rows where keys lie in
// pages; rows of small pages are fetched by the lanes themselves.
#pragma once

#include "device/key_tile.cuh"
#include "device/panel_tile.cuh"
#include "device/ring_sm90.cuh"
#include "device/tma_blocks.cuh"
#include "kernels/parts/forward_work_sm90.cuh"
#include "kernels/parts/key_rows_sm90.cuh"
#include "kernels/parts/page_blocks_sm90.h"

namespace mica {

template <class Element, int dim_v, int tile_q, int tile_k, int blocks, u32 served, int cluster>
using ForwardSm90Base =
    ForwardBlock<Element, dim_v, tile_q, tile_k,
                 forward_sm90_features(forward_sm90_serves(served, tile_q, blocks), u32(kFeatureJoinedHeads), cluster)>;
template <class Element, int dim_v, int tile_q, int tile_k, int blocks, u32 served, int cluster>
using ForwardSm90Work =
    ForwardWorkSm90<ForwardSm90Base<Element, dim_v, tile_q, tile_k, blocks, served, cluster>, tile_q, tile_k,
                    forward_sm90_cuts(served, cluster), served != serves::JOINED, cluster>;

// Its tiles in shared memory, and where a thread stands in their rings.
// cluster: 2: blocks in pairs that share K and V: each asks for half of every tile's panels for both. A stage is full
// when all are there, and empty when the consumers of both have let it go.
template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, int blocks, u32 served,
          int cluster>
struct ForwardFetchSm90 : ForwardSm90Work<Element, dim_v, tile_q, tile_k, blocks, served, cluster> {
  using Work = ForwardSm90Work<Element, dim_v, tile_q, tile_k, blocks, served, cluster>;
  using Work::batch_index;
  using Work::find_place;
  using Work::head;
  using Work::kConsumers;
  using Work::p;
  using Work::say_if_nearly_done;
  using Work::sequence;
  using Work::take_tile;
  using Work::tile_row;
  using Work::tiles;
  using Work::work_ring;
  static_assert(kConsumers == warps / 4 - 1 && tile_k % 16 == 0 && dim_qk % 16 == 0 && dim_v % 16 == 0);
  static constexpr bool kPaged = (served & kFeaturePaged) != 0;
  static constexpr bool kHasSlots = forward_sm90_cuts(served, cluster);
  static constexpr int kSharers = cluster == 2 ? 2 : 1;  // of K and V
  static constexpr bool kHasSmallPages = (served & kFeatureSmallPages) != 0;
  static constexpr ForwardSm90Layout kLayout = forward_sm90_layout(tile_q, tile_k, dim_qk, dim_v, stages, blocks);
  static constexpr i32 kQSlots = kLayout.q_slots;
  using QTile = PanelTile<round_up(dim_qk, 64), 64>;  // of a consumer
  static constexpr bool kInBlocks = reads_page_blocks(kPaged, kHasSmallPages, dim_qk);
  using KTile = KeyTile<round_up(dim_qk, 64), tile_k, kInBlocks>;
  using VTile = KeyTile<round_up(dim_v, 64), tile_k, kInBlocks>;
  static_assert(kLayout.k == kQSlots * kConsumers * QTile::kBytes && kLayout.v - kLayout.k == stages * KTile::kBytes &&
                kLayout.o - kLayout.v == stages * VTile::kBytes);
  // Q's barriers: a stage for each consumer's 64 queries in each slot.
  static constexpr i32 kQStages = kConsumers * kQSlots;

  static_assert(kLayout.k_ring - kLayout.work == decltype(Work::work_ring)::kBytes &&
                kLayout.landed - kLayout.q_ring == Ring<kQStages>::kBytes);

  const ForwardMapsParams& maps;
  u32 smem_q, smem_k, smem_v, smem_o, landed;
  Ring<kQStages> q_ring;
  Ring<stages> k_ring, v_ring;
  // Where this thread stands in the rings; they go on from one query tile to the next.
  RingPlace<stages> k_place, v_place;
  RingPlace<kQSlots> q_place;
  u32 landed_parity = 0;
  i32 key_head;  // of those that ask for K and V: once a query tile, since a division takes longer than asking

  MICA_DEVICE ForwardFetchSm90(const ForwardMapsParams& params) : Work{{params.forward}}, maps(params) {}

  // The tile's first key.
  MICA_DEVICE i32 key_begin(i32 step) const { return (tiles.end - 1 - step) * tile_k; }

  // Rows of Q that no box fills: their products are as any others, but nothing large.
  MICA_DEVICE void clear_ends_of_boxes() const {
    if (!this->joins_heads() || p.joined_rows == 64) return;
    constexpr float kZeros[4] = {};
    const i32 pieces = (64 - p.joined_rows) * 8;
#pragma unroll 1
    for (i32 i = threadIdx.x; i < kQStages * QTile::kPanels * pieces; i += 32 * warps)
      store_shared_floats(smem_q + i / pieces * QTile::kPanelBytes + (p.joined_rows * 8 + i % pieces) * 16, kZeros);
    fence_for_wgmma();
  }

  // Where a row of the tile's head is in q and o. Joined heads are boxes of some heads times some rows: their maps have
  // heads before rows.
  MICA_DEVICE TmaPlace query_place(i32 row) const {
    if (this->joins_heads()) {
      const i32 query = this->query_of(row);
      return {0, row + (head - query) * p.joined_heads, query, sequence.q_slot};
    }
    return {0, i32(sequence.q_begin) + row, head, sequence.q_slot};
  }
  MICA_DEVICE void find_rows_or_pages() {
    if constexpr (kPaged)
      find_place();
    else
      this->find_rows();
  }
  MICA_DEVICE i32 q_stage(i32 group) const { return q_place.stage * kConsumers + group; }
  // The second warp: asks for Q.
  MICA_DEVICE void fetch_queries() {
    bool is_first = true;
    while (take_tile()) {
      find_rows_or_pages();
      work_ring.release();
      if (tiles.begin == tiles.end) continue;
#pragma unroll 1
      for (i32 group = 0; group < kConsumers; ++group) {
        const i32 stage = q_stage(group);
        mbarrier_wait(q_ring.empty(stage), q_place.parity ^ u32(q_place.stage == 0));
        if (is_first) {
          await_kernel_before();
          is_first = false;
        }
        const i32 row = tile_row + this->group_row(group);
        if (threadIdx.x % 32 == 0) {
          if (row < sequence.len_q) {
            mbarrier_arrive_expecting(q_ring.full(stage), QTile::kBytes / 64 * this->consumer_rows());
            const u32 to = smem_q + stage * QTile::kBytes, full = q_ring.full(stage);
            ask_for<QTile>(to, maps.q, query_place(row), full);
            if (this->joins_heads())
#pragma unroll 1
              for (i32 box = maps.q.box_rows; box < p.joined_rows; box += maps.q.box_rows)
                ask_for<QTile>(to + box * 128, maps.q, query_place(row + box), full);
          } else {
            mbarrier_arrive(q_ring.full(stage));  // there are none
          }
        }
      }
      q_place.next();
    }
  }
  // Only then may the next kernel's blocks come. Sooner those of several kernels would fill the SMs and wait, and a
  // kernel of few blocks would have them where it found room, three on some SMs and none on others.
  static MICA_DEVICE void await_kernel_before() {
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
  }
  // The first warp asks for K of each query tile's keys, the fourth for V.
  MICA_DEVICE void fetch_keys() {
    bool is_first = !kPaged;
    while (take_tile()) {
      find_rows_or_pages();
      work_ring.release();
      if (fetches_rows()) {
        fetch_rows<KTile, true>(p.k, p.dim_qk, smem_k, k_ring, k_place);
        continue;
      }
      key_head = warp_max(p.group == 1 ? head : head / p.group);
      Boxes boxes = find_boxes(maps.k, 0);
#pragma unroll 1
      for (i32 step = 0; step < tiles.end - tiles.begin; ++step) {
        fetch_k(step, boxes, is_first);
        is_first = false;
        go_on(boxes, maps.k, step);
        say_if_nearly_done(step);
      }
    }
  }
  MICA_DEVICE void fetch_values() {
    bool is_first = true;
    while (take_tile()) {
      find_rows_or_pages();
      work_ring.release();
      if (is_first) {
        griddepcontrol_wait();
        is_first = false;
      }
      if (fetches_rows()) {
        fetch_rows<VTile, false>(p.v, p.dim_v, smem_v, v_ring, v_place);
        continue;
      }
      key_head = warp_max(p.group == 1 ? head : head / p.group);
      Boxes boxes = find_boxes(maps.v, 0);
#pragma unroll 1
      for (i32 step = 0; step < tiles.end - tiles.begin; ++step) {
        fetch_v(step, boxes);
        go_on(boxes, maps.v, step);
      }
    }
  }
  // Small pages have no map: the copy engine would be asked for box after small box, and the lanes are faster.
  MICA_DEVICE bool fetches_rows() const { return kHasSmallPages && maps.k.box_rows == 0; }
  // The warp's lanes fetch the tiles' rows, 16 bytes at a time. A tile is announced when it has landed: while the next
  // one is under way, or before the warp waits for room.
  template <class Rows, bool is_k>
  MICA_DEVICE void fetch_rows(const RowsArg& tensor, i32 dim, u32 smem, const Ring<stages>& ring,
                              RingPlace<stages>& place) const {
    if constexpr (kHasSmallPages) {
      using Keys = KeyRows<tile_k>;
      const i32 count = tiles.end - tiles.begin;
      if (count == 0) return;
      const u16* first = static_cast<const u16*>(tensor.data) + (head / p.group) * tensor.stride_head;
      i32 columns[Rows::kPanels], landing = -1;  // a stage
#pragma unroll
      for (int panel = 0; panel < Rows::kPanels; ++panel) columns[panel] = panel * 64;
      Keys ahead = Keys::find(*this, tiles.end - 1);
      for (i32 step = 0; step < count; ++step) {
        const typename Keys::Offsets offsets = ahead.offsets(p.sequences, tensor);
        ahead = Keys::find(*this, max_of(tiles.end - 2 - step, 0));
        if (!__all_sync(0xffffffffu, mbarrier_is_over(ring.empty(place.stage), place.parity ^ 1))) {
          announce_landed<0>(ring, landing);
          landing = -1;
          ring.wait_empty(place);
        }
        Keys::template fetch<Rows::kPanels, true>(smem + place.stage * Rows::kBytes, first, offsets, columns,
                                                  sequence.len_k - key_begin(step), dim);
        cp_async_commit();
        announce_landed<1>(ring, landing);
        landing = place.stage;
        place.next();
        if (is_k) say_if_nearly_done(step);
      }
      announce_landed<0>(ring, landing);
    }
  }
  template <int younger>
  static MICA_DEVICE void announce_landed(const Ring<stages>& ring, i32 stage) {
    if (stage < 0) return;
    cp_async_wait<younger>();
    fence_for_wgmma();
    __syncwarp();
    arrive_as_warp(ring.full(stage));
  }
  // Where the boxes of rows of the next key tiles in pages are, a lane each: of as many tiles as the lanes have boxes
  // for, since finding them takes instructions that the consumers miss. Asked for a tile ahead, since the block table
  // is far away. Boxes past the last key repeat the last one that has any. In blocks: the page is the head's in the
  // page, the row that of its first block.
  // What is not in pages has one box a tile, `next`, in the map's steps: found before there is room for it, since its
  // keys are waited for from then on.
  struct Boxes {
    i32 page, row;
    i32 of_tile, first_step, last_step;
    TmaPlace next;
  };
  // A packed sequence that is longer than was said goes on in the slots before its last.
  static MICA_DEVICE void to_slot_of(TmaPlace& place) {
    if constexpr (kHasSlots) {
      const i32 before = min_of(place.row, 0);
      place.row -= before;
      place.slot += before;
    }
  }
  MICA_DEVICE void go_on(Boxes& boxes, const MappedRows& mapped, i32 step) const {
    if constexpr (kPaged) {
      if (step == boxes.last_step) boxes = find_boxes(mapped, step + 1);
    } else {
      boxes.next.row -= tile_k;
      to_slot_of(boxes.next);
    }
  }
  MICA_DEVICE Boxes find_boxes(const MappedRows& mapped, i32 step) const {
    if constexpr (!kPaged) {
      Boxes boxes = {.next = {0, i32(sequence.k_begin) + key_begin(step), key_head * mapped.head_step,
                              sequence.k_slot * mapped.slot_step}};
      to_slot_of(boxes.next);
      return boxes;
    }
    const i32 lane = threadIdx.x % 32, rows = mapped.box_rows, of_tile = tile_k / rows, ahead = lane / of_tile;
    Boxes boxes = {0, 0, of_tile, step, step + 32 / of_tile - 1, {}};
    if (step + ahead >= tiles.end - tiles.begin) return boxes;
    const i32 key =
        min_of(key_begin(step + ahead) + (lane - ahead * of_tile) * rows, (sequence.len_k - 1) / rows * rows);
    const PagedRow at = paged_row(p.sequences, sequence, batch_index, key);
    boxes.page = clamp_to(at.entry, 0, p.sequences.slots_k - 1);
    boxes.row = at.row;
    if constexpr (kInBlocks) {
      boxes.page = boxes.page * mapped.slot_step + key_head * mapped.head_step;
      boxes.row /= kBlockRows;
    }
    return boxes;
  }
  // By the warp: the tile's rows, contiguous or, a box after the other, in pages.
  template <class Keys>
  MICA_DEVICE void ask_for_keys(u32 shared, const MappedRows& mapped, i32 step, const Boxes& boxes, u32 barrier) const {
    if constexpr (kPaged) {
      const i32 rows = mapped.box_rows;
#pragma unroll 1
      for (i32 box = 0; box < boxes.of_tile; ++box) {
        const i32 lane = (step - boxes.first_step) * boxes.of_tile + box;
        const TmaPlace place = {0, __shfl_sync(0xffffffffu, boxes.row, lane), key_head,
                                __shfl_sync(0xffffffffu, boxes.page, lane)};
        const u32 to = shared + box * (rows / kBlockRows) * Keys::kBlockBytes;
        if (threadIdx.x % 32 == 0) {
          if constexpr (kInBlocks)
            tma_load_blocks(to, mapped.map, place.row, place.slot, barrier);
          else
            ask_for<Keys>(to, mapped, place, barrier);
        }
      }
    } else if constexpr (kSharers == 2) {
      constexpr int kHalf = Keys::kPanels / 2;
      static_assert(Keys::kPanels % 2 == 0);
      if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
          const i32 panel = i32(block_rank()) * kHalf + i;
          tma_load_multicast(shared + panel * Keys::kPanelBytes, mapped.map,
                             {panel * 64, boxes.next.row, boxes.next.head, boxes.next.slot}, barrier);
        }
      }
    } else if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int panel = 0; panel < Keys::kPanels; ++panel)
        tma_load(shared + panel * Keys::kPanelBytes, mapped.map,
                 {panel * 64, boxes.next.row, boxes.next.head, boxes.next.slot}, barrier);
    }
  }
  template <class Tile>
  static MICA_DEVICE void ask_for(u32 shared, const MappedRows& mapped, const TmaPlace& place, u32 barrier) {
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel)
      tma_load(shared + panel * Tile::kPanelBytes, mapped.map,
               {panel * 64, place.row, place.head * mapped.head_step, place.slot * mapped.slot_step}, barrier);
  }
  MICA_DEVICE void fetch_k(i32 step, const Boxes& boxes, bool is_first) {
    const u32 full = k_ring.full(k_place.stage);
    k_ring.wait_empty(k_place);
    if (threadIdx.x % 32 == 0) mbarrier_arrive_expecting(full, KTile::kBytes);
    if (is_first) griddepcontrol_wait();
    ask_for_keys<KTile>(smem_k + k_place.stage * KTile::kBytes, maps.k, step, boxes, full);
    k_place.next();
  }
  // Rows past the sequence's last key may be anything, NaN too, and their probability of 0 does not make that 0: they
  // are cleared before the tile is announced. Past the tensor's last row, or that of a packed sequence, the copy engine
  // brings zeros itself.
  MICA_DEVICE void fetch_v(i32 step, const Boxes& boxes) {
    const u32 to = smem_v + v_place.stage * VTile::kBytes, full = v_ring.full(v_place.stage);
    const i32 valid = sequence.len_k - key_begin(step);
    const bool clears = kSharers == 1 && step == 0 && valid < tile_k && (kPaged || !ends_by_itself());
    v_ring.wait_empty(v_place);
    const u32 barrier = clears ? landed : full;
    if (threadIdx.x % 32 == 0) mbarrier_arrive_expecting(barrier, VTile::kBytes);
    ask_for_keys<VTile>(to, maps.v, step, boxes, barrier);
    if (clears) {
      mbarrier_wait(landed, landed_parity);
      landed_parity ^= 1;
      constexpr float kZeros[4] = {};
#pragma unroll 1
      for (int i = valid * 8 + i32(threadIdx.x % 32); i < tile_k * 8; i += 32)
#pragma unroll
        for (int panel = 0; panel < VTile::kPanels; ++panel)
          store_shared_floats(to + panel * VTile::kPanelBytes + i / 64 * VTile::kBlockBytes + i % 64 * 16, kZeros);
      fence_for_wgmma();
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbarrier_arrive(full);
    }
    v_place.next();
  }

  // Whether past the sequence's last key the copy engine brings zeros.
  MICA_DEVICE bool ends_by_itself() const { return sequence.k_begin + sequence.len_k >= maps.v.rows; }
};

}  // namespace mica
