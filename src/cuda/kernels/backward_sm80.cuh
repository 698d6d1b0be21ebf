// SPDX-License-Identifier: Apache-2.0
// Backward attention with mma.sync. A block owns tile_k keys of one key head and loops over the query tiles that see
// them, for every query head of the group; dK and dV stay in registers, dQ is added to its accumulator in global
// memory.
//
// Scores are computed transposed (rows are keys), so that P^T and dS^T have the shape of the A operand of dV and dK.
// Warps form key_groups x column_groups: a warp computes the scores of its 32 keys and its share of the queries, hands
// P and dS over through shared memory, and then sums dV and dK of its 32 keys and its share of the columns:
//
//   S^T = K Q^T      dP^T = V dO^T        | own keys, own queries
//   P^T, dS^T -> shared memory; barrier
//   dV += P^T dO     dK += dS^T Q         | own keys, own columns
//   dQ = dS K        added to global      | own rows, own columns
#pragma once

#include "kernels/parts/backward_block.cuh"

namespace mica {

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, bool full>
struct BackwardSm80 : BackwardBlock<Element, tile_q, tile_k, warps, full> {
  using Base = BackwardBlock<Element, tile_q, tile_k, warps, full>;
  using Base::band;
  using Base::batch_index;
  using Base::dq_tile;
  using Base::features;
  using Base::head;
  using Base::head_k;
  using Base::key_begin;
  using Base::p;
  using Base::sequence;
  using typename Base::Ops;
  static constexpr int kKeyGroups = tile_k / 32;
  static constexpr int kColumnGroups = warps / kKeyGroups;
  static constexpr int kQueries = tile_q / kColumnGroups;  // of a warp's scores
  static constexpr int kColumnsQK = dim_qk / kColumnGroups, kColumnsV = dim_v / kColumnGroups;
  static constexpr int kRowGroups = tile_q / 32;                    // of dQ
  static constexpr int kColumnsDQ = dim_qk / (warps / kRowGroups);  // of a warp's dQ
  static_assert(kKeyGroups * kColumnGroups == warps && kQueries % 16 == 0 && kColumnsQK % 16 == 0 &&
                kColumnsV % 16 == 0 && kColumnsDQ % 16 == 0 && warps % kRowGroups == 0);

  using Scores = float[2][kQueries / 8][4];
  using QTile = SharedTile<dim_qk>;
  using VTile = SharedTile<dim_v>;
  using PTile = SharedTile<tile_q>;

  i32 key_group, column_group;
  u32 smem_k, smem_v, smem_q, smem_do, smem_p, smem_ds;
  float dk[2][kColumnsQK / 8][4], dv[2][kColumnsV / 8][4];

  // Q, dO and the statistics of one query tile of a head.
  MICA_DEVICE void load_queries(i32 head_q, i32 tile, i32 stage) {
    const i32 row = tile * tile_q, valid = sequence.len_q - row;
    this->template load<dim_qk, tile_q>(smem_q + stage * tile_q * QTile::kRowBytes, p.q,
                                        this->query_offset(p.q, head_q, row), valid, p.dim_qk);
    this->template load<dim_v, tile_q>(smem_do + stage * tile_q * VTile::kRowBytes, p.d_o,
                                       this->query_offset(p.d_o, head_q, row), valid, p.dim_v);
    this->load_stats(head_q, row, stage);
  }

  // P^T and dS^T of one query tile, into shared memory.
  MICA_DEVICE void probabilities(i32 tile, i32 stage, bool masked) {
    const i32 query_in_tile = column_group * kQueries;
    Scores s, dp;
    zero(s);
    Ops::template add_rows<dim_qk>(s, smem_k, key_group * 32, smem_q + stage * tile_q * QTile::kRowBytes,
                                   query_in_tile);
    this->weigh(s, dp, key_begin + key_group * 32, tile, query_in_tile, stage, masked, [&] {
      zero(dp);
      Ops::template add_rows<dim_v>(dp, smem_v, key_group * 32, smem_do + stage * tile_q * VTile::kRowBytes,
                                    query_in_tile);
    });
    Base::store_scores(smem_p, key_group * 32, query_in_tile, s);
    Base::store_scores(smem_ds, key_group * 32, query_in_tile, dp);
  }

  // dQ of one query tile from this block's keys.
  MICA_DEVICE void add_dq(i32 tile) const {
    const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i32 row_group = warp % kRowGroups, columns = warp / kRowGroups;
    float dq[2][kColumnsDQ / 8][4];
    zero(dq);
    Ops::template add_columns_transposed<tile_k, tile_q, dim_qk>(dq, smem_ds, row_group * 32, smem_k,
                                                                 columns * kColumnsDQ);
    if (p.dq_semaphores) this->wait_semaphore(tile, dq_tile(tile));
    float* accumulator = p.dq_accumulator + dq_tile(tile) * (tile_q * dim_qk);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < kColumnsDQ / 8; ++n)
        reduce_add_4(
            accumulator + dq_accumulator_index(dim_qk, row_group * 2 + m, columns * (kColumnsDQ / 8) + n, lane),
            dq[m][n]);
    if (p.dq_semaphores) this->release_semaphore(dq_tile(tile));
  }

  MICA_DEVICE void run(u8* smem) {
    key_group = threadIdx.x / 32 % kKeyGroups;
    column_group = threadIdx.x / 32 / kKeyGroups;
    if (!this->locate(blockIdx.x)) return;

    smem_k = shared_address(smem);
    constexpr BackwardSm80Layout kAt = backward_sm80_layout(tile_q, tile_k, dim_qk, dim_v, stages);
    static_assert(kAt.v == tile_k * QTile::kRowBytes && kAt.q - kAt.v == tile_k * VTile::kRowBytes);
    static_assert(kAt.p - kAt.d_o == stages * tile_q * VTile::kRowBytes && kAt.ds - kAt.p == tile_k * PTile::kRowBytes);
    smem_v = smem_k + kAt.v;
    smem_q = smem_k + kAt.q;
    smem_do = smem_k + kAt.d_o;
    smem_p = smem_k + kAt.p;
    smem_ds = smem_k + kAt.ds;
    this->stats = reinterpret_cast<float*>(smem + kAt.stats);
    zero(dk);
    zero(dv);

    const TileRange tiles = this->query_tiles();
    const i32 count = (tiles.end - tiles.begin) * p.group;
    if (count > 0) {
      const i32 valid = sequence.len_k - key_begin;
      this->template load<dim_qk, tile_k>(smem_k, p.k, this->key_offset(p.k), valid, p.dim_qk);
      this->template load<dim_v, tile_k>(smem_v, p.v, this->key_offset(p.v), valid, p.dim_v);
      load_queries(head_k * p.group, tiles.begin, 0);
      cp_async_commit();
      i32 query_tile = tiles.begin, next_tile = tiles.begin;
      head = head_k * p.group;
      i32 next_head = head;
      if constexpr (full) features.begin(p, batch_index, head);
      for (i32 step = 0; step < count; ++step) {
        if (++next_tile == tiles.end) {
          next_tile = tiles.begin;
          ++next_head;
        }
        const i32 stage = step % stages;
        cp_async_wait<0>();
        __syncthreads();
        if (stages == 2 && step + 1 < count) load_queries(next_head, next_tile, (step + 1) % 2);
        cp_async_commit();
        probabilities(query_tile, stage, query_tile < tiles.full_begin || query_tile >= tiles.full_end);
        __syncthreads();
        Ops::template add_columns<tile_q, dim_v>(dv, smem_p, key_group * 32,
                                                 smem_do + stage * tile_q * VTile::kRowBytes, column_group * kColumnsV);
        Ops::template add_columns<tile_q, dim_qk>(
            dk, smem_ds, key_group * 32, smem_q + stage * tile_q * QTile::kRowBytes, column_group * kColumnsQK);
        if constexpr (stages == 1) {
          __syncthreads();
          if (step + 1 < count) load_queries(next_head, next_tile, 0);
          cp_async_commit();
        }
        if (p.dq_accumulator) add_dq(query_tile);
        query_tile = next_tile;
        if (full && head != next_head && step + 1 < count) features.begin(p, batch_index, next_head);
        head = next_head;
      }
    }
    finish();
  }

  // dK and dV; keys that are not in use get zeros.
  MICA_DEVICE void finish() const {
    this->store_gradient(p.dk, p.dk_dtype, p.dim_qk, dk, p.score.scale, key_group * 32, column_group * kColumnsQK);
    this->store_gradient(p.dv, p.dv_dtype, p.dim_v, dv, 1.0f, key_group * 32, column_group * kColumnsV);
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::BackwardParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::BackwardSm80<MICA_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS,
                                    MICA_STAGES, MICA_FULL>;
  Kernel kernel{{params}};
  kernel.run(smem);
}
