// SPDX-License-Identifier: Apache-2.0
// Backward attention where a block cannot hold whole rows: fp32, head dimensions above 256, and 256 in 99 KB of shared
// memory. The columns are cut into slices of `width`. A block owns tile_k keys of one key head and one slice of the
// columns of dK, dV and dQ; for each query tile it sums the scores over all slices, which it streams through shared
// memory, and then makes the three products of its own slice. Blocks of the same keys compute the same scores.
//
//   slice   S^T += K Q^T    | dP^T += V dO^T  | next ...     | own slice last: its K, Q and dO stay
//   loads   V, dO of it     | K, Q of the next|              |
//   P^T, dS^T -> shared memory; barrier; dV += P^T dO, dK += dS^T Q, dQ = dS K of the own slice
//
// Warps and fragments are those of backward_sm80. Column `stages` of its row: width / 64.
#pragma once

#include "kernels/parts/backward_block.cuh"

namespace mica {

template <class Element, int width, int tile_q, int tile_k, int warps, bool full>
struct BackwardSlicedSm80 : BackwardBlock<Element, tile_q, tile_k, warps, full> {
  using Base = BackwardBlock<Element, tile_q, tile_k, warps, full>;
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
  static constexpr int kColumns = width / kColumnGroups;   // of a warp's dK and dV
  static_assert(kKeyGroups * kColumnGroups == warps && kQueries % 16 == 0 && kColumns % 16 == 0);

  using Scores = float[2][kQueries / 8][4];
  using Tile = typename Ops::template Tile<width>;
  using PTile = typename Ops::template Tile<tile_q>;

  i32 key_group, column_group;
  i32 slice, slices_qk, slices_v;
  i32 held_k, held_v;  // the slice that K's and V's room holds; -1: none
  u32 smem_k, smem_q, smem_v, smem_do, smem_p, smem_ds;
  float dk[2][kColumns / 8][4], dv[2][kColumns / 8][4];

  // The i-th slice to sum over, of `count`: the own one is the last.
  MICA_DEVICE i32 slice_at(i32 i, i32 count) const { return (slice + 1 + i) % count; }

  // Sends for the i-th slice of Q, and of K unless it is there; with the first also for the statistics.
  MICA_DEVICE void load_qk(i32 head_q, i32 tile, i32 i) {
    const i32 own = slice_at(i, slices_qk), column = own * width, row = tile * tile_q;
    if (own != held_k)
      this->template load_in_loop<width, tile_k>(smem_k, p.k, this->key_offset(p.k) + column,
                                                 sequence.len_k - key_begin, p.dim_qk - column);
    held_k = own;
    this->template load_in_loop<width, tile_q>(smem_q, p.q, this->query_offset(p.q, head_q, row) + column,
                                               sequence.len_q - row, p.dim_qk - column);
    if (i == 0) this->load_stats(head_q, row, 0);
  }
  // The same of dO and V.
  MICA_DEVICE void load_v(i32 tile, i32 i) {
    const i32 own = slice_at(i, slices_v), column = own * width, row = tile * tile_q;
    if (own != held_v)
      this->template load_in_loop<width, tile_k>(smem_v, p.v, this->key_offset(p.v) + column,
                                                 sequence.len_k - key_begin, p.dim_v - column);
    held_v = own;
    this->template load_in_loop<width, tile_q>(smem_do, p.d_o, this->query_offset(p.d_o, head, row) + column,
                                               sequence.len_q - row, p.dim_v - column);
  }

  // S^T and dP^T of a query tile, whose first slice of Q and K is on its way: while one sum uses its slice, the other's
  // arrives.
  MICA_DEVICE void sum_scores(Scores& s, Scores& dp, i32 tile) {
    const i32 query_in_tile = column_group * kQueries;
    zero(s);
    zero(dp);
#pragma unroll 1
    for (i32 i = 0; i < max_of(slices_qk, slices_v); ++i) {
      cp_async_wait<0>();
      __syncthreads();
      if (i < slices_v) load_v(tile, i);
      cp_async_commit();
      if (i < slices_qk) Ops::template add_rows<width>(s, smem_k, key_group * 32, smem_q, query_in_tile);
      cp_async_wait<0>();
      __syncthreads();
      if (i + 1 < slices_qk) load_qk(head, tile, i + 1);
      cp_async_commit();
      if (i < slices_v) Ops::template add_rows<width>(dp, smem_v, key_group * 32, smem_do, query_in_tile);
    }
  }

  // The own slice of dQ of one query tile from this block's keys.
  MICA_DEVICE void add_dq(i32 tile) const {
    constexpr int kRowGroups = tile_q / 32, kColumnsDQ = width / (warps / kRowGroups);
    static_assert(kColumnsDQ % 16 == 0 && warps % kRowGroups == 0);
    const i32 warp = threadIdx.x / 32, row_group = warp % kRowGroups, first_column = warp / kRowGroups * kColumnsDQ;
    float dq[2][kColumnsDQ / 8][4];
    zero(dq);
    Ops::template add_columns_transposed<tile_k, tile_q, width>(dq, smem_ds, row_group * 32, smem_k, first_column);
    const i64 semaphore = dq_tile(tile) * p.slices + slice;
    if (p.dq_semaphores) this->wait_semaphore(tile, semaphore);
    float* accumulator = p.dq_accumulator + dq_tile(tile) * (tile_q * i64(p.dq_columns));
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < kColumnsDQ / 8; ++n)
        reduce_add_4(accumulator + dq_accumulator_index(p.dq_columns, row_group * 2 + m,
                                                        (slice * width + first_column) / 8 + n, threadIdx.x % 32),
                     dq[m][n]);
    if (p.dq_semaphores) this->release_semaphore(semaphore);
  }

  MICA_DEVICE void run(u8* smem) {
    key_group = threadIdx.x / 32 % kKeyGroups;
    column_group = threadIdx.x / 32 / kKeyGroups;
    slice = blockIdx.x % p.slices;
    if (!this->locate(blockIdx.x / p.slices)) return;
    slices_qk = ceil_div(p.dim_qk, width);
    slices_v = ceil_div(p.dim_v, width);
    held_k = held_v = -1;

    smem_k = shared_address(smem);
    constexpr BackwardSlicedSm80Layout kAt =
        backward_sliced_sm80_layout(tile_q, tile_k, width, dtype_bytes(ElementTraits<Element>::kDtype));
    static_assert(kAt.q == tile_k * Tile::kRowBytes && kAt.ds - kAt.p == tile_k * PTile::kRowBytes);
    smem_q = smem_k + kAt.q;
    smem_v = smem_k + kAt.v;
    smem_do = smem_k + kAt.d_o;
    smem_p = smem_k + kAt.p;
    smem_ds = smem_k + kAt.ds;
    this->stats = reinterpret_cast<float*>(smem + kAt.stats);
    zero(dk);
    zero(dv);
    const TileRange tiles = this->query_tiles();
    if (tiles.begin < tiles.end) loop_over(tiles);

    const i32 column = slice * width + column_group * kColumns;
    const bool is_first = slice == 0;
    this->store_gradient(p.dk, p.dk_dtype, p.dim_qk, dk, p.score.scale, key_group * 32, column, is_first);
    this->store_gradient(p.dv, p.dv_dtype, p.dim_v, dv, 1.0f, key_group * 32, column, is_first);
  }

  // The query tiles of every head of the group.
  MICA_DEVICE void loop_over(const TileRange& tiles) {
    const i32 per_head = tiles.end - tiles.begin, count = per_head * p.group;
    const auto tile_at = [&](i32 step) { return tiles.begin + step % per_head; };
    const auto head_at = [&](i32 step) { return head_k * p.group + step / per_head; };
    head = head_at(0);
    if constexpr (full) features.begin(p, this->batch_index, head);
    load_qk(head, tile_at(0), 0);
    cp_async_commit();
#pragma unroll 1
    for (i32 step = 0; step < count; ++step) {
      const i32 tile = tile_at(step);
      const bool more = step + 1 < count;
      Scores s, dp;
      sum_scores(s, dp, tile);
      const i32 query_in_tile = column_group * kQueries;
      this->weigh(s, dp, key_begin + key_group * 32, tile, query_in_tile, 0,
                  tile < tiles.full_begin || tile >= tiles.full_end, [] {});
      Base::store_scores(smem_p, key_group * 32, query_in_tile, s);
      Base::store_scores(smem_ds, key_group * 32, query_in_tile, dp);
      __syncthreads();
      if (slice < slices_v)
        Ops::template add_columns<tile_q, width>(dv, smem_p, key_group * 32, smem_do, column_group * kColumns);
      if (slice < slices_qk)
        Ops::template add_columns<tile_q, width>(dk, smem_ds, key_group * 32, smem_q, column_group * kColumns);
      if (p.dq_accumulator && slice < slices_qk) add_dq(tile);
      __syncthreads();  // everything has been read
      if (more) load_qk(head_at(step + 1), tile_at(step + 1), 0);
      cp_async_commit();
      if (full && more && head != head_at(step + 1)) features.begin(p, this->batch_index, head_at(step + 1));
      if (more) head = head_at(step + 1);
    }
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::BackwardParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel =
      mica::BackwardSlicedSm80<MICA_ELEMENT, 64 * MICA_STAGES, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS, MICA_FULL>;
  Kernel kernel{{params}};
  kernel.run(smem);
}
