// SPDX-License-Identifier: Apache-2.0
// Attention with head dimensions whose accumulators no single warp can hold (512, or MLA's 576 and 512): the warps
// split V's columns. A warp owns 16 rows, kColumns columns of V and, where the block has warps left, one of kGroups
// shares of each key tile; the warps of the same rows and keys each compute the scores, which costs less than passing
// them on. Rows are packed as in decode: it serves prompts (64 rows, one group) and decode (16 rows, several groups and
// splits). With a second query (QvParams) a row of Q is q's and then qv's, and a row of K is k's and then v's.
#pragma once

#include "device/shared_tile.cuh"
#include "kernels/parts/qv_rows.cuh"

namespace mica {

template <class Element_, class Params, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, bool full>
struct ForwardWideSm80 {
  using Element = Element_;
  using Joined = JoinedRow<u16>;
  using QTile = SharedTile<dim_qk>;
  using VTile = SharedTile<dim_v>;
  static constexpr int kRowWarps = tile_q / 16;
  static constexpr int kColumns = 256;  // 128 accumulators of a lane
  static constexpr int kColumnWarps = dim_v / kColumns;
  static constexpr int kGroups = warps / (kRowWarps * kColumnWarps);
  static constexpr int kGroupKeys = tile_k / kGroups;
  static constexpr int kKBytes = tile_k * QTile::kRowBytes;
  static constexpr int kVBytes = tile_k * VTile::kRowBytes;
  static_assert(kGroups * kRowWarps * kColumnWarps == warps && dim_v % kColumns == 0 && kGroupKeys % 16 == 0);

  using Tile = PackedRows<Element, full ? serves::FULL : serves::PLAIN>;
  using Parts = typename Tile::template Parts<kGroups, tile_q, decode_part_stride(dim_v)>;
  using Scores = float[kGroupKeys / 8][4];

  const Params& p;
  Tile rows;
  const u16* k_base;  // key 0, or page 0
  const u16* v_base;
  i32 first_row, first_column, first_key;  // of this warp
  u32 smem_q, smem_k, smem_v;              // stage 0
  u32 q_lane, k_lane, v_lane;
  SoftmaxState<FloatMath> state[2];
  float out[kColumns / 8][4];

  // Copies the rows r of a tile for which row_at(r) is not null; the others become zeros. A warp copies whole rows.
  template <int dim, int num_rows, class RowAt>
  MICA_DEVICE void load_rows(u32 shared, i32 valid_dim, RowAt row_at) const {
    using Shared = SharedTile<dim>;
    if (rows.has(kFeatureUnaligned)) {
#pragma unroll 1
      for (int r = threadIdx.x / 32; r < num_rows; r += warps) {
        const u16* from = row_at(r);
        for_each_chunk<dim>([&](i32 chunk) {
          u32 words[4] = {0, 0, 0, 0};
#pragma unroll
          for (int e = 0; e < 8; ++e)
            if (from && chunk * 8 + e < valid_dim) words[e / 2] |= u32(from[chunk * 8 + e]) << (e % 2 * 16);
          store_shared_16(shared + Shared::offset(r, chunk), words);
        });
      }
      return;
    }
#pragma unroll 4
    for (int r = threadIdx.x / 32; r < num_rows; r += warps) {
      const u16* from = row_at(r);
      for_each_chunk<dim>([&](i32 chunk) {
        const bool inside = from && chunk * 8 < valid_dim;
        cp_async_16(shared + Shared::offset(r, chunk), inside ? from + chunk * 8 : static_cast<const u16*>(p.q.data),
                    inside ? 16 : 0);
      });
    }
  }
  // The same of rows (JoinedRow) of two tensors.
  template <int num_rows, class RowAt>
  MICA_DEVICE void load_joined(u32 shared, RowAt row_at) const {
#pragma unroll 1
    for (int r = threadIdx.x / 32; r < num_rows; r += warps) {
      const Joined from = row_at(r);
      for_each_chunk<dim_qk>([&](i32 chunk) {
        const u32 to = shared + QTile::offset(r, chunk);
        if (!rows.has(kFeatureUnaligned)) {
          const bool inside = from.has(chunk * 8);
          cp_async_16(to, inside ? from.at(chunk * 8) : static_cast<const u16*>(p.q.data), inside ? 16 : 0);
          return;
        }
        u32 words[4] = {0, 0, 0, 0};
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (from.has(chunk * 8 + e)) words[e / 2] |= u32(*from.at(chunk * 8 + e)) << (e % 2 * 16);
        store_shared_16(to, words);
      });
    }
  }
  // Calls function(chunk) for this lane's chunks of a row.
  template <int dim, class Function>
  static MICA_DEVICE void for_each_chunk(Function function) {
    constexpr int kChunks = SharedTile<dim>::kChunks;
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < kChunks; c += 32)
      if (c + 32 <= kChunks || c + lane < kChunks) function(c + lane);
  }

  MICA_DEVICE const u16* key_at(const RowsArg& a, const u16* base, i32 key) const {
    if (key >= rows.sequence.len_k) return nullptr;
    if (!rows.has(kFeaturePaged)) return base + key * a.stride_row;
    return base + key_row_offset(p.sequences, rows.sequence, rows.batch_index, key, a.stride_batch, a.stride_row);
  }
  MICA_DEVICE void load_k(i32 tile, i32 stage) const {
    if constexpr (kHasQv<Params>)
      return load_joined<tile_k>(smem_k + stage * kKBytes, [&](i32 r) {
        return Joined{key_at(p.k, k_base, tile * tile_k + r), key_at(p.v, v_base, tile * tile_k + r), key_columns(p),
                      p.dim_qk};
      });
    load_rows<dim_qk, tile_k>(smem_k + stage * kKBytes, p.dim_qk,
                              [&](i32 r) { return key_at(p.k, k_base, tile * tile_k + r); });
  }
  MICA_DEVICE void load_v(i32 tile, i32 stage) const {
    load_rows<dim_v, tile_k>(smem_v + stage * kVBytes, p.dim_v,
                             [&](i32 r) { return key_at(p.v, v_base, tile * tile_k + r); });
  }
  MICA_DEVICE void load_q() const {
    if constexpr (kHasQv<Params>)
      return load_joined<tile_q>(smem_q, [&](i32 r) {
        const auto where = rows.row_at(r);
        const bool used = where.query < rows.sequence.len_q;
        return Joined{used ? rows.q_row(where) : nullptr, qv_row(rows, p.qv, where), key_columns(p), p.dim_qk};
      });
    load_rows<dim_qk, tile_q>(smem_q, p.dim_qk, [&](i32 r) {
      const auto where = rows.row_at(r);
      return where.query < rows.sequence.len_q ? rows.q_row(where) : nullptr;
    });
  }

  // Even and odd steps have sums of their own: a chain of dependent products is half as long.
  MICA_DEVICE void gemm_qk(Scores& scores, i32 stage) const {
    Scores odd;
    zero(scores);
    zero(odd);
    const u32 k_address = k_lane + stage * kKBytes;
#pragma unroll
    for (int step = 0; step < dim_qk / 16; ++step) {
      u32 a[4];
      ldmatrix_x4(a, QTile::step(q_lane, step));
      Scores& sum = step % 2 ? odd : scores;
#pragma unroll
      for (int n = 0; n < kGroupKeys / 16; ++n) {
        u32 b[4];
        ldmatrix_x4(b, QTile::step(k_address, step) + n * 16 * QTile::kRowBytes);
        mma_m16n8k16<Element>(sum[2 * n], a, b[0], b[1]);
        mma_m16n8k16<Element>(sum[2 * n + 1], a, b[2], b[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < kGroupKeys / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[n][e] += odd[n][e];
  }

  MICA_DEVICE void gemm_pv(const Scores& probabilities, i32 stage) {
    const u32 v_address = v_lane + stage * kVBytes;
#pragma unroll
    for (int step = 0; step < kGroupKeys / 16; ++step) {
      u32 a[4];
      pack_a<Element>(a, probabilities[2 * step], probabilities[2 * step + 1]);
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        u32 b[4];
        ldmatrix_x4_trans(b, VTile::step(v_address, n) + step * 16 * VTile::kRowBytes);
        mma_m16n8k16<Element>(out[2 * n], a, b[0], b[1]);
        mma_m16n8k16<Element>(out[2 * n + 1], a, b[2], b[3]);
      }
    }
  }

  // Scores of the warp's keys to probabilities.
  MICA_DEVICE void weigh(Scores& scores, const TileRange& tiles, i32 tile) {
    const i32 key_begin = tile * tile_k + first_key;
    rows.score(scores, key_begin);
    if (tile < tiles.full_begin || tile >= tiles.full_end) rows.mask(scores, key_begin);
    rows.softmax(scores, state, out);
    rows.drop(scores, key_begin);
  }

  // Tiles [own.begin, own.end) with several stages: the loads run stages - 1 tiles ahead.
  MICA_DEVICE void attend_ahead(const TileRange& tiles, const Range& own) {
#pragma unroll 1
    for (i32 tile = own.begin - (stages - 1), stage = 0; tile < own.end; ++tile) {
      const i32 next = tile + stages - 1;
      if (next < own.end) {
        load_k(next, stage);
        load_v(next, stage);
      }
      cp_async_commit();
      stage = stage == stages - 1 ? 0 : stage + 1;  // the oldest: that of `tile`
      if (tile < own.begin) continue;
      cp_async_wait<stages - 1>();
      __syncthreads();
      Scores scores;
      gemm_qk(scores, stage);
      weigh(scores, tiles, tile);
      gemm_pv(scores, stage);
      __syncthreads();
    }
  }

  // With one stage: V arrives during the first product, the next K during the second.
  MICA_DEVICE void attend_in_turn(const TileRange& tiles, const Range& own) {
    if (own.begin < own.end) load_k(own.begin, 0);
    cp_async_commit();
#pragma unroll 1
    for (i32 tile = own.begin; tile < own.end; ++tile) {
      Scores scores;
      cp_async_wait<0>();
      __syncthreads();
      load_v(tile, 0);
      cp_async_commit();
      gemm_qk(scores, 0);
      weigh(scores, tiles, tile);
      cp_async_wait<0>();
      __syncthreads();
      if (tile + 1 < own.end) load_k(tile + 1, 0);
      cp_async_commit();
      gemm_pv(scores, 0);
    }
  }

  MICA_DEVICE void run(u8* smem) {
    if (!rows.locate(tile_q)) return;
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i32 group = warp / (kRowWarps * kColumnWarps);
    first_row = warp % kRowWarps * 16;
    first_column = warp / kRowWarps % kColumnWarps * kColumns;
    first_key = group * kGroupKeys;
    smem_q = shared_address(smem);
    constexpr ForwardWideSm80Layout kAt = forward_wide_sm80_layout(tile_q, tile_k, dim_qk, dim_v, warps, stages);
    static_assert(kAt.k == tile_q * QTile::kRowBytes && kAt.v - kAt.k == stages * kKBytes);
    static_assert(kAt.bytes - kAt.v >= stages * tile_k * VTile::kRowBytes);
    smem_k = smem_q + kAt.k;
    smem_v = smem_q + kAt.v;
    q_lane = smem_q + QTile::offset(first_row + lane % 16, lane / 16);
    k_lane = smem_k + QTile::offset(first_key + lane % 8 + lane / 16 * 8, lane / 8 % 2);
    v_lane = smem_v + VTile::offset(first_key + lane % 16, lane / 16) + first_column * 2;
    k_base = rows.key_base(p.k);
    v_base = rows.key_base(p.v);
    rows.begin_rows(first_row);
    state[0] = state[1] = empty_state<FloatMath>();
    zero(out);
    const TileRange tiles = rows.touched(tile_k);
    load_q();  // in the group of the first K
    if constexpr (stages == 1)
      attend_in_turn(tiles, rows.share_of(tiles));
    else
      attend_ahead(tiles, rows.share_of(tiles));

    cp_async_wait<0>();
    __syncthreads();  // Q, K and V have been read
    const Parts parts(smem);
    parts.store(group, first_row, first_column, state, out);
    __syncthreads();
    for (i32 index = threadIdx.x; index < rows.rows * (dim_v / 4); index += 32 * warps)
      rows.join(parts, index / (dim_v / 4), index % (dim_v / 4) * 4);
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::RowParams<MICA_QV> params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::ForwardWideSm80<MICA_ELEMENT, mica::RowParams<MICA_QV>, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q,
                                       MICA_TILE_K, MICA_WARPS, MICA_STAGES, MICA_FULL>;
  Kernel kernel{params, {params}};
  mica::griddepcontrol_launch_dependents();
  kernel.run(smem);
}
