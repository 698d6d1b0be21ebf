// SPDX-License-Identifier: Apache-2.0
// Forward attention for Hopper, with wgmma. A block owns tile_q queries of one head and walks the key tiles from the
// last to the first. Its first warpgroup fetches K and V into a ring of stages; each of the others owns 64 of the
// queries:
//
//   producer   K0 | K1 | V0 | K2 | V1 | ...                      (cp.async; waits for empty stages, announces full
//   ones) consumer   S0 | exp2 S0 | S1, O += P0 V0 | exp2 S1 | S2, O += P1 V1 | exp2 S2 | ...
//
// S of the next tile is under way on the tensor cores while O takes the last one, and exponentials of S run while O +=
// P V does. P is rounded in the registers where S was and is the A operand from there.
#pragma once

#include "device/panel_tile.cuh"
#include "device/wgmma.cuh"
#include "kernels/forward_block.cuh"

namespace mica {

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, u32 served>
struct ForwardSm90 : ForwardBlock<Element, dim_v, tile_q, tile_k, served> {
  using Base = ForwardBlock<Element, dim_v, tile_q, tile_k, served>;
  using Base::band;
  using Base::batch_index;
  using Base::head;
  using Base::key_row;
  using Base::p;
  using Base::sequence;
  using Base::tile_row;
  using Base::tiles;
  static constexpr int kConsumers = warps / 4 - 1;  // warpgroups
  static_assert(kConsumers * 64 == tile_q && tile_k % 16 == 0);
  // All registers of the SM, in the steps of 8 that setmaxnreg takes.
  static constexpr int kProducerRegisters = kConsumers > 2 ? 32 : 40;
  static constexpr int kConsumerRegisters = (65536 / 128 - kProducerRegisters) / kConsumers / 8 * 8;
  static constexpr int kConsumerBarrier = 1;  // named barriers
  // How many tiles the producer has under way before it waits for the first.
  static constexpr int kAhead = 2;

  using QTile = PanelTile<dim_qk, tile_q>;
  using KTile = PanelTile<dim_qk, tile_k>;
  using VTile = PanelTile<dim_v, tile_k>;
  using Scores = float[1][tile_k / 8][4];
  static_assert(!(served & kFeatureDropout) || tile_k % 32 == 0);

  u32 smem_q, smem_k, smem_v, barriers;
  FeatureState<false, FloatMath, served> features;
  PairsAhead<tile_k / 8> pairs;  // of the next tile, where the kernel serves them

  // Phases of a ring: step i uses stage i % stages for the (i / stages)-th time.
  MICA_DEVICE u32 full_k(i32 step) const { return barriers + step % stages * 8; }
  MICA_DEVICE u32 full_v(i32 step) const { return full_k(step) + stages * 8; }
  MICA_DEVICE u32 empty_k(i32 step) const { return full_k(step) + 2 * stages * 8; }
  MICA_DEVICE u32 empty_v(i32 step) const { return full_k(step) + 3 * stages * 8; }
  static MICA_DEVICE u32 parity(i32 step) { return step / stages % 2; }

  MICA_DEVICE void run(u8* smem) {
    if (!this->locate(blockIdx.x)) return;
    smem_q = shared_address(smem);
    smem_k = smem_q + tile_q * 2 * (dim_qk > dim_v ? dim_qk : dim_v);
    smem_v = smem_k + stages * KTile::kBytes;
    barriers = smem_v + stages * VTile::kBytes;
    if (threadIdx.x == 0)
      for (i32 stage = 0; stage < stages; ++stage) {
        mbarrier_init(full_k(stage), 128);
        mbarrier_init(full_v(stage), 128);
        mbarrier_init(empty_k(stage), 4 * kConsumers);
        mbarrier_init(empty_v(stage), 4 * kConsumers);
      }
    __syncthreads();
    if (threadIdx.x < 128) {
      give_up_registers<kProducerRegisters>();
      produce();
    } else {
      take_registers<kConsumerRegisters>();
      consume(smem);
    }
  }

  // Fetches K0, K1, V0, K2, V1, ... in the order in which they are needed.
  MICA_DEVICE void produce() const {
    const i32 count = tiles.end - tiles.begin;
    const u16* k = key_row(p.k, 0);
    const u16* v = key_row(p.v, 0);
    for (i32 load = 0; load < 2 * count + kAhead; ++load) {
      if (load < 2 * count) {
        const i32 step = step_of(load, count), tile = tiles.end - 1 - step;
        const i32 valid = sequence.len_k - tile * tile_k;
        if (is_k(load, count)) {
          mbarrier_wait(empty_k(step), parity(step) ^ 1);
          KTile::load(smem_k + step % stages * KTile::kBytes, k + tile * (p.k.stride_row * tile_k), p.k.stride_row,
                      valid, p.dim_qk);
        } else {
          mbarrier_wait(empty_v(step), parity(step) ^ 1);
          VTile::load(smem_v + step % stages * VTile::kBytes, v + tile * (p.v.stride_row * tile_k), p.v.stride_row,
                      valid, p.dim_v);
        }
      }
      cp_async_commit();
      if (load < kAhead) continue;
      cp_async_wait<kAhead>();
      fence_for_wgmma();
      const i32 arrived = load - kAhead, step = step_of(arrived, count);
      mbarrier_arrive(is_k(arrived, count) ? full_k(step) : full_v(step));
    }
  }
  // The order K0, K1, V0, K2, V1, ..., K(n-1), V(n-2), V(n-1).
  static MICA_DEVICE bool is_k(i32 load, i32 count) { return load == 0 || (load % 2 == 1 && load < 2 * count - 1); }
  static MICA_DEVICE i32 step_of(i32 load, i32 count) {
    if (load == 0) return 0;
    return is_k(load, count) ? (load + 1) / 2 : load == 2 * count - 1 ? count - 1 : load / 2 - 1;
  }

  MICA_DEVICE void consume(u8* smem) {
    const i32 group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4;
    const i32 group_row = group * 64;  // in the tile
    const i32 row_begin = tile_row + group_row + warp * 16;
    const i32 count = tiles.end - tiles.begin;
    SoftmaxState<FloatMath> state[1][2];
    float out[1][dim_v / 8][4];
    state[0][0] = state[0][1] = empty_state<FloatMath>();
    zero(out);
    if (count > 0) {
      load_queries(group);
      features.begin(p, batch_index, head);
      fetch_pairs(row_begin, 0);
      Scores scores;
      u32 probabilities[tile_k / 16][4];
      mbarrier_wait(full_k(0), 0);
      gemm_qk(scores[0], group_row, 0);
      wgmma_wait<0>();
      wgmma_hold(scores[0]);
      release(empty_k(0));
      softmax(scores, state[0], row_begin, 0);
      drop(scores, row_begin, 0);
      round(probabilities, scores[0]);
      for (i32 step = 1; step < count; ++step) {
        mbarrier_wait(full_k(step), parity(step));
        gemm_qk(scores[0], group_row, step);
        mbarrier_wait(full_v(step - 1), parity(step - 1));
        gemm_pv(out[0], probabilities, step - 1);
        wgmma_wait<1>();
        wgmma_hold(scores[0]);
        release(empty_k(step));
        const Factors factors = softmax(scores, state[0], row_begin, step);
        drop(scores, row_begin, step);
        wgmma_wait<0>();
        wgmma_hold(out[0]);
        release(empty_v(step - 1));
        rescale(out[0], factors);
        round(probabilities, scores[0]);
      }
      mbarrier_wait(full_v(count - 1), parity(count - 1));
      gemm_pv(out[0], probabilities, count - 1);
      wgmma_wait<0>();
      wgmma_hold(out[0]);
    }
    barrier_sync(kConsumerBarrier, 128 * kConsumers);  // nobody reads Q any more
#pragma unroll
    for (int half = 0; half < 2; ++half) state[0][half].sum = quad_sum(state[0][half].sum);
    Base::template finish<1, dim_v / 8>(smem, {state, out, group_row + warp * 16, 0});
  }

  // All of Q, by all consumers: panels do not divide by rows of a group alone.
  MICA_DEVICE void load_queries(i32 group) const {
    constexpr int kRowStep = 128 / QTile::kChunks;
    const int thread = threadIdx.x % 128, chunk = thread % QTile::kChunks;
    const u16* q = this->query_tile();
    for (int i = 0; i < 64 / kRowStep; ++i) {
      const i32 row = group * 64 + thread / QTile::kChunks + i * kRowStep;
      const bool inside = tile_row + row < sequence.len_q && chunk * 8 < p.dim_qk;
      cp_async_16(smem_q + QTile::offset(row, chunk), inside ? q + row * p.q.stride_row + chunk * 8 : q,
                  inside ? 16 : 0);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_for_wgmma();
    barrier_sync(kConsumerBarrier + 1 + group, 128);
  }

  // A warp is done with a stage; one arrival each.
  static MICA_DEVICE void release(u32 barrier) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
  }

  // scores = Q K^T of one key tile, begun.
  MICA_DEVICE void gemm_qk(float (&scores)[tile_k / 8][4], i32 group_row, i32 step) const {
    const u32 q = smem_q + group_row * 128, k = smem_k + step % stages * KTile::kBytes;
    wgmma_hold(scores);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < dim_qk / 16; ++i)
      Wgmma<Element, tile_k>::add(scores, matrix_descriptor(q + i / 4 * QTile::kPanelBytes + i % 4 * 32, 16, 1024),
                                  matrix_descriptor(k + i / 4 * KTile::kPanelBytes + i % 4 * 32, 16, 1024), i > 0);
    wgmma_commit();
  }

  // out += P V of one key tile, begun.
  MICA_DEVICE void gemm_pv(float (&out)[dim_v / 8][4], const u32 (&probabilities)[tile_k / 16][4], i32 step) const {
    const u32 v = smem_v + step % stages * VTile::kBytes;
    wgmma_hold(out);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i)
      Wgmma<Element, dim_v>::add_transposed(out, probabilities[i],
                                            matrix_descriptor(v + i * 16 * 128, VTile::kPanelBytes, 1024));
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

  // What the kernel serves, applied to the products of a tile. Returns what must still be multiplied to reach scores in
  // log2 units.
  MICA_DEVICE float score(Scores& scores, i32 row_begin, i32 step) {
    if constexpr (served & serves::SCORE) {
      features.score(scores, p, band, batch_index, head, row_begin, key_begin(step));
      return 1.0f;
    } else if constexpr (served & serves::PAIRS) {
      const bool is_bias = this->has(kFeatureBias);
      if (is_bias)
        add_bias(scores[0]);
      else
        hide(scores[0]);
      fetch_pairs(row_begin, step + 1);
      return is_bias ? 1.0f : p.score.scale_log2;
    } else {
      return p.score.scale_log2;
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
      features.template for_each_dropped<1, tile_k / 8>(p, batch_index * p.heads_q + head, row_begin, key_begin(step),
                                                        [&](int m, int n, int e) { probabilities[m][n][e] = 0.0f; });
  }

  struct Factors {
    float of_row[2];
  };

  // From scores to probabilities, in place; returns by what `out` must be multiplied.
  MICA_DEVICE Factors softmax(Scores& scores, SoftmaxState<FloatMath> (&state)[2], i32 row_begin, i32 step) {
    const float scale = score(scores, row_begin, step);
    if (this->is_partly_hidden(tiles.end - 1 - step)) this->mask(scores, row_begin, key_begin(step));
    Factors factors;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = -infinity();
#pragma unroll
      for (int n = 0; n < tile_k / 8; ++n)
        largest = fmaxf(largest, fmaxf(scores[0][n][2 * half], scores[0][n][2 * half + 1]));
      factors.of_row[half] = absorb_lazily<FloatMath>(state[half], quad_max(largest) * scale);
      const float reference = reference_of<FloatMath>(state[half].max);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < tile_k / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = scores[0][n][2 * half + e];
          x = ex2_approx(fmaf(x, scale, -reference));
          sum += x;
        }
      state[half].sum += sum;
    }
    return factors;
  }
  static MICA_DEVICE void rescale(float (&out)[dim_v / 8][4], const Factors& factors) {
    if (!__any_sync(0xffffffffu, factors.of_row[0] != 1.0f || factors.of_row[1] != 1.0f)) return;
#pragma unroll
    for (int n = 0; n < dim_v / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[n][e] *= factors.of_row[e / 2];
  }

  // P in the element type, as the A operand of tile_k / 16 products.
  static MICA_DEVICE void round(u32 (&probabilities)[tile_k / 16][4], const float (&scores)[tile_k / 8][4]) {
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i) pack_a<Element>(probabilities[i], scores[2 * i], scores[2 * i + 1]);
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, 1)
    MICA_KERNEL_NAME(const __grid_constant__ mica::ForwardParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::ForwardSm90<MICA_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS,
                                   MICA_STAGES, MICA_SERVED>;
  Kernel kernel{{params}};
  kernel.run(smem);
}
