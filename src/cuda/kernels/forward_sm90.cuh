// SPDX-License-Identifier: Apache-2.0
// Forward attention for Hopper, with wgmma and the copy engine. A block owns tile_q queries of one head at a time and
// goes through the key tiles from the last to the first. The warps of its first warpgroup bring what is needed, each of
// the other warpgroups owns 64 of the queries:
//
//   warp 2     finds the next query tile and announces it           warp 1     asks for its Q, a tile ahead
//   warp 0     K0 | K1 | K2 | ...                                   warp 3     V0 | V1 | V2 | ...
//   consumer   S0 | exp2 S0 | S1, O += P0 V0 | exp2 S1 | S2, O += P1 V1 | exp2 S2 | ... | O leaves
//
// K and V come into rings of stages, whose barriers count the bytes that arrive. S of the next tile is under way on the
// tensor cores while O takes the last one, and exponentials of S run while O += P V does: relative to the maximum of
// the tiles before, since a consumer's own work between two products is what bounds the rate. P is rounded in the
// registers where S was and is the A operand from there. Consumers do not meet, though some begin their products in
// turn: each takes only the key tiles that its own queries see. O goes through shared memory to the copy engine, and
// the consumer on to the next query tile.
#pragma once

#include "device/key_tile.cuh"
#include "device/panel_tile.cuh"
#include "device/ring_sm90.cuh"
#include "device/tma_blocks.cuh"
#include "device/wgmma.cuh"
#include "kernels/options/cap.cuh"
#include "kernels/parts/consumer_sm90.cuh"
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

// cluster: 2: blocks in pairs that share K and V: each asks for half of every tile's panels for both. A stage is full
// when all are there, and empty when the consumers of both have let it go.
template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, int blocks, u32 served,
          int cluster>
struct ForwardSm90 : ForwardSm90Work<Element, dim_v, tile_q, tile_k, blocks, served, cluster> {
  using Work = ForwardSm90Work<Element, dim_v, tile_q, tile_k, blocks, served, cluster>;
  using Base = ForwardSm90Base<Element, dim_v, tile_q, tile_k, blocks, served, cluster>;
  using Base::band;
  using Base::batch_index;
  using Base::head;
  using Base::p;
  using Base::sequence;
  using Base::split;
  using Base::tile_row;
  using Base::tiles;
  using Work::deal_out;
  using Work::find_place;
  using Work::kConsumers;
  using Work::kOwn;
  using Work::nearly_done;
  using Work::say_if_nearly_done;
  using Work::take_tile;
  using Work::tile_lse_first;
  using Work::uniform;
  using Work::work_ring;
  static_assert(kConsumers == warps / 4 - 1 && tile_k % 16 == 0 && dim_qk % 16 == 0 && dim_v % 16 == 0);
  // What a thread begins with, in the steps of 8 that setmaxnreg takes; consumers get what the producer gives up.
  static constexpr int kRegisters = 65536 / blocks / (32 * warps) / 8 * 8;
  static constexpr bool kPaged = (served & kFeaturePaged) != 0;
  static constexpr bool kHasSlots = forward_sm90_cuts(served, cluster);
  static constexpr int kSharers = cluster == 2 ? 2 : 1;  // of K and V
  // Where consumers have enough: the warp that deals out packed sequences spills less.
  static constexpr bool kSpares = kConsumers == 1 || (blocks == 1 && dim_v <= 128);
  static constexpr bool kHasSmallPages = (served & kFeatureSmallPages) != 0;
  static constexpr int kProducerRegisters = kHasSmallPages   ? (kConsumers > 2 ? 80
                                                                : dim_v > 128  ? 56
                                                                               : 88)
                                            : kConsumers > 2 ? 32
                                            : kSpares        ? 40
                                                             : 24;
  static constexpr int kConsumerRegisters =
      min_of(240, (kRegisters * (kConsumers + 1) - kProducerRegisters) / kConsumers / 8 * 8);

  static constexpr ForwardSm90Layout kLayout = forward_sm90_layout(tile_q, tile_k, dim_qk, dim_v, stages, blocks);
  static constexpr i32 kQSlots = kLayout.q_slots;
  // O leaves by the copy engine: with two slots through that of its Q, else some panels of it through a room of their
  // own.
  static constexpr bool kHasOutputRoom = kLayout.o_panels > 0;
  static_assert(kHasOutputRoom != (kQSlots == 2));
  using QTile = PanelTile<round_up(dim_qk, 64), 64>;  // of a consumer
  static constexpr bool kInBlocks = reads_page_blocks(kPaged, kHasSmallPages, dim_qk);
  using KTile = KeyTile<round_up(dim_qk, 64), tile_k, kInBlocks>;
  using VTile = KeyTile<round_up(dim_v, 64), tile_k, kInBlocks>;
  using OTile = PanelTile<round_up(dim_v, 64), 64>;  // of a consumer, in the place of its Q or in a room of their own
  static_assert(kLayout.k == kQSlots * kConsumers * QTile::kBytes && kLayout.v - kLayout.k == stages * KTile::kBytes &&
                kLayout.o - kLayout.v == stages * VTile::kBytes && OTile::kBytes <= QTile::kBytes);
  using Scores = float[1][tile_k / 8][4];
  using Result = typename Base::template Result<1, dim_v / 8>;
  static_assert(!(served & kFeatureDropout) || tile_k % 32 == 0);

  // Most tiles need no maximum: all keys are seen, every row has a maximum from the tiles before, and what is relative
  // to that one is right as long as nothing overflows. So the exponentials begin at once. Masks and biases are read
  // once, so that scores could not be made again.
  static constexpr bool kCaps = served == serves::SOFTCAP, kMayBeBounded = kCaps && Element::kDtype == MICA_BF16;
  static constexpr bool kFollowsOn = dim_v < 256 && !(served & serves::PAIRS) && !kMayBeBounded;

  // Small blocks whose registers do not hold the scores, the probabilities and the output at once take one product
  // after the other, while other blocks of the SM compute.
  static constexpr bool kInOrder = blocks > 1 && kConsumerRegisters < tile_k / 2 + tile_k / 4 + dim_v / 2 + 28;

  // Four consumers begin their products one after the other, so that the exponentials of three run under those of the
  // fourth. Three fall into such an order by themselves, unless heads are narrow and every block has one tile of many
  // keys, whose slowest counts; two of wide tiles do not always, and then stay out of it for as long as their keys
  // last. Of two with wide heads only those that softcap keeps for longer gain by it.
  static constexpr bool kOrdersConsumers = kConsumers > 3 || (served == serves::JOINED && dim_qk <= 64) ||
                                           (kConsumers == 2 && blocks == 1 && (dim_qk <= 128 || kCaps));
  static constexpr i32 kPingpongBarrier = 1 + kConsumers;  // the first of kConsumers named barriers
  static_assert(kPingpongBarrier + kConsumers <= 16);
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
  TileRange own;  // a consumer's
  i32 key_head;   // of those that ask for K and V: once a query tile, since a division takes longer than asking
  FeatureState<false, FloatMath, served> features;
  PairsAhead<tile_k / 8> pairs;  // of the next tile, where the kernel serves them

  MICA_DEVICE ForwardSm90(const ForwardMapsParams& params) : Work{{params.forward}}, maps(params) {}

  MICA_DEVICE void run(u8* smem) {
    smem_q = shared_address(smem);
    smem_k = smem_q + kLayout.k;
    smem_v = smem_q + kLayout.v;
    smem_o = smem_q + kLayout.o;
    work_ring.shared = smem_q + kLayout.work;
    k_ring.barriers = smem_q + kLayout.k_ring;
    v_ring.barriers = smem_q + kLayout.v_ring;
    q_ring.barriers = smem_q + kLayout.q_ring;
    landed = smem_q + kLayout.landed;
    nearly_done = smem_q + kLayout.nearly_done;
    this->confirmed = smem_q + kLayout.confirmed;
    this->lengths = reinterpret_cast<i32*>(smem + kLayout.lengths);
    this->slot_rows_q = i32(maps.q.rows);
    this->slot_rows_k = i32(maps.k.rows);
    if constexpr (kSharers == 2) this->mail = smem_q + kLayout.lengths;
    if (threadIdx.x == 0) {
      k_ring.init(1, kSharers * 4 * kConsumers);
      v_ring.init(1, kSharers * 4 * kConsumers);
      q_ring.init(1, 4);
      work_ring.init(4 * kConsumers + 3);
      mbarrier_init(landed, 1);
      mbarrier_init(nearly_done, 1);
      mbarrier_init(this->confirmed, 1);
      mbarrier_init(this->confirmed + kBarrierBytes, 1);
      if constexpr (kSharers == 2) {
        this->init_mail();
        fence_barriers_for_cluster();
      }
      fence_for_wgmma();  // the copy engine sees the barriers
      tma_prefetch(maps.q.map);
      if (maps.o.box_rows > 0) tma_prefetch(maps.o.map);
      if (!fetches_rows()) {
        tma_prefetch(maps.k.map);
        tma_prefetch(maps.v.map);
      }
    }
    clear_ends_of_boxes();
    if constexpr (kSharers == 2)
      cluster_sync();
    else
      __syncthreads();
    if (threadIdx.x < 128) {
      setmaxnreg_dec<kProducerRegisters>();
      const i32 warp = uniform_warp();
      // Each waits for the kernel before this one when it comes to that: the first tile is known sooner, but its pages
      // are not.
      if (kPaged && warp != 2) griddepcontrol_wait();
      if (warp == 0)
        fetch_keys();
      else if (warp == 1)
        fetch_queries();
      else if (warp == 2)
        deal_out();
      else
        fetch_values();
    } else {
      setmaxnreg_inc<kConsumerRegisters>();
      consume();
    }
    // The other block may still copy into this one's memory and arrive at its barriers.
    if constexpr (kSharers == 2) {
      __syncwarp();
      cluster_end();
    }
  }

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

  // Query tiles one after the other.
  MICA_DEVICE void consume() {
    const i32 group = uniform_warp() / 4 - 1;
    griddepcontrol_wait();
    if (group == kConsumers - 1) pingpong_arrive(group);
    while (take_tile()) {
      consume_tile(group);
      work_ring.release();
    }
    if (threadIdx.x % 32 == 0) bulk_wait_read();  // O may still be on its way, but no longer in the block's memory
  }
  MICA_DEVICE void consume_tile(i32 group) {
    const i32 tile_warp_row = this->group_row(group) + uniform_warp() % 4 * kWarpRows;
    const i32 row_begin = tile_row + tile_warp_row;
    const i32 count = tiles.end - tiles.begin;
    own = uniform(work_ring.template load<TileRange>(kOwn + group * sizeof(TileRange)));
    if constexpr ((served & ~(serves::PAGED | kFeatureChunk)) != 0) find_place();
    // In steps, as the block comes through its tiles from the last to the first.
    const i32 first = tiles.end - own.end, last = tiles.end - own.begin;
    SoftmaxState<FloatMath> state[1][2];
    float out[1][dim_v / 8][4], scale[1][2];
    const Result result = {state, out, tile_warp_row, 0, this->group_row(group) + this->consumer_rows()};
    state[0][0] = state[0][1] = empty_state<FloatMath>();
    if (count > 0) {
      mbarrier_wait(q_ring.full(q_stage(group)), q_place.parity);
      skip(first, group);
    }
    if (first < last) {
      Scores scores;
      u32 probabilities[tile_k / 16][4];
      features.begin(p, batch_index, head);
      fetch_pairs(row_begin, first);
      k_ring.wait_full(k_place);
      pingpong_wait(group);
      gemm_qk(scores[0], group);
      pingpong_arrive(group);
      wgmma_wait<0>();
      wgmma_hold(scores[0]);
      release_k();
      softmax(scores, state[0], row_begin, first);
      drop(scores, row_begin, first);
      round(probabilities, scores[0]);
      if constexpr (kQSlots == 2) release_other_slot(group);
      for (i32 step = first + 1; step < last; ++step) {
        if constexpr (kInOrder) {
          attend_in_order(scores, probabilities, state[0], out[0], group, row_begin, step, step > first + 1);
          continue;
        }
        k_ring.wait_full(k_place);
        pingpong_wait(group);
        gemm_qk(scores[0], group);
        v_ring.wait_full(v_place);
        gemm_pv(out[0], probabilities, step > first + 1);
        pingpong_arrive(group);
        wgmma_wait<1>();
        wgmma_hold(scores[0]);
        Factors factors = {{1.0f, 1.0f}};
        bool is_done = follows_on(state[0], step);
        if (is_done) is_done = follow_on(scores, state[0], group, row_begin, step, factors);
        release_k();
        if (!is_done) factors = softmax(scores, state[0], row_begin, step);
        drop(scores, row_begin, step);
        wgmma_hold(scores[0]);
        wait_and_rescale(out[0], factors, state[0][0].sum + state[0][1].sum);
        release_v();
        round(probabilities, scores[0]);
      }
      if constexpr (kHasOutputRoom) arrive_as_warp(q_ring.empty(q_stage(group)));
      this->await_confirmation();
      v_ring.wait_full(v_place);
      gemm_pv(out[0], probabilities, last > first + 1);
      statistics(result, scale);
      wgmma_wait<0>();
      wgmma_hold(out[0]);
      release_v();
    } else {
      if constexpr (kHasOutputRoom)
        if (count > 0) arrive_as_warp(q_ring.empty(q_stage(group)));
      if constexpr (kQSlots == 2)
        if (count > 0) release_other_slot(group);
      zero(out);
      this->await_confirmation();
      statistics(result, scale);
    }
    skip(count - last, group);
    if (row_begin + kWarpRows > band.len_q) clear_unused(out[0], row_begin, band.len_q);
    finish(group, result, scale);
  }

  // O takes the values of the last tile, then come the scores of this one: with fewer registers than both at once,
  // since other blocks of the SM compute meanwhile.
  MICA_DEVICE void attend_in_order(Scores& scores, u32 (&probabilities)[tile_k / 16][4],
                                   SoftmaxState<FloatMath> (&state)[2], float (&out)[dim_v / 8][4], i32 group,
                                   i32 row_begin, i32 step, bool adds) {
    v_ring.wait_full(v_place);
    gemm_pv(out, probabilities, adds);
    wgmma_wait<0>();
    wgmma_hold(out);
    release_v();
    k_ring.wait_full(k_place);
    gemm_qk(scores[0], group);
    wgmma_wait<0>();
    wgmma_hold(scores[0]);
    release_k();
    const Factors factors = softmax(scores, state, row_begin, step);
    drop(scores, row_begin, step);
    rescale(out, factors);
    round(probabilities, scores[0]);
  }

  // Writes LSE and says by what O is to be multiplied.
  MICA_DEVICE void statistics(const Result& r, float (&scale)[1][2]) {
    find_place();
    SoftmaxState<FloatMath> state[1][2] = {{r.state[0][0], r.state[0][1]}};
#pragma unroll
    for (int half = 0; half < 2; ++half) state[0][half].sum = quad_sum(state[0][half].sum);
    Base::finish_statistics(Result{state, r.out, r.first_row, 0, r.row_end}, tile_lse_first, scale);
    if (!is_bounded()) return;
      // Relative to a row's own maximum a single key has the probability 1, which is exact. Relative to nothing it is
      // any number: O is the key's value only if it is divided by what was rounded.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Range keys = keys_of_row(band, tile_row + r.first_row + half * 8 + i32(threadIdx.x) % 32 / 4);
      const float sum = state[0][half].sum;
      if (keys.end - keys.begin == 1 && sum > 0.0f) scale[0][half] *= sum / unpack<Element>(pack<Element>(sum, sum)).x;
    }
  }
  // Writes O through the slot of this tile's Q, or the room that O has, from where the copy engine takes it. Where its
  // boxes would not end with a packed sequence, those rows go from the registers, and so does O where there was no Q.
  // Warps without rows have nothing to write, which takes long from the registers.
  MICA_DEVICE void finish(i32 group, const Result& r, const float (&scale)[1][2]) {
    const bool has_q = tiles.begin < tiles.end;
    const i32 row = tile_row + r.first_row, rows = sequence.slot_len_q - row;
    const bool leaves_by_copy =
        has_q && maps.o.box_rows > 0 && !p.partial_o &&
        (!p.packed_q || rows >= kWarpRows || sequence.q_begin + sequence.slot_len_q >= maps.o.rows);
    if (!kHasOutputRoom && has_q) barrier_sync(1 + group, 128);  // all four warps are done with Q
    if (leaves_by_copy && rows > 0)
      send_output(kHasOutputRoom ? smem_o + group * kLayout.o_panels * OTile::kPanelBytes
                                 : smem_q + q_stage(group) * QTile::kBytes,
                  r, scale);
    else if (rows > 0) {
      sequence = this->in_tensors(sequence);
      Base::finish_output(nullptr, r, scale);
    }
    if (has_q) q_place.next();
  }
  // With two slots: the one before this tile's is free when its O has left, which is asked for only now, since nothing
  // waits for it before. At the first tile the second slot becomes free so, which nobody had.
  MICA_DEVICE void release_other_slot(i32 group) const {
    if (threadIdx.x % 32 == 0) {
      bulk_wait_read();
      mbarrier_arrive(q_ring.empty((q_place.stage ^ 1) * kConsumers + group));
    }
  }
  // The warp's rows of O into `room`, in panels as the copy engine reads them, and away, as many at a time as it holds.
  MICA_DEVICE void send_output(u32 room, const Result& r, const float (&scale)[1][2]) const {
    constexpr int kAtOnce = kHasOutputRoom ? kLayout.o_panels : OTile::kPanels;
    const i32 lane = threadIdx.x % 32, row = r.first_row % 64 + lane % 16;
#pragma unroll
    for (int first = 0; first < OTile::kPanels; first += kAtOnce) {
      if constexpr (kHasOutputRoom) {  // what left before, of this tile or the last one, has been read
        if (lane == 0) bulk_wait_read();
        __syncwarp();
      }
#pragma unroll
      for (int n = first * 8; n < dim_v / 8 && n < (first + kAtOnce) * 8; n += 2) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&block)[4] = r.out[0][n + i / 2];
          words[i] = pack<Element>(block[i % 2 * 2] * scale[0][i % 2], block[i % 2 * 2 + 1] * scale[0][i % 2]);
        }
        stmatrix_x4(room + OTile::offset(row, n - first * 8 + lane / 16), words);
      }
      fence_for_wgmma();
      __syncwarp();
      if (lane == 0) {
        const i32 first_row = tile_row + r.first_row;
        const TmaPlace place = query_place(first_row);
#pragma unroll
        for (int panel = first; panel < OTile::kPanels && panel < first + kAtOnce; ++panel)
          tma_store(maps.o.map, {panel * 64, place.row, place.head * maps.o.head_step, place.slot * maps.o.slot_step},
                    room + (panel - first) * OTile::kPanelBytes + r.first_row % 64 * 128);
        bulk_commit();
      }
    }
  }

  // Consumers in ping-pong: once for each key tile of the block, also for those that a consumer skips: all of them have
  // as many.
  static MICA_DEVICE void pingpong_wait(i32 group) {
    if constexpr (kOrdersConsumers) barrier_sync(kPingpongBarrier + group, 256);
  }
  static MICA_DEVICE void pingpong_arrive(i32 group) {
    if constexpr (kOrdersConsumers) barrier_arrive(kPingpongBarrier + (group + 1 == kConsumers ? 0 : group + 1), 256);
  }

  // Lets go of tiles of which this consumer needs nothing, in the order in which they come.
  MICA_DEVICE void skip(i32 num_tiles, i32 group) {
    for (i32 i = 0; i < num_tiles; ++i) {
      pingpong_wait(group);
      pingpong_arrive(group);
      k_ring.wait_full(k_place);
      release_k();
      v_ring.wait_full(v_place);
      release_v();
    }
  }
  MICA_DEVICE bool is_partly_hidden(i32 tile) const { return tile < own.full_begin || tile >= own.full_end; }

  MICA_DEVICE void release_k() {
    release(k_ring, k_place);
    k_place.next();
  }
  MICA_DEVICE void release_v() {
    release(v_ring, v_place);
    v_place.next();
  }
  MICA_DEVICE void release(const Ring<stages>& ring, const RingPlace<stages>& place) const {
    ring.release(place);
    if constexpr (kSharers == 2)
      if (threadIdx.x % 32 == 0) mbarrier_arrive_remote(shared_of_block(ring.empty(place.stage), block_rank() ^ 1));
  }

  // scores = Q K^T of one key tile, begun.
  MICA_DEVICE void gemm_qk(float (&scores)[tile_k / 8][4], i32 group) const {
    const u64 q = matrix_descriptor(smem_q + q_stage(group) * QTile::kBytes, 16, 1024);
    const u64 k = advance(matrix_descriptor(smem_k, 16, KTile::kBlockBytes), k_place.stage * KTile::kBytes);
    begin_scores<Element, QTile, KTile, dim_qk * 2>(scores, q, k);
  }

  // out += P V of one key tile, begun; the first one is not added to anything.
  MICA_DEVICE void gemm_pv(float (&out)[dim_v / 8][4], const u32 (&probabilities)[tile_k / 16][4], bool adds) const {
    const u64 v =
        advance(matrix_descriptor(smem_v, VTile::kPanelBytes, VTile::kBlockBytes), v_place.stage * VTile::kBytes);
    wgmma_hold(out);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i)
      if (i > 0)
        Wgmma<Element, dim_v>::add_transposed(out, probabilities[i], advance(v, i * 2 * VTile::kBlockBytes));
      else
        Wgmma<Element, dim_v>::add_transposed(out, probabilities[i], advance(v, i * 2 * VTile::kBlockBytes), adds);
    wgmma_commit();
  }

  // The tile's first key.
  MICA_DEVICE i32 key_begin(i32 step) const { return (tiles.end - 1 - step) * tile_k; }

  MICA_DEVICE void fetch_pairs(i32 row_begin, i32 step) {
    if constexpr (served & serves::PAIRS) {
      if (step >= tiles.end - tiles.begin) return;
      if (this->has(kFeatureBias))
        pairs.template fetch<u16>(p.bias, band, batch_index, head, row_begin, key_begin(step));
      else
        pairs.template fetch<u8>(p.boolean, band, batch_index, head, row_begin, key_begin(step));
    }
  }

  // How this lane's numbers of a tile become scores in log2 units: times scale, plus what is added in each of its rows
  // (by which the lanes of a row differ).
  struct Units {
    float scale, of_row[2];
  };
  // What the kernel serves, applied to the products of a tile; softcap goes with the exponentials.
  MICA_DEVICE Units score(Scores& scores, i32 row_begin, i32 step) {
    if constexpr (kCaps) {
      return {p.score.scale_log2, {0.0f, 0.0f}};
    } else if constexpr (served & serves::SCORE) {
      if (features.is_line(scores, p, band, row_begin, key_begin(step))) {
        const float first = features.add_line(scores, p, band, row_begin, key_begin(step));
        return {1.0f, {first, first - 8 * features.slope_log2}};
      }
      features.score(scores, p, band, batch_index, head, row_begin, key_begin(step));
      return {1.0f, {0.0f, 0.0f}};
    } else if constexpr (served & serves::PAIRS) {
      const bool is_bias = this->has(kFeatureBias);
      if (is_bias)
        add_bias(scores[0]);
      else
        hide(scores[0]);
      fetch_pairs(row_begin, step + 1);
      return {is_bias ? 1.0f : p.score.scale_log2, {0.0f, 0.0f}};
    } else {
      return {p.score.scale_log2, {0.0f, 0.0f}};
    }
  }
  MICA_DEVICE void add_bias(float (&scores)[tile_k / 8][4]) const {
    const i32 dtype = p.bias.dtype;
#pragma unroll
    for (int n = 0; n < tile_k / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 two = floats_of(pairs.words[half][n], dtype);
        scores[n][2 * half] = fmaf(two.x, kLog2E, scores[n][2 * half] * p.score.scale_log2);
        scores[n][2 * half + 1] = fmaf(two.y, kLog2E, scores[n][2 * half + 1] * p.score.scale_log2);
      }
  }
  MICA_DEVICE void hide(float (&scores)[tile_k / 8][4]) const {
#pragma unroll
    for (int n = 0; n < tile_k / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (!(pairs.words[e / 2][n] & (e % 2 ? 0xff00u : 0xffu))) scores[n][e] = -infinity();
  }

  MICA_DEVICE void drop(Scores& probabilities, i32 row_begin, i32 step) const {
    if constexpr (served & kFeatureDropout)
      features.template for_each_dropped<1, tile_k / 8>(p, batch_index, head, row_begin, key_begin(step),
                                                        [&](int m, int n, int e) { probabilities[m][n][e] = 0.0f; });
  }

  struct Factors {
    float of_row[2];
  };

  // Scores that softcap holds within these bounds (log2 units) need no maximum: bf16 has the range of fp32. Relative to
  // a reference that depends on the cap alone, no P is above 2^64 or below 2^-82.
  static constexpr float kLargestP = 64.0f, kLargestCap = 73.0f;
  MICA_DEVICE bool is_bounded() const {
    if constexpr (kMayBeBounded)
      return this->has(kFeatureSoftcap) && p.score.cap_log2 <= kLargestCap;
    else
      return false;
  }

  // From scores to probabilities, in place; returns by what `out` must be multiplied.
  MICA_DEVICE Factors softmax(Scores& scores, SoftmaxState<FloatMath> (&state)[2], i32 row_begin, i32 step) {
    if constexpr (kCaps)
      if (this->has(kFeatureSoftcap)) return capped_softmax(scores, state, row_begin, step);
    const Units units = score(scores, row_begin, step);
    if (is_partly_hidden(tiles.end - 1 - step)) this->mask(scores, row_begin, key_begin(step));
    Factors factors;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float tile_max = quad_max(fmaf(lane_max(scores[0], half), units.scale, units.of_row[half]));
      factors.of_row[half] = absorb_lazily<FloatMath>(state[half], tile_max);
      const float offset = units.of_row[half] - reference_of<FloatMath>(state[half].max);
      state[half].sum += exponentials(scores[0], half, [&](float x) { return fmaf(x, units.scale, offset); });
    }
    return factors;
  }
  // The same with softcap. Since it keeps the order of scores, the largest is found before it.
  MICA_DEVICE Factors capped_softmax(Scores& scores, SoftmaxState<FloatMath> (&state)[2], i32 row_begin, i32 step) {
    const bool hides = is_partly_hidden(tiles.end - 1 - step);
    Factors factors = {{1.0f, 1.0f}};
    if (is_bounded()) {
      state[0].max = state[1].max = fmaxf(p.score.cap_log2 - kLargestP, 0.0f);
    } else {
      if (hides) this->mask(scores, row_begin, key_begin(step));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float largest = quad_max(lane_max(scores[0], half)), if_none = largest == -infinity() ? largest : 0.0f;
        factors.of_row[half] =
            absorb_lazily<FloatMath>(state[half], capped_score<FloatMath>(p.score, largest) + if_none);
      }
    }
    float sum[2];
    weigh_capped(scores, state, sum);
    if (hides) {
      this->mask(scores, row_begin, key_begin(step));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[half] = 0.0f;
#pragma unroll
        for (int i = 0; i < tile_k / 4; ++i) {
          float& x = scores[0][i / 2][2 * half + i % 2];
          x = x == -infinity() ? 0.0f : x;
          sum[half] += x;
        }
      }
    }
    state[0].sum += sum[0];
    state[1].sum += sum[1];
    return factors;
  }
  // Probabilities of products under softcap relative to the rows' maxima, and the lane's part of their sums.
  MICA_DEVICE void weigh_capped(Scores& scores, const SoftmaxState<FloatMath> (&state)[2], float (&sum)[2]) const {
    const float offset[2] = {-reference_of<FloatMath>(state[0].max), -reference_of<FloatMath>(state[1].max)};
    capped_exponentials(scores[0], p.score, offset, sum);
  }
  MICA_DEVICE bool follows_on(const SoftmaxState<FloatMath> (&state)[2], i32 step) const {
    return kFollowsOn && !is_partly_hidden(tiles.end - 1 - step) &&
           __all_sync(0xffffffffu, fminf(state[0].max, state[1].max) > -infinity());
  }
  // A lane's part of a row's sum: above the first limit the row gets a new maximum, above the second one the numbers
  // may be infinite, and their scores are made again.
  static constexpr float kLargeSum = 8192.0f, kLostSum = 0x1p100f;
  MICA_DEVICE bool follow_on(Scores& scores, SoftmaxState<FloatMath> (&state)[2], i32 group, i32 row_begin, i32 step,
                             Factors& factors) {
    float sum[2];
    if (kCaps && this->has(kFeatureSoftcap)) {
      weigh_capped(scores, state, sum);
    } else {
      const Units units = score(scores, row_begin, step);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float offset = served & serves::SCORE ? units.of_row[half] - state[half].max : -state[half].max;
        sum[half] = exponentials(scores[0], half, [&](float x) { return fmaf(x, units.scale, offset); });
      }
    }
    if (!__any_sync(0xffffffffu, fmaxf(sum[0], sum[1]) > kLargeSum)) {
      state[0].sum += sum[0];
      state[1].sum += sum[1];
      return true;
    }
    if (__any_sync(0xffffffffu, fmaxf(sum[0], sum[1]) > kLostSum)) {
      multiply_again(scores, group);
      return false;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float largest = quad_max(sum[half]);
      const float exponent = largest > kLargeSum ? floorf(lg2_approx(largest)) : 0.0f, factor = ex2_approx(-exponent);
      state[half].max += exponent;
      state[half].sum = (state[half].sum + sum[half]) * factor;
      factors.of_row[half] = factor;
#pragma unroll
      for (int n = 0; n < tile_k / 8; ++n) {
        scores[0][n][2 * half] *= factor;
        scores[0][n][2 * half + 1] *= factor;
      }
    }
    return true;
  }
  // Q K^T of the warp's rows once more, without the other warps that wgmma would need. Slow and hardly ever needed.
  MICA_DEVICE void multiply_again(Scores& scores, i32 group) const {
    const i32 lane = threadIdx.x % 32, row = uniform_warp() % 4 * kWarpRows + lane / 4;
    const u32 q = smem_q + q_stage(group) * QTile::kBytes, k = smem_k + k_place.stage * KTile::kBytes;
    zero(scores);
#pragma unroll 1
    for (i32 column = 0; column < dim_qk; column += 2) {
      const u32 in_chunk = column % 8 * 2;
      const float2 of_row[2] = {unpack<Element>(load_shared_4(q + QTile::offset(row, column / 8) + in_chunk)),
                                unpack<Element>(load_shared_4(q + QTile::offset(row + 8, column / 8) + in_chunk))};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const u32 of_keys = k + KTile::offset(lane % 4 * 2 + e, column / 8) + in_chunk;  // and of every eighth after it
#pragma unroll
        for (int n = 0; n < tile_k / 8; ++n) {
          const float2 of_key = unpack<Element>(load_shared_4(of_keys + n * KTile::kBlockBytes));
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& sum = scores[0][n][2 * half + e];
            sum = fmaf(of_row[half].x, of_key.x, fmaf(of_row[half].y, of_key.y, sum));
          }
        }
      }
    }
    __syncwarp();
  }
  // Waits for O += P V, after all that `sum` is made of, and multiplies.
  static MICA_DEVICE void wait_and_rescale(float (&out)[dim_v / 8][4], const Factors& factors, float sum) {
    finish_before_wait(sum);
    wgmma_wait<0>();
    wgmma_hold(out);
    rescale(out, factors);
  }
  static MICA_DEVICE void rescale(float (&out)[dim_v / 8][4], const Factors& factors) {
    if (__any_sync(0xffffffffu, factors.of_row[0] != 1.0f || factors.of_row[1] != 1.0f)) {
#pragma unroll
      for (int n = 0; n < dim_v / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[n][e] *= factors.of_row[e / 2];
    }
  }

  // P in the element type, as the A operand of tile_k / 16 products.
  static MICA_DEVICE void round(u32 (&probabilities)[tile_k / 16][4], const float (&scores)[tile_k / 8][4]) {
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i) pack_a<Element>(probabilities[i], scores[2 * i], scores[2 * i + 1]);
  }
};

}  // namespace mica

#ifdef MICA_CLUSTER
#define MICA_CLUSTER_DIMS __cluster_dims__(MICA_CLUSTER, 1, 1)
#else
#define MICA_CLUSTER 0
#define MICA_CLUSTER_DIMS
#endif
extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS) MICA_CLUSTER_DIMS
    MICA_KERNEL_NAME(const __grid_constant__ mica::ForwardMapsParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::ForwardSm90<MICA_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS,
                                   MICA_STAGES, MICA_BLOCKS, MICA_SERVED, MICA_CLUSTER>;
  Kernel kernel(params);
  kernel.run(smem);
}
