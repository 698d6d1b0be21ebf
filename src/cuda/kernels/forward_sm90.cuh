// SPDX-License-Identifier: Apache-2.0
// Forward attention for Hopper, with wgmma and the copy engine. A block owns tile_q queries of one head at a time and
// goes through the key tiles from the last to the first. One lane of its first warpgroup asks for Q, and for K and V in
// a ring of stages; each of the other warpgroups owns 64 of the queries:
//
//   producer   Q | K0 | K1 | V0 | K2 | V1 | ...     waits for empty stages; barriers count the bytes that arrive
//   consumer   S0 | exp2 S0 | S1, O += P0 V0 | exp2 S1 | S2, O += P1 V1 | exp2 S2 | ...
//
// S of the next tile is under way on the tensor cores while O takes the last one, and exponentials of S run while O +=
// P V does. P is rounded in the registers where S was and is the A operand from there. Consumers do not meet: each
// takes only the key tiles that its own queries see, and the producer is a query tile ahead while they store theirs.
#pragma once

#include "device/panel_tile.cuh"
#include "device/ring_sm90.cuh"
#include "device/tma.cuh"
#include "device/wgmma.cuh"
#include "device/work_ring_sm90.cuh"
#include "kernels/parts/forward_block.cuh"

namespace mica {

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, u32 served>
struct ForwardSm90 : ForwardBlock<Element, dim_v, tile_q, tile_k, served> {
  using Base = ForwardBlock<Element, dim_v, tile_q, tile_k, served>;
  using Base::band;
  using Base::batch_index;
  using Base::head;
  using Base::p;
  using Base::sequence;
  using Base::tile_row;
  using Base::tiles;
  static constexpr int kConsumers = warps / 4 - 1;  // warpgroups
  static_assert(kConsumers * 64 == tile_q && tile_k % 16 == 0 && dim_qk % 16 == 0 && dim_v % 16 == 0);
  // All registers of the SM, in the steps of 8 that setmaxnreg takes.
  static constexpr int kProducerRegisters = kConsumers > 2 ? 32 : 24;
  static constexpr int kConsumerRegisters = (65536 / 128 - kProducerRegisters) / kConsumers / 8 * 8;

  using Layout = ForwardSm90Layout<dim_qk, dim_v, tile_q, tile_k, stages>;
  using QTile = PanelTile<round_up(dim_qk, 64), 64>;  // of a consumer
  using KTile = PanelTile<round_up(dim_qk, 64), tile_k>;
  using VTile = PanelTile<round_up(dim_v, 64), tile_k>;
  static_assert(Layout::kQBytes == kConsumers * QTile::kBytes && Layout::kKBytes == KTile::kBytes &&
                Layout::kVBytes == VTile::kBytes);
  using Scores = float[1][tile_k / 8][4];
  static_assert(!(served & kFeatureDropout) || tile_k % 32 == 0);

  const ForwardMapsParams& maps;
  u32 smem_q, smem_k, smem_v, landed;
  Ring<kConsumers> q_ring;  // a stage for each consumer's 64 queries
  Ring<stages> k_ring, v_ring;
  WorkRing work_ring;
  // Where this thread stands in the rings; they go on from one query tile to the next.
  RingPlace<stages> k_place, v_place;
  u32 q_parity = 0, landed_parity = 0;
  TileRange own;  // a consumer's: the key tiles that its 64 queries see, among the block's
  FeatureState<false, FloatMath, served> features;
  PairsAhead<tile_k / 8> pairs;  // of the next tile, where the kernel serves them

  MICA_DEVICE ForwardSm90(const ForwardMapsParams& params) : Base{params.forward}, maps(params) {}

  MICA_DEVICE void run(u8* smem) {
    smem_q = shared_address(smem);
    smem_k = smem_q + Layout::kK;
    smem_v = smem_q + Layout::kV;
    k_ring.barriers = smem_q + Layout::kBarriers;
    v_ring.barriers = k_ring.barriers + k_ring.kBytes;
    q_ring.barriers = v_ring.barriers + v_ring.kBytes;
    work_ring.shared = q_ring.barriers + q_ring.kBytes;
    landed = work_ring.shared + work_ring.kBytes;
    if (threadIdx.x == 0) {
      k_ring.init(1, 4 * kConsumers);
      v_ring.init(1, 4 * kConsumers);
      q_ring.init(1, 4);
      work_ring.init(4 * kConsumers + 1);
      mbarrier_init(landed, 1);
      fence_for_wgmma();  // the copy engine sees the barriers
      tma_prefetch(maps.q.map);
      tma_prefetch(maps.k.map);
      tma_prefetch(maps.v.map);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
      give_up_registers<kProducerRegisters>();
      const i32 warp = uniform_warp();
      if (warp == 0)
        fetch_keys();
      else if (warp == 1)
        deal_out();
    } else {
      take_registers<kConsumerRegisters>();
      consume();
    }
  }

  // The second warp: says which query tile comes next, and asks for its Q.
  MICA_DEVICE void deal_out() {
    WorkCounter counter{p.work_counter, p.work_epoch, p.work_items};
    for (i32 work = i32(blockIdx.x);; work = counter.next()) {
      work_ring.announce(work);
      if (work < 0) return;
      if (!this->locate(work) || tiles.begin == tiles.end) continue;
      for (i32 group = 0; group < kConsumers; ++group) {
        mbarrier_wait(q_ring.empty(group), q_parity ^ 1);
        if (threadIdx.x % 32 == 0) {
          mbarrier_arrive_expecting(q_ring.full(group), QTile::kBytes);
          ask_for<QTile>(smem_q + group * QTile::kBytes, maps.q,
                         {0, i32(sequence.q_begin) + tile_row + group * 64, head, sequence.q_slot}, q_ring.full(group));
        }
      }
      q_parity ^= 1;
    }
  }
  // The first warp: asks for K0, K1, V0, K2, V1, ... of each query tile in the order in which they are needed.
  MICA_DEVICE void fetch_keys() {
    for (i32 work = work_ring.take(); work >= 0; work = work_ring.take())
      if (this->locate(work) && tiles.begin < tiles.end) fetch_keys_of_tile();
  }
  MICA_DEVICE void fetch_keys_of_tile() {
    const i32 count = tiles.end - tiles.begin;
    for (i32 step = 0; step <= count; ++step) {
      if (step < count) {
        k_ring.wait_empty(k_place);
        if (threadIdx.x == 0) {
          mbarrier_arrive_expecting(k_ring.full(k_place.stage), KTile::kBytes);
          ask_for<KTile>(smem_k + k_place.stage * KTile::kBytes, maps.k, key_place(step), k_ring.full(k_place.stage));
        }
        k_place.next();
      }
      if (step > 0) fetch_v(step - 1);
    }
  }
  MICA_DEVICE TmaPlace key_place(i32 step) const {
    return {0, i32(sequence.k_begin) + key_begin(step), head / p.group, sequence.k_slot};
  }
  template <class Tile>
  static MICA_DEVICE void ask_for(u32 shared, const MappedRows& mapped, const TmaPlace& place, u32 barrier) {
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel)
      tma_load(shared + panel * Tile::kPanelBytes, mapped.map,
               {panel * 64, place.row, place.head * mapped.head_step, place.slot * mapped.slot_step}, barrier);
  }
  // Rows past the sequence's last key may be anything, NaN too, and their probability of 0 does not make that 0: they
  // are cleared before the tile is announced. Past the tensor's last row the copy engine brings zeros itself.
  MICA_DEVICE void fetch_v(i32 step) {
    const u32 to = smem_v + v_place.stage * VTile::kBytes, full = v_ring.full(v_place.stage);
    const i32 valid = sequence.len_k - key_begin(step);
    const bool clears = valid < tile_k && sequence.k_begin + sequence.len_k < maps.v.rows;
    v_ring.wait_empty(v_place);
    if (threadIdx.x == 0) {
      const u32 barrier = clears ? landed : full;
      mbarrier_arrive_expecting(barrier, VTile::kBytes);
      ask_for<VTile>(to, maps.v, key_place(step), barrier);
    }
    if (clears) {
      mbarrier_wait(landed, landed_parity);
      landed_parity ^= 1;
      constexpr float kZeros[4] = {};
#pragma unroll 1
      for (int i = valid * 8 + i32(threadIdx.x); i < tile_k * 8; i += 32)
#pragma unroll
        for (int panel = 0; panel < VTile::kPanels; ++panel)
          store_shared_floats(to + panel * VTile::kPanelBytes + i * 16, kZeros);
      fence_for_wgmma();
      __syncwarp();
      if (threadIdx.x == 0) mbarrier_arrive(full);
    }
    v_place.next();
  }

  // Query tiles one after the other.
  MICA_DEVICE void consume() {
    for (;;) {
      const i32 work = work_ring.take();
      if (work < 0) return;
      if (this->locate(work)) consume_tile();
    }
  }
  MICA_DEVICE void consume_tile() {
    const i32 consumer = uniform_warp() - 4, group = consumer / 4, tile_warp_row = group * 64 + consumer % 4 * 16;
    const i32 row_begin = tile_row + tile_warp_row;
    const i32 count = tiles.end - tiles.begin;
    find_own(tile_row + group * 64);
    // In steps, as the block comes through its tiles from the last to the first.
    const i32 first = tiles.end - own.end, last = tiles.end - own.begin;
    SoftmaxState<FloatMath> state[1][2];
    float out[1][dim_v / 8][4];
    state[0][0] = state[0][1] = empty_state<FloatMath>();
    zero(out);
    if (count > 0) {
      mbarrier_wait(q_ring.full(group), q_parity);
      q_parity ^= 1;
      skip(first);
    }
    if (first < last) {
      Scores scores;
      u32 probabilities[tile_k / 16][4];
      features.begin(p, batch_index, head);
      fetch_pairs(row_begin, first);
      k_ring.wait_full(k_place);
      gemm_qk(scores[0], group);
      wgmma_wait<0>();
      wgmma_hold(scores[0]);
      release_k();
      softmax(scores, state[0], row_begin, first);
      drop(scores, row_begin, first);
      round(probabilities, scores[0]);
      for (i32 step = first + 1; step < last; ++step) {
        k_ring.wait_full(k_place);
        gemm_qk(scores[0], group);
        v_ring.wait_full(v_place);
        gemm_pv(out[0], probabilities);
        wgmma_wait<1>();
        wgmma_hold(scores[0]);
        release_k();
        const Factors factors = softmax(scores, state[0], row_begin, step);
        drop(scores, row_begin, step);
        wgmma_hold(scores[0]);
        wait_and_rescale(out[0], factors, state[0][0].sum + state[0][1].sum);
        release_v();
        round(probabilities, scores[0]);
      }
      arrive_as_warp(q_ring.empty(group));
      v_ring.wait_full(v_place);
      gemm_pv(out[0], probabilities);
      wgmma_wait<0>();
      wgmma_hold(out[0]);
      release_v();
    } else if (count > 0) {
      arrive_as_warp(q_ring.empty(group));
    }
    skip(count - last);
#pragma unroll
    for (int half = 0; half < 2; ++half) state[0][half].sum = quad_sum(state[0][half].sum);
    if (row_begin + 16 > sequence.len_q) clear_unused(out[0], row_begin);
    Base::template finish<1, dim_v / 8>(nullptr, {state, out, tile_warp_row, 0});
  }

  // Rows past the queries in use were made of whatever lies there, and are written as zeros.
  MICA_DEVICE void clear_unused(float (&out)[dim_v / 8][4], i32 row_begin) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (row_begin + half * 8 + i32(threadIdx.x) % 32 / 4 >= sequence.len_q)
#pragma unroll
        for (int n = 0; n < dim_v / 8; ++n) out[n][2 * half] = out[n][2 * half + 1] = 0.0f;
  }

  // Of the block's key tiles those that the 64 queries from `row` on see; none: an empty range at their end.
  MICA_DEVICE void find_own(i32 row) {
    const i32 row_end = min_of(row + 64, sequence.len_q);
    own = row < row_end ? key_tiles(band, row, row_end, tile_k) : TileRange{0, 0, 0, 0};
    own.begin = clamp_to(own.begin, tiles.begin, tiles.end);
    own.end = clamp_to(own.end, own.begin, tiles.end);
  }
  // Lets go of tiles of which this consumer needs nothing, in the order in which they come.
  MICA_DEVICE void skip(i32 num_tiles) {
    for (i32 i = 0; i < num_tiles; ++i) {
      k_ring.wait_full(k_place);
      release_k();
      v_ring.wait_full(v_place);
      release_v();
    }
  }
  MICA_DEVICE bool is_partly_hidden(i32 tile) const { return tile < own.full_begin || tile >= own.full_end; }

  MICA_DEVICE void release_k() {
    k_ring.release(k_place);
    k_place.next();
  }
  MICA_DEVICE void release_v() {
    v_ring.release(v_place);
    v_place.next();
  }

  // scores = Q K^T of one key tile, begun.
  MICA_DEVICE void gemm_qk(float (&scores)[tile_k / 8][4], i32 group) const {
    const u64 q = matrix_descriptor(smem_q + group * QTile::kBytes, 16, 1024);
    const u64 k = advance(matrix_descriptor(smem_k, 16, 1024), k_place.stage * KTile::kBytes);
    wgmma_hold(scores);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < dim_qk / 16; ++i)
      Wgmma<Element, tile_k>::add(scores, advance(q, i / 4 * QTile::kPanelBytes + i % 4 * 32),
                                  advance(k, i / 4 * KTile::kPanelBytes + i % 4 * 32), i > 0);
    wgmma_commit();
  }

  // out += P V of one key tile, begun.
  MICA_DEVICE void gemm_pv(float (&out)[dim_v / 8][4], const u32 (&probabilities)[tile_k / 16][4]) const {
    const u64 v = advance(matrix_descriptor(smem_v, VTile::kPanelBytes, 1024), v_place.stage * VTile::kBytes);
    wgmma_hold(out);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i)
      Wgmma<Element, dim_v>::add_transposed(out, probabilities[i], advance(v, i * 16 * 128));
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
  // What the kernel serves, applied to the products of a tile.
  MICA_DEVICE Units score(Scores& scores, i32 row_begin, i32 step) {
    if constexpr (served & serves::SCORE) {
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

  // Scores that softcap holds within +-64 (log2 units) need no maximum: bf16 has the range of fp32.
  MICA_DEVICE bool is_bounded() const {
    if constexpr (served == serves::SOFTCAP && Element::kDtype == MICA_BF16)
      return this->has(kFeatureSoftcap) && p.score.cap_log2 <= 64.0f;
    else
      return false;
  }

  // From scores to probabilities, in place; returns by what `out` must be multiplied.
  MICA_DEVICE Factors softmax(Scores& scores, SoftmaxState<FloatMath> (&state)[2], i32 row_begin, i32 step) {
    const Units units = score(scores, row_begin, step);
    if (is_partly_hidden(tiles.end - 1 - step)) this->mask(scores, row_begin, key_begin(step));
    if (is_bounded()) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        state[half].max = 0.0f;
        state[half].sum += exponentials(scores[0], half, [](float x) { return x; });
      }
      return {{1.0f, 1.0f}};
    }
    Factors factors;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest[2] = {-infinity(), -infinity()};
#pragma unroll
      for (int n = 0; n < tile_k / 8; ++n)
        largest[n % 2] = fmaxf(largest[n % 2], fmaxf(scores[0][n][2 * half], scores[0][n][2 * half + 1]));
      const float tile_max = quad_max(fmaf(fmaxf(largest[0], largest[1]), units.scale, units.of_row[half]));
      factors.of_row[half] = absorb_lazily<FloatMath>(state[half], tile_max);
      const float offset = units.of_row[half] - reference_of<FloatMath>(state[half].max);
      state[half].sum += exponentials(scores[0], half, [&](float x) { return fmaf(x, units.scale, offset); });
    }
    return factors;
  }
  // exp2(exponent(x)) of one row in place; returns this lane's part of their sum. Several sums, since each addition
  // waits for the one before.
  template <class Exponent>
  static MICA_DEVICE float exponentials(float (&scores)[tile_k / 8][4], int half, Exponent exponent) {
    constexpr int kSums = 4;
    float sum[kSums] = {}, total = 0;
#pragma unroll
    for (int i = 0; i < tile_k / 4; ++i) {
      float& x = scores[i / 2][2 * half + i % 2];
      x = ex2_approx(exponent(x));
      sum[i % kSums] += x;
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) total += sum[i];
    return total;
  }
  // Waits for O += P V, after all that `sum` is made of, and multiplies.
  static MICA_DEVICE void wait_and_rescale(float (&out)[dim_v / 8][4], const Factors& factors, float sum) {
    finish_before_wait(sum);
    wgmma_wait<0>();
    wgmma_hold(out);
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

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, 1)
    MICA_KERNEL_NAME(const __grid_constant__ mica::ForwardMapsParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::ForwardSm90<MICA_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS,
                                   MICA_STAGES, MICA_SERVED>;
  Kernel kernel(params);
  kernel.run(smem);
}
