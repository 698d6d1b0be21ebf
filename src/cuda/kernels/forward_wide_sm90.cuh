// SPDX-License-Identifier: Apache-2.0
// Forward attention for Hopper with head dimensions whose output no warpgroup can hold (512, or MLA's 576 and 512). A
// block owns 64 queries of one head; two warps fetch K, two fetch V, and each of the other two warpgroups owns half of
// V's columns. Both compute all scores: passing them on would cost a barrier a tile, and what bounds the kernel is
// fetching K and V, since 64 queries are few.
//
//   fetch K    K0 | K1 | K2 | ...                 each waits for an empty stage and announces a full one
//   fetch V    V0 | V1 | V2 | ...
//   consumer   S0 | exp2 S0 | S1, O += P0 V0 | exp2 S1 | S2, O += P1 V1 | ...
#pragma once

#include "device/panel_tile.cuh"
#include "device/ring_sm90.cuh"
#include "device/wgmma.cuh"
#include "kernels/parts/consumer_sm90.cuh"
#include "kernels/parts/forward_block.cuh"

namespace mica {

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages>
struct ForwardWideSm90 : ForwardBlock<Element, dim_v, tile_q, tile_k, 0> {
  using Base = ForwardBlock<Element, dim_v, tile_q, tile_k, 0>;
  using Base::key_row;
  using Base::p;
  using Base::sequence;
  using Base::tile_row;
  using Base::tiles;
  static constexpr int kConsumers = warps / 4 - 1;  // warpgroups
  static constexpr int kColumns = dim_v / kConsumers;
  static_assert(tile_q == 64 && kConsumers == 2 && tile_k % 16 == 0 && kColumns % 64 == 0);
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  static constexpr int kConsumerBarrier = 1;  // named

  using QTile = PanelTile<dim_qk, tile_q>;
  using KTile = PanelTile<dim_qk, tile_k>;
  using VTile = PanelTile<dim_v, tile_k>;
  static constexpr ForwardWideSm90Layout kLayout = forward_wide_sm90_layout(tile_q, tile_k, dim_qk, dim_v, stages);
  static_assert(kLayout.k >= QTile::kBytes && kLayout.v - kLayout.k == stages * KTile::kBytes &&
                kLayout.k_ring - kLayout.v == stages * VTile::kBytes);
  using Scores = float[1][tile_k / 8][4];

  using Place = RingPlace<stages>;

  u32 smem_q, smem_k, smem_v;
  Ring<stages> k_ring, v_ring;

  MICA_DEVICE i32 key_begin(i32 step) const { return (tiles.end - 1 - step) * tile_k; }

  MICA_DEVICE void run(u8* smem) {
    if (!this->locate(blockIdx.x)) return;
    smem_q = shared_address(smem);
    smem_k = smem_q + kLayout.k;
    smem_v = smem_q + kLayout.v;
    k_ring.barriers = smem_q + kLayout.k_ring;
    v_ring.barriers = smem_q + kLayout.v_ring;
    if (threadIdx.x == 0) {
      k_ring.init(64, 4 * kConsumers);
      v_ring.init(64, 4 * kConsumers);
    }
    __syncthreads();
    if (uniform_warp() < 4) {
      setmaxnreg_dec<kProducerRegisters>();
      if (uniform_warp() < 2)
        produce<KTile>(p.k, p.dim_qk, smem_k, k_ring);
      else
        produce<VTile>(p.v, p.dim_v, smem_v, v_ring);
    } else {
      setmaxnreg_inc<kConsumerRegisters>();
      consume(smem);
    }
  }

  // By 64 threads: all tiles of K or of V, as many ahead as there are stages.
  template <class Tile>
  MICA_DEVICE void produce(const RowsArg& tensor, i32 valid_dim, u32 shared, const Ring<stages>& ring) const {
    constexpr i32 kAhead = stages - 1;
    const i32 count = tiles.end - tiles.begin;
    const u16* head = key_row(tensor, 0);
    for (i32 step = 0; step < count + kAhead; ++step) {
      if (step < count) {
        ring.wait_empty(Place::of_step(step));
        const i32 key = key_begin(step);
        load_rows<Tile, tile_k, 64>(shared + step % stages * Tile::kBytes, head + key * tensor.stride_row,
                                    tensor.stride_row, sequence.len_k - key, valid_dim);
      }
      cp_async_commit();
      if (step < kAhead) continue;
      cp_async_wait<kAhead>();
      fence_for_wgmma();
      mbarrier_arrive(ring.full(Place::of_step(step - kAhead).stage));
    }
  }

  // By `threads` threads: rows past valid_rows and columns past valid_dim arrive as zeros.
  template <class Tile, int rows, int threads>
  static MICA_DEVICE void load_rows(u32 shared, const u16* global, i64 stride_row, i32 valid_rows, i32 valid_dim) {
    static_assert(rows * Tile::kChunks % threads == 0);  // else lanes part, and uniform registers are lost
#pragma unroll 4
    for (i32 i = 0; i < rows * Tile::kChunks / threads; ++i) {
      const i32 place = i * threads + threadIdx.x % threads, row = place / Tile::kChunks, chunk = place % Tile::kChunks;
      const bool inside = row < valid_rows && chunk * 8 < valid_dim;
      cp_async_16(shared + Tile::offset(row, chunk), inside ? global + row * stride_row + chunk * 8 : global,
                  inside ? 16 : 0);
    }
  }

  MICA_DEVICE void consume(u8* smem) const {
    const i32 consumer = uniform_warp() - 4, group = consumer / 4, warp = consumer % 4;
    const i32 row_begin = tile_row + warp * 16;
    SoftmaxState<FloatMath> state[1][2];
    float out[1][kColumns / 8][4];
    const i32 count = tiles.end - tiles.begin;
    state[0][0] = state[0][1] = empty_state<FloatMath>();
    zero(out);
    if (count > 0) {
      load_rows<QTile, tile_q, 128 * kConsumers>(smem_q, this->query_tile(), p.q.stride_row, sequence.len_q - tile_row,
                                                 p.dim_qk);
      cp_async_commit();
      cp_async_wait<0>();
      fence_for_wgmma();
      barrier_sync(kConsumerBarrier, 128 * kConsumers);
      Scores scores;
      u32 probabilities[tile_k / 16][4];
      k_ring.wait_full(Place::of_step(0));
      gemm_qk(scores[0], 0);
      wgmma_wait<0>();
      wgmma_hold(scores[0]);
      k_ring.release(Place::of_step(0));
      softmax(scores, state[0], row_begin, 0);
      round_to_operand<Element>(probabilities, scores[0]);
      for (i32 step = 1; step < count; ++step) {
        k_ring.wait_full(Place::of_step(step));
        gemm_qk(scores[0], step);
        v_ring.wait_full(Place::of_step(step - 1));
        gemm_pv(out[0], probabilities, group, step - 1);
        wgmma_wait<1>();
        wgmma_hold(scores[0]);
        k_ring.release(Place::of_step(step));
        const Factors factors = softmax(scores, state[0], row_begin, step);
        wgmma_wait<0>();
        wgmma_hold(out[0]);
        v_ring.release(Place::of_step(step - 1));
        rescale(out[0], factors);
        round_to_operand<Element>(probabilities, scores[0]);
      }
      v_ring.wait_full(Place::of_step(count - 1));
      gemm_pv(out[0], probabilities, group, count - 1);
      wgmma_wait<0>();
      wgmma_hold(out[0]);
    }
    barrier_sync(kConsumerBarrier, 128 * kConsumers);  // nobody reads Q any more
#pragma unroll
    for (int half = 0; half < 2; ++half) state[0][half].sum = quad_sum(state[0][half].sum);
    Base::template finish<1, kColumns / 8>(smem, {state, out, warp * 16, group * kColumns});
  }

  // scores = Q K^T of one key tile, begun.
  MICA_DEVICE void gemm_qk(float (&scores)[tile_k / 8][4], i32 step) const {
    const u32 k = smem_k + step % stages * KTile::kBytes;
    wgmma_hold(scores);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < dim_qk / 16; ++i)
      Wgmma<Element, tile_k>::add(scores, matrix_descriptor(smem_q + i / 4 * QTile::kPanelBytes + i % 4 * 32, 16, 1024),
                                  matrix_descriptor(k + i / 4 * KTile::kPanelBytes + i % 4 * 32, 16, 1024), i > 0);
    wgmma_commit();
  }

  // out += P V of one key tile and the group's columns, begun.
  MICA_DEVICE void gemm_pv(float (&out)[kColumns / 8][4], const u32 (&probabilities)[tile_k / 16][4], i32 group,
                           i32 step) const {
    const u32 v = smem_v + step % stages * VTile::kBytes + group * (kColumns / 64) * VTile::kPanelBytes;
    wgmma_hold(out);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i)
      Wgmma<Element, kColumns>::add_transposed(out, probabilities[i],
                                               matrix_descriptor(v + i * 16 * 128, VTile::kPanelBytes, 1024));
    wgmma_commit();
  }

  // From products to probabilities, in place; returns by what `out` must be multiplied.
  MICA_DEVICE Factors softmax(Scores& scores, SoftmaxState<FloatMath> (&state)[2], i32 row_begin, i32 step) const {
    const float scale = p.score.scale_log2;
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
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, 1)
    MICA_KERNEL_NAME(const __grid_constant__ mica::ForwardParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel =
      mica::ForwardWideSm90<MICA_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS, MICA_STAGES>;
  Kernel kernel{{params}};
  kernel.run(smem);
}
