// SPDX-License-Identifier: Apache-2.0
// Attention of a few query rows over a long cache, bound by reading K and V once. The query heads that share a key head
// are packed into the rows of one tile. A block owns a range of the keys; each of its warps walks key tiles of its own,
// with its own ring of cp.async buffers and its own softmax, so that no barrier stands in the loop. At the end the
// warps join their partial results through shared memory.
#pragma once

#include "device/shared_tile.cuh"
#include "kernels/parts/packed_rows.cuh"

namespace mica {

template <class Element_, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, bool full>
struct DecodeSm80 {
  using Element = Element_;
  using KTile = SharedTile<dim_qk>;
  using VTile = SharedTile<dim_v>;
  using Tile = PackedRows<Element, full>;
  using Parts = typename Tile::template Parts<warps, tile_q, decode_part_stride(dim_v)>;
  static constexpr int kThreads = 32 * warps;
  static constexpr DecodeSm80Layout kAt = decode_sm80_layout(tile_q, tile_k, dim_qk, dim_v, warps, stages);
  static_assert(kAt.stage_v == tile_k * KTile::kRowBytes);
  static_assert(kAt.stage_bytes - kAt.stage_v == tile_k * VTile::kRowBytes);
  static_assert(tile_q == 16 && (tile_k == 16 || tile_k == 32) && stages >= 2);
  static_assert(32 % KTile::kChunks == 0 && 32 % VTile::kChunks == 0 && KTile::kWide && VTile::kWide);

  using Scores = float[tile_k / 8][4];

  const ForwardParams& p;
  Tile rows;
  const u16* k_base;  // key 0, or page 0
  const u16* v_base;
  PagedRow ahead;  // paged: key (lane % tile_k) of the next tile to load
  u32 ring, k_lane, v_lane;
  u32 q[dim_qk / 16][4];
  SoftmaxState<FloatMath> state[2];
  float out[dim_v / 8][4];

  // Rows that the lanes of a warp copy at once.
  template <int dim>
  static constexpr int row_step() {
    return 32 / SharedTile<dim>::kChunks;
  }

  // Sends for a (tile_k, dim) tile. A lane copies one chunk of every kRowStep-th row; next_row(r), called for these
  // rows in their order, is the address of row r.
  template <int dim, class NextRow>
  MICA_DEVICE void load_rows(u32 shared, i32 valid_rows, i32 valid_dim, NextRow next_row) {
    using Shared = SharedTile<dim>;
    constexpr int kRowStep = row_step<dim>();
    const i32 first = threadIdx.x % 32 / Shared::kChunks, chunk = threadIdx.x % Shared::kChunks;
    if (rows.has(kFeatureUnaligned)) {
#pragma unroll 1
      for (int r = first; r < tile_k; r += kRowStep) {
        const u16* from = next_row(r) + chunk * 8;
        u32 words[4] = {0, 0, 0, 0};
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (r < valid_rows && chunk * 8 + e < valid_dim) words[e / 2] |= u32(from[e]) << (e % 2 * 16);
        store_shared_16(shared + Shared::offset(r, chunk), words);
      }
      return;
    }
    const u32 destination = shared + Shared::offset(first, chunk);
    const i32 bytes = chunk * 8 < valid_dim ? 16 : 0;
#pragma unroll
    for (int i = 0; i < tile_k / kRowStep; ++i) {
      // first < kRowStep, and the swizzle takes three bits of the row: those of i flip bits of the address.
      const u32 to = (destination ^ (((i * kRowStep) & 7) << 4)) + i * kRowStep * Shared::kRowBytes;
      const u16* from = next_row(first + i * kRowStep) + chunk * 8;
      cp_async_16(to, from, i * kRowStep < valid_rows - first ? bytes : 0);
    }
  }

  // Rows of a tensor that is not paged.
  template <int dim>
  MICA_DEVICE void load_dense(u32 shared, const u16* base, i64 stride_row, i32 tile, i32 valid_dim) {
    const i64 step = stride_row * row_step<dim>();
    const u16* row = base + (tile * tile_k + i32(threadIdx.x % 32) / SharedTile<dim>::kChunks) * stride_row - step;
    load_rows<dim>(shared, rows.sequence.len_k - tile * tile_k, valid_dim, [&](i32) { return row += step; });
  }

  // Rows in pages: each lane knows where one key is, the others ask it.
  template <int dim>
  MICA_DEVICE void load_paged(u32 shared, const u16* base, i64 row_offset, i32 tile, i32 valid_dim) {
    load_rows<dim>(shared, rows.sequence.len_k - tile * tile_k, valid_dim,
                   [&](i32 r) { return base + __shfl_sync(0xffffffffu, row_offset, r); });
  }

  // Paged: fetches the entry of the block table before it is needed.
  MICA_DEVICE void look_ahead(i32 tile) {
    if (!rows.has(kFeaturePaged)) return;
    const i32 key = min_of(tile * tile_k + i32(threadIdx.x % tile_k), rows.sequence.len_k - 1);
    ahead = paged_row(p.sequences, rows.sequence, rows.batch_index, key);
  }

  MICA_DEVICE void load(i32 tile, i32 stage, i32 end) {
    if (tile < end) {
      const u32 shared = ring + stage * kAt.stage_bytes;
      if (rows.has(kFeaturePaged)) {
        const i64 k_row = paged_row_offset(p.sequences, ahead, p.k.stride_batch, p.k.stride_row);
        const i64 v_row = paged_row_offset(p.sequences, ahead, p.v.stride_batch, p.v.stride_row);
        look_ahead(tile + warps);
        load_paged<dim_qk>(shared, k_base, k_row, tile, p.dim_qk);
        load_paged<dim_v>(shared + kAt.stage_v, v_base, v_row, tile, p.dim_v);
      } else {
        load_dense<dim_qk>(shared, k_base, p.k.stride_row, tile, p.dim_qk);
        load_dense<dim_v>(shared + kAt.stage_v, v_base, p.v.stride_row, tile, p.dim_v);
      }
    }
    cp_async_commit();  // an empty group too: the waits count groups
  }

  // Two neighbouring elements of a query row.
  MICA_DEVICE u32 load_q_pair(const u16* row, i32 column) const {
    if (!rows.has(kFeatureUnaligned)) return column < p.dim_qk ? *reinterpret_cast<const u32*>(row + column) : 0u;
    const u32 low = column < p.dim_qk ? row[column] : 0u;
    return column + 1 < p.dim_qk ? low | u32(row[column + 1]) << 16 : low;
  }

  // Q as the A operands of its products; a query that is not in use becomes zeros.
  MICA_DEVICE void load_q() {
    const i32 column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const u16* from = rows.q_row(rows.row[half]);
      const bool used = rows.row[half].query < rows.sequence.len_q;
#pragma unroll
      for (int step = 0; step < dim_qk / 16; ++step) {
        q[step][half] = used ? load_q_pair(from, step * 16 + column) : 0u;
        q[step][half + 2] = used ? load_q_pair(from, step * 16 + 8 + column) : 0u;
      }
    }
  }

  MICA_DEVICE void gemm_qk(Scores& scores, i32 stage) {
    zero(scores);
    const u32 k_address = k_lane + stage * kAt.stage_bytes;
#pragma unroll
    for (int step = 0; step < dim_qk / 16; ++step)
#pragma unroll
      for (int n = 0; n < tile_k / 16; ++n) {
        u32 b[4];
        ldmatrix_x4(b, KTile::step(k_address, step) + n * 16 * KTile::kRowBytes);
        mma_m16n8k16<Element>(scores[2 * n], q[step], b[0], b[1]);
        mma_m16n8k16<Element>(scores[2 * n + 1], q[step], b[2], b[3]);
      }
  }

  MICA_DEVICE void gemm_pv(const Scores& probabilities, i32 stage) {
    const u32 v_address = v_lane + stage * kAt.stage_bytes;
#pragma unroll
    for (int step = 0; step < tile_k / 16; ++step) {
      u32 a[4];
      pack_a<Element>(a, probabilities[2 * step], probabilities[2 * step + 1]);
#pragma unroll
      for (int n = 0; n < dim_v / 16; ++n) {
        u32 b[4];
        ldmatrix_x4_trans(b, VTile::step(v_address, n) + step * 16 * VTile::kRowBytes);
        mma_m16n8k16<Element>(out[2 * n], a, b[0], b[1]);
        mma_m16n8k16<Element>(out[2 * n + 1], a, b[2], b[3]);
      }
    }
  }

  // The key tiles of this warp: every warps-th of the split's.
  MICA_DEVICE void attend(const TileRange& tiles, const Range& own) {
    const i32 first = own.begin + threadIdx.x / 32;
    if (first < own.end) look_ahead(first);
#pragma unroll 1
    for (int s = 0; s < stages - 1; ++s) load(first + s * warps, s, own.end);
    load_q();
    i32 stage = 0;
    for (i32 tile = first; tile < own.end; tile += warps) {
      cp_async_wait<stages - 2>();
      __syncwarp();  // every lane's part of this tile has arrived, and the tile before has been read
      load(tile + (stages - 1) * warps, stage == 0 ? stages - 1 : stage - 1, own.end);
      Scores scores;
      gemm_qk(scores, stage);
      rows.score(scores, tile * tile_k);
      if (tile < tiles.full_begin || tile >= tiles.full_end) rows.mask(scores, tile * tile_k);
      rows.softmax(scores, state, out);
      rows.drop(scores, tile * tile_k);
      gemm_pv(scores, stage);
      stage = stage == stages - 1 ? 0 : stage + 1;
    }
  }

  MICA_DEVICE void run(u8* smem) {
    if (!rows.locate(tile_q)) return;
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    ring = shared_address(smem) + warp * kAt.ring_bytes;
    k_lane = ring + KTile::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    v_lane = ring + kAt.stage_v + VTile::offset(lane % 16, lane / 16);
    k_base = rows.key_base(p.k);
    v_base = rows.key_base(p.v);
    rows.begin_rows(0);
    state[0] = state[1] = empty_state<FloatMath>();
    zero(out);
    const TileRange tiles = rows.touched(tile_k);
    attend(tiles, rows.share_of(tiles));

    cp_async_wait<0>();
    __syncthreads();  // the rings are free
    const Parts parts(smem);
    parts.store(warp, 0, 0, state, out);
    __syncthreads();
    for (i32 index = threadIdx.x; index < rows.rows * (dim_v / 4); index += kThreads)
      rows.join(parts, index / (dim_v / 4), index % (dim_v / 4) * 4);
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::ForwardParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::DecodeSm80<MICA_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS,
                                  MICA_STAGES, MICA_FULL>;
  Kernel kernel{params, {params}};
  mica::let_next_kernel_begin();
  kernel.run(smem);
}
