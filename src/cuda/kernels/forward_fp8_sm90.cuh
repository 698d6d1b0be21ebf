// SPDX-License-Identifier: Apache-2.0
// Forward attention of e4m3 for Hopper, with wgmma and the copy engine; see forward_sm90, whose query tiles are dealt
// out in the same way. What is different with elements of 8 bits:
//
//   warp 0       Q, K0, V0 | K1, V1 | ... by the copy engine          warp 1     finds the next query tile
//   warps 2, 3   V0 -> V0^T | V1 -> V1^T | ...                        consumers  S | exp2 S | O = f O + P V^T^T | ...
//
// wgmma wants both operands of 8 bits with the summed index along their rows, so V is transposed on its way through
// shared memory. A lane holds scores of keys 2t, 2t + 1 of every eight, but as the A operand of P V wants four keys in
// a row: V^T has its keys in the order in which the scores lie (see Fp8Transposer), and P needs no exchange between
// lanes. The rows of V^T are in another order, too: a lane then has four neighbouring columns of O.
//
// P is at most 2^8, which fills e4m3's range. The tensor cores sum products of 8 bits with about 14 bits. Up to 128
// columns what they make of one key tile is added to O in fp32, which also multiplies O by the softmax's factor. Beside
// an O of 256 columns there are no registers for that: they add to O itself, and O goes to sums in fp32 outside of the
// registers every kFp8KeptTiles key tiles (fp8/kept_sums_sm90.cuh).
#pragma once

#include "core/fp8.h"
#include "device/panel_tile.cuh"
#include "device/ring_sm90.cuh"
#include "device/tma.cuh"
#include "kernels/fp8/kept_sums_sm90.cuh"
#include "kernels/fp8/transpose_sm90.cuh"
#include "kernels/pairs/fp8_layout_sm90.h"
#include "kernels/parts/consumer_sm90.cuh"
#include "kernels/parts/forward_block.cuh"
#include "kernels/parts/forward_work_sm90.cuh"

namespace mica {

// cluster: 2: blocks in pairs that share K and V: each asks for half of every K for both, and transposes half of V's
// columns, which it copies to the other. A stage is full when all is there, and empty when the consumers of both have
// let it go.
template <int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, int blocks, u32 served, int cluster>
struct ForwardFp8Sm90
    : ForwardWorkSm90<ForwardBlock<Bf16, dim_v, tile_q, tile_k, served>, tile_q, tile_k, false, cluster == 0, cluster> {
  using Base = ForwardBlock<Bf16, dim_v, tile_q, tile_k, served>;
  using Work = ForwardWorkSm90<Base, tile_q, tile_k, false, cluster == 0, cluster>;
  using Base::band;
  using Base::batch_index;
  using Base::head;
  using Base::p;
  using Base::sequence;
  using Base::tile_row;
  using Base::tiles;
  using Work::find_place;
  using Work::kConsumers;
  using Work::take_tile;
  using Work::work_ring;
  static_assert(kConsumers == warps / 4 - 1 && tile_k % 128 == 0 && dim_qk % 32 == 0 && dim_v % 64 == 0);
  static constexpr int kRegisters = 65536 / blocks / (32 * warps) / 8 * 8;
  // S of a key tile is under way beside P V of the one before it. With fewer than 240 registers the assembler would
  // make one wait for the other (C7512).
  static constexpr bool kOverlaps = dim_v == 256;
  static constexpr int kProducerRegisters = kOverlaps ? 24 : kConsumers > 2 ? 32 : 40;
  static constexpr int kConsumerRegisters =
      min_of(240, (kRegisters * (kConsumers + 1) - kProducerRegisters) / kConsumers / 8 * 8);
  // Otherwise P V is made in slices of columns, in the registers of the scores, which are done with by then: so many
  // consumers fit.
  static constexpr int kSlices = dim_v / 64;
  static constexpr i32 kTurnBarrier = 1;  // the first of kConsumers named barriers
  // Whether all of P and its sums is made before the turn. Three consumers lose by it.
  static constexpr bool kFinishesFirst = kConsumers != 3;

  static constexpr ForwardFp8PairsSm90Layout kLayout =
      forward_fp8_pairs_sm90_layout(tile_q, tile_k, dim_qk, dim_v, stages, cluster);
  static constexpr i32 kQSlots = kLayout.q_slots, kLandings = kLayout.landings;
  static constexpr int kSharers = cluster == 2 ? 2 : 1;  // of K and V
  // Rows of 128 bytes in panels; PanelTile counts in pairs of bytes.
  using QTile = PanelTile<round_up(dim_qk, 128) / 2, 64>;  // of a consumer
  using KTile = PanelTile<round_up(dim_qk, 128) / 2, tile_k>;
  using VTile = PanelTile<round_up(dim_v, 128) / 2 / kSharers, tile_k>;  // that a block fetches
  using VtTile = PanelTile<tile_k / 2, dim_v>;                           // V^T
  static_assert(kLayout.k == kQSlots * kConsumers * QTile::kBytes && kLayout.v - kLayout.k == stages * KTile::kBytes &&
                kLayout.vt - kLayout.v == kLandings * VTile::kBytes &&
                kLayout.work - kLayout.vt == stages * VtTile::kBytes &&
                kLayout.k_ring - kLayout.work == decltype(Work::work_ring)::kBytes);
  using Scores = float[1][tile_k / 8][4];
  using Result = typename Base::template Result<1, dim_v / 8>;
  static constexpr int kTransposers = 2;  // warps
  using Transposer = Fp8Transposer<VTile, VtTile, dim_v / 16 / kSharers / kTransposers>;
  using Kept = Fp8KeptSums<dim_v>;
  static constexpr float kLargestLog2 = 8.0f;

  const ForwardMapsParams& maps;
  u32 smem_q, smem_k, smem_v, smem_vt;
  Ring<kConsumers * kQSlots> q_ring;
  Ring<stages> k_ring, vt_ring;
  Ring<kLandings> v_ring;
  RingPlace<stages> k_place, vt_place;
  RingPlace<kLandings> v_place;
  RingPlace<kQSlots> q_place;
  TileRange own;     // a consumer's
  float scale_log2;  // of a product of stored elements

  MICA_DEVICE ForwardFp8Sm90(const ForwardMapsParams& params) : Work{{params.forward}}, maps(params) {}

  MICA_DEVICE void run(u8* smem) {
    smem_q = shared_address(smem);
    smem_k = smem_q + kLayout.k;
    smem_v = smem_q + kLayout.v;
    smem_vt = smem_q + kLayout.vt;
    work_ring.shared = smem_q + kLayout.work;
    k_ring.barriers = smem_q + kLayout.k_ring;
    vt_ring.barriers = smem_q + kLayout.vt_ring;
    v_ring.barriers = smem_q + kLayout.v_ring;
    q_ring.barriers = smem_q + kLayout.q_ring;
    this->nearly_done = smem_q + kLayout.nearly_done;
    if constexpr (kSharers == 2) this->mail = smem_q + kLayout.mail;
    if (threadIdx.x == 0) {
      k_ring.init(1, kSharers * 4 * kConsumers);
      vt_ring.init(kTransposers, kSharers * 4 * kConsumers);
      v_ring.init(1, 32 * kTransposers);
      q_ring.init(1, 4);
      work_ring.init(4 * kConsumers + 1 + kTransposers);
      mbarrier_init(this->nearly_done, 1);
      if constexpr (kSharers == 2) {
        this->init_mail();
        fence_barriers_for_cluster();
      }
      fence_for_wgmma();  // the copy engine sees the barriers
      tma_prefetch(maps.q.map);
      tma_prefetch(maps.k.map);
      tma_prefetch(maps.v.map);
    }
    if constexpr (kSharers == 2)
      cluster_sync();
    else
      __syncthreads();
    griddepcontrol_launch_dependents();
    if (threadIdx.x < 128) {
      setmaxnreg_dec<kProducerRegisters>();
      const i32 warp = uniform_warp();
      if (warp == 0) {
        griddepcontrol_wait();  // deal_out waits by itself, the others for what these two bring
        fetch();
      } else if (warp == 1) {
        this->deal_out();
      } else {
        transpose_values(warp - 2);
      }
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

  MICA_DEVICE i32 q_stage(i32 group) const { return q_place.stage * kConsumers + group; }
  // The tile's first key; tiles come from the last to the first.
  MICA_DEVICE i32 key_begin(i32 step) const { return (tiles.end - 1 - step) * tile_k; }

  // The first warp: asks for Q, K and V.
  MICA_DEVICE void fetch() {
    while (take_tile()) {
      find_place();
      work_ring.release();
      if (tiles.begin == tiles.end) continue;
      if constexpr (kQSlots == 2) fetch_queries();
#pragma unroll 1
      for (i32 step = 0; step < tiles.end - tiles.begin; ++step) {
        const TmaPlace place = {0, i32(sequence.k_begin) + key_begin(step), head / p.group, sequence.k_slot};
        k_ring.wait_empty(k_place);
        ask_for_keys(place);
        k_place.next();
        v_ring.wait_empty(v_place);
        ask_for<VTile>(smem_v + v_place.stage * VTile::kBytes, maps.v, place, v_ring.full(v_place.stage),
                       own_columns());
        v_place.next();
        // The one slot of Q is in use until the tile before is nearly done.
        if constexpr (kQSlots == 1)
          if (step == 0) fetch_queries();
        this->say_if_nearly_done(step);
      }
    }
  }
  MICA_DEVICE void fetch_queries() {
#pragma unroll 1
    for (i32 group = 0; group < kConsumers; ++group) {
      const i32 stage = q_stage(group);
      mbarrier_wait(q_ring.empty(stage), q_place.parity ^ 1);
      ask_for<QTile>(smem_q + stage * QTile::kBytes, maps.q,
                     {0, i32(sequence.q_begin) + tile_row + group * 64, head, sequence.q_slot}, q_ring.full(stage), 0);
    }
    q_place.next();
  }
  MICA_DEVICE void ask_for_keys(const TmaPlace& place) const {
    const u32 shared = smem_k + k_place.stage * KTile::kBytes, barrier = k_ring.full(k_place.stage);
    if constexpr (kSharers == 2) {
      static_assert(KTile::kPanels == 2);
      const i32 panel = i32(block_rank());
      if (threadIdx.x % 32 != 0) return;
      mbarrier_arrive_expecting(barrier, KTile::kBytes);
      tma_load_multicast(shared + panel * KTile::kPanelBytes, maps.k.map,
                         {panel * 128, place.row, place.head * maps.k.head_step, place.slot * maps.k.slot_step},
                         barrier);
    } else {
      ask_for<KTile>(shared, maps.k, place, barrier, 0);
    }
  }
  template <class Tile>
  static MICA_DEVICE void ask_for(u32 shared, const MappedRows& mapped, const TmaPlace& place, u32 barrier,
                                  i32 first_column) {
    if (threadIdx.x % 32 != 0) return;
    mbarrier_arrive_expecting(barrier, Tile::kBytes);
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel)
      tma_load(shared + panel * Tile::kPanelBytes, mapped.map,
               {first_column + panel * 128, place.row, place.head * mapped.head_step, place.slot * mapped.slot_step},
               barrier);
  }
  // The first of those of V that this block transposes.
  static MICA_DEVICE i32 own_columns() { return kSharers == 2 ? i32(block_rank()) * (dim_v / 2) : 0; }

  // Two warps: V to V^T, half of the block's columns each.
  MICA_DEVICE void transpose_values(i32 transposer) {
    constexpr u32 kColumns = dim_v / kSharers / kTransposers;
    while (take_tile()) {
      work_ring.release();
#pragma unroll 1
      for (i32 step = 0; step < tiles.end - tiles.begin; ++step) {
        const u32 first_row = own_columns() + transposer * kColumns, full = vt_ring.full(vt_place.stage);
        const Transposer part = {smem_v + v_place.stage * VTile::kBytes,
                                 smem_vt + vt_place.stage * VtTile::kBytes + first_row * 128,
                                 transposer * kColumns / 16, sequence.len_k - key_begin(step)};
        v_ring.wait_full(v_place);
        vt_ring.wait_empty(vt_place);
        if constexpr (kSharers == 2) {
          // What is there goes to the other block while the rest is made, and as much comes from there.
          part.template run<2>([&](u32 shared, u32 bytes) {
            const u32 other = block_rank() ^ 1;
            if (threadIdx.x % 32 == 0)
              copy_to_block(shared_of_block(shared, other), shared, bytes, shared_of_block(full, other));
          });
          if (threadIdx.x % 32 == 0) mbarrier_arrive_expecting(full, kColumns * 128);
        } else {
          part.template run<kColumns / 16>([&](u32, u32) { arrive_as_warp(full); });
        }
        v_ring.release_by_thread(v_place);
        v_place.next();
        vt_place.next();
      }
    }
  }

  // Query tiles one after the other.
  MICA_DEVICE void consume() {
    const i32 group = uniform_warp() / 4 - 1;
    griddepcontrol_wait();
    if (group == kConsumers - 1) pass_turn(group);
    while (take_tile()) {
      consume_tile(group);
      work_ring.release();
    }
  }
  MICA_DEVICE void consume_tile(i32 group) {
    const i32 tile_warp_row = group * 64 + uniform_warp() % 4 * kWarpRows;
    const i32 row_begin = tile_row + tile_warp_row;
    const i32 count = tiles.end - tiles.begin;
    own = Work::uniform(work_ring.template load<TileRange>(Work::kOwn + group * sizeof(TileRange)));
    // In steps, as the block comes through its tiles from the last to the first.
    const i32 first = tiles.end - own.end, last = tiles.end - own.begin;
    SoftmaxState<FloatMath> state[1][2];
    float out[1][dim_v / 8][4];
    state[0][0] = state[0][1] = empty_state<FloatMath>();
    zero(out);
    find_scale();
    if (count > 0) {
      mbarrier_wait(q_ring.full(q_stage(group)), q_place.parity);
      skip(first, group);
    }
    if (first < last) attend(out[0], state[0], group, row_begin, first, last);
    if (count > 0) {
      if (first >= last) {
        release_q(group);
        take_turn(group);
        pass_turn(group);
      }
      q_place.next();
    }
    skip(count - last, group);
    if (row_begin + kWarpRows > band.len_q) clear_unused(out[0], row_begin, band.len_q);
    finish(Result{state, out, tile_warp_row, 0});
  }
  // Consumers take turns at the tensor cores: P V of a tile and S of the next, while the others compute exponentials.
  // Left alone they come to do the same thing at the same time.
  MICA_DEVICE void attend(float (&out)[dim_v / 8][4], SoftmaxState<FloatMath> (&state)[2], i32 group, i32 row_begin,
                          i32 first, i32 last) {
    if constexpr (kOverlaps) {
      attend_overlapped(out, state, group, row_begin, first, last);
      return;
    }
    Scores scores;
    take_turn(group);
    find_scores(scores, group);
    bool are_positive = false;
    for (i32 step = first;;) {
      u32 probabilities[tile_k / 32][4];
      if (step + 1 == last) release_q(group);
      const Factors factors = softmax(probabilities, scores, state, are_positive, row_begin, step);
      vt_ring.wait_full(vt_place);
      take_turn(kFinishesFirst ? group + done(probabilities, state) : group);
      float even[8][4], odd[8][4];
      gemm_pv<false>(even, probabilities, 0);
      if constexpr (kSlices > 1) gemm_pv<false>(odd, probabilities, 64);
      slices<0>(out, even, odd, probabilities, factors);
      release_v();
      if (++step == last) break;
      find_scores(scores, group);
    }
    pass_turn(group);
  }
  // As above, but P V is added to O in the tensor cores, and S of a tile is before P V of the one before it: while that
  // waits for V^T there is something to do.
  MICA_DEVICE void attend_overlapped(float (&out)[dim_v / 8][4], SoftmaxState<FloatMath> (&state)[2], i32 group,
                                     i32 row_begin, i32 first, i32 last) {
    if (p.kept_o) kept().begin();
    Scores scores;
    u32 probabilities[tile_k / 32][4];
    bool are_positive = false;
    k_ring.wait_full(k_place);
    take_turn(group);
    gemm_qk(scores[0], group);
    pass_turn(group);
    wgmma_wait<0>();
    wgmma_hold(scores[0]);
    release_k();
    if (first + 1 == last) release_q(group);
    softmax_in_place(scores, state, are_positive, row_begin, first);
    pack_scores(probabilities, scores[0]);
#pragma unroll 1
    for (i32 step = first + 1; step < last; ++step) {
      k_ring.wait_full(k_place);
      take_turn(group);
      gemm_qk(scores[0], group);
      vt_ring.wait_full(vt_place);
      gemm_pv<true>(out, probabilities, 0);
      pass_turn(group);
      wgmma_wait<1>();
      wgmma_hold(scores[0]);
      release_k();
      if (step + 1 == last) release_q(group);
      const Factors factors = softmax_in_place(scores, state, are_positive, row_begin, step);
      wgmma_wait<0>();
      wgmma_hold(out);
      release_v();
      pack_scores(probabilities, scores[0]);
      rescale(out, factors);
      if (step % kFp8KeptTiles == 0 && p.kept_o) {
        kept().add(out, state);
        zero(out);
      }
    }
    vt_ring.wait_full(vt_place);
    take_turn(group);
    gemm_pv<true>(out, probabilities, 0);
    pass_turn(group);
    wgmma_wait<0>();
    wgmma_hold(out);
    release_v();
    // In two parts: behind one branch alone the assembler would spill what a query tile begins with.
    if (p.kept_o && kept().are_there()) kept().template take_back<0>(out, state);
    if (p.kept_o && kept().are_there()) kept().template take_back<1>(out, state);
  }
  MICA_DEVICE Kept kept() const { return Kept::of_block(p.kept_o, smem_q + kLayout.references, kConsumers); }
  // 0, made of the row sums and the last of P: a turn that is taken by it begins when these are there. The assembler
  // would put them between the turn's first products. (A batch is not negative, which it does not know.)
  MICA_DEVICE i32 done(const u32 (&probabilities)[tile_k / 32][4], const SoftmaxState<FloatMath> (&state)[2]) const {
    u32 bits = __builtin_bit_cast(u32, state[0].sum) | __builtin_bit_cast(u32, state[1].sum);
#pragma unroll
    for (int e = 0; e < 4; ++e) bits |= probabilities[tile_k / 32 - 1][e];
    return i32(bits & u32(p.batch >> 31));
  }
  // S of the next key tile, in registers of its own: what `scores` had is not needed any more. The turn ends when it is
  // begun: the tensor cores take the others' products after it.
  MICA_DEVICE void find_scores(Scores& scores, i32 group) {
    Scores products;
    k_ring.wait_full(k_place);
    gemm_qk(products[0], group);
    pass_turn(group);
    wgmma_wait<0>();
    wgmma_hold(products[0]);
    release_k();
#pragma unroll
    for (int n = 0; n < tile_k / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[0][n][e] = products[0][n][e];
  }
  // Adds the slices from `slice` on, whose sum is in `part`, that of the next one in `next`.
  template <int slice, int n, int m>
  MICA_DEVICE void slices(float (&out)[dim_v / 8][4], float (&part)[n][4], float (&next)[m][4],
                          const u32 (&probabilities)[tile_k / 32][4], const Factors& factors) const {
    if constexpr (slice < kSlices) {
      wgmma_wait<(slice + 1 < kSlices ? 1 : 0)>();
      wgmma_hold(part);
      add<slice * 64>(out, part, factors);
      if constexpr (slice + 2 < kSlices) gemm_pv<false>(part, probabilities, (slice + 2) * 64);
      slices<slice + 1>(out, next, part, probabilities, factors);
    }
  }

  // Writes LSE and O.
  MICA_DEVICE void finish(const Result& r) {
    find_place();
    float scale[1][2];
    SoftmaxState<FloatMath> state[1][2] = {{r.state[0][0], r.state[0][1]}};
#pragma unroll
    for (int half = 0; half < 2; ++half) state[0][half].sum = quad_sum(state[0][half].sum) * kPUnit;
    Base::finish_statistics(Result{state, r.out, r.first_row, 0}, this->tile_lse_first, scale);
    const float v_factor = kPUnit * descale_at(p.v_descale, batch_index, head / p.group);
    const float factor[2] = {scale[0][0] * v_factor, scale[0][1] * v_factor};
    if (p.partial_o || p.o_dtype == MICA_FP32)
      store<float>(r, factor, [](const float(&x)[4]) { return make_float4(x[0], x[1], x[2], x[3]); });
    else if (p.o_dtype == MICA_BF16)
      store<u16>(r, factor,
                 [](const float(&x)[4]) { return make_uint2(pack<Bf16>(x[0], x[1]), pack<Bf16>(x[2], x[3])); });
    else
      store<u16>(r, factor,
                 [](const float(&x)[4]) { return make_uint2(pack<Fp16>(x[0], x[1]), pack<Fp16>(x[2], x[3])); });
  }
  // O times a factor for each row, four columns at a time as `pack_four` makes them of floats.
  template <class To, class Pack>
  MICA_DEVICE void store(const Result& r, const float (&factor)[2], Pack pack_four) const {
    const i32 lane_column = i32(threadIdx.x) % 4 * 4, columns = p.dim_v - lane_column;
    i64 stride_row;
    To* first = this->template output_rows<To>(stride_row) + lane_column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (tile_row + r.row(0, half) >= sequence.slot_len_q) continue;
      To* row = first + r.row(0, half) * stride_row;
#pragma unroll
      for (int n = 0; n < dim_v / 16; ++n) {
        const float(&even)[4] = r.out[0][2 * n], (&odd)[4] = r.out[0][2 * n + 1];
        const float x[4] = {even[2 * half] * factor[half], odd[2 * half] * factor[half],
                            even[2 * half + 1] * factor[half], odd[2 * half + 1] * factor[half]};
        if (n * 16 < columns) *reinterpret_cast<decltype(pack_four(x))*>(row + n * 16) = pack_four(x);
      }
    }
  }
  static constexpr float kPUnit = 1.0f / 256.0f;  // 2^-kLargestLog2

  MICA_DEVICE void find_scale() {
    find_place();
    const i32 head_k = head / p.group;
    constexpr float kLeast = 1e-30f;  // where all is hidden, 0 would make NaN
    scale_log2 = fmaxf(p.score.scale_log2 * descale_at(p.q_descale, batch_index, head_k) *
                           descale_at(p.k_descale, batch_index, head_k),
                       kLeast);
  }

  // All consumers have as many turns: one for each key tile of the block and one for the query tile.
  static MICA_DEVICE void take_turn(i32 group) { barrier_sync(kTurnBarrier + group, 256); }
  static MICA_DEVICE void pass_turn(i32 group) {
    barrier_arrive(kTurnBarrier + (group + 1 == kConsumers ? 0 : group + 1), 256);
  }

  // Lets go of tiles of which this consumer needs nothing, in the order in which they come.
  MICA_DEVICE void skip(i32 num_tiles, i32 group) {
#pragma unroll 1
    for (i32 i = 0; i < num_tiles; ++i) {
      take_turn(group);
      pass_turn(group);
      k_ring.wait_full(k_place);
      release_k();
      vt_ring.wait_full(vt_place);
      release_v();
    }
  }
  MICA_DEVICE void release_q(i32 group) const { arrive_as_warp(q_ring.empty(q_stage(group))); }
  MICA_DEVICE void release_k() {
    release(k_ring, k_place);
    k_place.next();
  }
  MICA_DEVICE void release_v() {
    release(vt_ring, vt_place);
    vt_place.next();
  }
  static MICA_DEVICE void release(const Ring<stages>& ring, const RingPlace<stages>& place) {
    ring.release(place);
    if constexpr (kSharers == 2)
      if (threadIdx.x % 32 == 0) mbarrier_arrive_remote(shared_of_block(ring.empty(place.stage), block_rank() ^ 1));
  }

  // scores = Q K^T of one key tile, begun.
  MICA_DEVICE void gemm_qk(float (&scores)[tile_k / 8][4], i32 group) const {
    const u64 q = matrix_descriptor(smem_q + q_stage(group) * QTile::kBytes, 16, 1024);
    const u64 k = advance(matrix_descriptor(smem_k, 16, 1024), k_place.stage * KTile::kBytes);
    begin_scores<E4m3, QTile, KTile, dim_qk>(scores, q, k);
  }

  // part (+)= P V of one key tile, begun: 8 n columns from `column` on.
  template <bool adds, int n>
  MICA_DEVICE void gemm_pv(float (&part)[n][4], const u32 (&probabilities)[tile_k / 32][4], int column) const {
    const u64 v = advance(matrix_descriptor(smem_vt, 16, 1024), vt_place.stage * VtTile::kBytes + column * 128);
    wgmma_hold(part);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_k / 32; ++i)
      Wgmma<E4m3, n * 8>::add_registers(part, probabilities[i], advance(v, i / 4 * VtTile::kPanelBytes + i % 4 * 32),
                                        adds || i > 0);
    wgmma_commit();
  }

  // From products to probabilities times 2^8, in e4m3; returns by what `out` must be multiplied. are_positive: all of
  // the warp's rows have maxima of 0 or more, and keep them: integers find the next ones. That is known before the
  // scores are, so that no vote stands between maxima and exponentials.
  MICA_DEVICE Factors softmax(u32 (&probabilities)[tile_k / 32][4], Scores& scores, SoftmaxState<FloatMath> (&state)[2],
                              bool& are_positive, i32 row_begin, i32 step) const {
    float offset[2];
    const Factors factors = find_factors(scores, state, offset, are_positive, row_begin, step);
    exponentials_in_e4m3(probabilities, scores[0], state, offset);
    if (!are_positive) are_positive = have_positive_maxima(state);
    return factors;
  }
  // The same, but exponentials take the scores' place, for pack_scores: P of the tile before is in use.
  MICA_DEVICE Factors softmax_in_place(Scores& scores, SoftmaxState<FloatMath> (&state)[2], bool& are_positive,
                                       i32 row_begin, i32 step) const {
    float offset[2];
    const Factors factors = find_factors(scores, state, offset, are_positive, row_begin, step);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      state[half].sum += exponentials(scores[0], half, [&](float x) { return fmaf(x, scale_log2, offset[half]); });
    if (!are_positive) are_positive = have_positive_maxima(state);
    return factors;
  }
  static MICA_DEVICE bool have_positive_maxima(const SoftmaxState<FloatMath> (&state)[2]) {
    return __all_sync(0xffffffffu, state[0].max >= 0.0f && state[1].max >= 0.0f);
  }
  // As exponentials_in_e4m3 has them.
  static MICA_DEVICE void pack_scores(u32 (&probabilities)[tile_k / 32][4], const float (&x)[tile_k / 8][4]) {
#pragma unroll
    for (int i = 0; i < tile_k / 32; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          const float(&low)[4] = x[4 * i + 2 * b], (&high)[4] = x[4 * i + 2 * b + 1];
          probabilities[i][2 * b + half] =
              pack_e4m3(low[2 * half], low[2 * half + 1], high[2 * half], high[2 * half + 1]);
        }
  }
  // Takes a tile's maxima: by what `out` must be multiplied, and what is added to scores for their exponentials.
  MICA_DEVICE Factors find_factors(Scores& scores, SoftmaxState<FloatMath> (&state)[2], float (&offset)[2],
                                   bool are_positive, i32 row_begin, i32 step) const {
    const i32 tile = tiles.end - 1 - step;
    if (__builtin_expect(tile < own.full_begin || tile >= own.full_end, 0))
      this->mask(scores, row_begin, key_begin(step));
    Factors largest;  // of the tile, or 0 where that is less than the row's maximum so far
    if (are_positive) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        largest.of_row[half] = __builtin_bit_cast(float, max_of(quad_max_bits(lane_max_bits(scores[0], half)), 0));
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) largest.of_row[half] = quad_max(lane_max(scores[0], half));
    }
    Factors factors;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      factors.of_row[half] = absorb<FloatMath>(state[half], largest.of_row[half] * scale_log2);
      offset[half] = kLargestLog2 - reference_of<FloatMath>(state[half].max);
    }
    return factors;
  }

  // P as the A operand of tile_k / 32 products, whose key 4t + b of 16 is b % 2 of the lane's two in block b / 2; and
  // its sums. 32 keys after the other, so that conversions and sums stand between the exponentials, which take longest.
  MICA_DEVICE void exponentials_in_e4m3(u32 (&probabilities)[tile_k / 32][4], const float (&scores)[tile_k / 8][4],
                                        SoftmaxState<FloatMath> (&state)[2], const float (&offset)[2]) const {
    constexpr int kSums = 4;  // each addition waits for the one before
    float sum[2][kSums] = {};
#pragma unroll
    for (int i = 0; i < tile_k / 32; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          x[j] = ex2_approx(fmaf(scores[4 * i + j / 2][2 * half + j % 2], scale_log2, offset[half]));
          sum[half][j % kSums] += x[j];
        }
        probabilities[i][half] = pack_e4m3(x[0], x[1], x[2], x[3]);
        probabilities[i][2 + half] = pack_e4m3(x[4], x[5], x[6], x[7]);
      }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      state[half].sum += (sum[half][0] + sum[half][1]) + (sum[half][2] + sum[half][3]);
  }

  // out = out * factors + part, of 8 n columns. One row after the other: its factor is then fetched once,
  // and the tensor cores, which use the same registers' ports, wait less.
  template <int column, int n>
  static MICA_DEVICE void add(float (&out)[dim_v / 8][4], const float (&part)[n][4], const Factors& factors) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < n; ++i)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e)
          out[column / 8 + i][e] = fmaf(out[column / 8 + i][e], factors.of_row[half], part[i][e]);
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
  using Kernel = mica::ForwardFp8Sm90<MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS, MICA_STAGES,
                                      MICA_BLOCKS, MICA_SERVED, MICA_CLUSTER>;
  Kernel kernel(params);
  kernel.run(smem);
}
