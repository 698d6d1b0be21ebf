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

#include "kernels/forward/scores_sm90.cuh"

namespace mica {

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, int blocks, u32 served,
          int cluster>
struct ForwardSm90 : ForwardScoresSm90<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, blocks, served, cluster> {
  using Consumer = ForwardScoresSm90<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, blocks, served, cluster>;
  using Base = ForwardSm90Base<Element, dim_v, tile_q, tile_k, blocks, served, cluster>;
  using Consumer::band;
  using Consumer::batch_index;
  using Consumer::clear_ends_of_boxes;
  using Consumer::deal_out;
  using Consumer::drop;
  using Consumer::features;
  using Consumer::fetch_keys;
  using Consumer::fetch_pairs;
  using Consumer::fetch_queries;
  using Consumer::fetch_values;
  using Consumer::fetches_rows;
  using Consumer::find_place;
  using Consumer::follow_on;
  using Consumer::follows_on;
  using Consumer::head;
  using Consumer::is_bounded;
  using Consumer::k_place;
  using Consumer::k_ring;
  using Consumer::kCaps;
  using Consumer::kConsumers;
  using Consumer::kHasSmallPages;
  using Consumer::kLayout;
  using Consumer::kOwn;
  using Consumer::kPaged;
  using Consumer::kQSlots;
  using Consumer::kSharers;
  using Consumer::landed;
  using Consumer::maps;
  using Consumer::nearly_done;
  using Consumer::own;
  using Consumer::p;
  using Consumer::q_place;
  using Consumer::q_ring;
  using Consumer::q_stage;
  using Consumer::query_place;
  using Consumer::sequence;
  using Consumer::smem_k;
  using Consumer::smem_o;
  using Consumer::smem_q;
  using Consumer::smem_v;
  using Consumer::softmax;
  using Consumer::take_tile;
  using Consumer::tile_lse_first;
  using Consumer::tile_row;
  using Consumer::tiles;
  using Consumer::uniform;
  using Consumer::v_place;
  using Consumer::v_ring;
  using Consumer::wait_and_rescale;
  using Consumer::work_ring;
  using typename Consumer::KTile;
  using typename Consumer::QTile;
  using typename Consumer::Scores;
  using typename Consumer::VTile;
  // What a thread begins with, in the steps of 8 that setmaxnreg takes; consumers get what the producer gives up.
  static constexpr int kRegisters = 65536 / blocks / (32 * warps) / 8 * 8;
  // Where consumers have enough: the warp that deals out packed sequences spills less.
  static constexpr bool kSpares = kConsumers == 1 || (blocks == 1 && dim_v <= 128);
  static constexpr int kProducerRegisters = kHasSmallPages   ? (kConsumers > 2 ? 80
                                                                : dim_v > 128  ? 56
                                                                               : 88)
                                            : kConsumers > 2 ? 32
                                            : kSpares        ? 40
                                                             : 24;
  static constexpr int kConsumerRegisters =
      min_of(240, (kRegisters * (kConsumers + 1) - kProducerRegisters) / kConsumers / 8 * 8);
  // O leaves by the copy engine: with two slots through that of its Q, else some panels of it through a room of their
  // own.
  static constexpr bool kHasOutputRoom = kLayout.o_panels > 0;
  static_assert(kHasOutputRoom != (kQSlots == 2));
  using OTile = PanelTile<round_up(dim_v, 64), 64>;  // of a consumer, in the place of its Q or in a room of their own
  static_assert(OTile::kBytes <= QTile::kBytes);
  using Result = typename Base::template Result<1, dim_v / 8>;

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

  MICA_DEVICE ForwardSm90(const ForwardMapsParams& params) : Consumer(params) {}

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
      round_to_operand<Element>(probabilities, scores[0]);
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
        round_to_operand<Element>(probabilities, scores[0]);
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
    round_to_operand<Element>(probabilities, scores[0]);
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
