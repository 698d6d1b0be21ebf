// SPDX-License-Identifier: Apache-2.0
// Attention of a few query rows over a long cache, bound by reading K and V once. The query heads that share a key head
// are packed into the rows of one tile. A block owns a range of the keys; each of its warps walks key tiles of its own,
// with its own ring of cp.async buffers and its own softmax, so that no barrier stands in the loop. At the end the
// warps join their partial results through shared memory.
#pragma once

#include "device/attend.cuh"
#include "device/mma.cuh"
#include "device/shared_tile.cuh"
#include "kernels/params.h"

namespace mica {

template <class Element_, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, bool full>
struct DecodeSm80 {
  using Element = Element_;
  using KTile = SharedTile<dim_qk>;
  using VTile = SharedTile<dim_v>;
  static constexpr int kThreads = 32 * warps;
  static constexpr int kM = tile_q / 16;
  static constexpr int kKBytes = tile_k * KTile::kRowBytes;
  static constexpr int kStageBytes = kKBytes + tile_k * VTile::kRowBytes;
  static constexpr int kPartStride = decode_part_stride(dim_v);
  static_assert(tile_q % 16 == 0 && (tile_k == 16 || tile_k == 32) && stages >= 2);
  static_assert(32 % KTile::kChunks == 0 && 32 % VTile::kChunks == 0 && KTile::kWide && VTile::kWide);

  using Scores = float[kM][tile_k / 8][4];
  using Output = float[kM][dim_v / 8][4];

  // A row of the tile.
  struct Row {
    i32 query, head;
  };

  const ForwardParams& p;
  i32 batch_index, head_k, split;
  Sequence sequence;
  Band band;
  i32 query_begin, head_begin, heads, rows;  // of this tile
  Row row[kM][2];                            // of this lane
  Range keys[kM][2];                         // that they see
  float slope_log2[kM][2];
  const u16* k_base;  // key 0, or page 0
  const u16* v_base;
  PagedRow ahead;  // paged: key (lane % tile_k) of the next tile to load
  u32 ring, k_lane, v_lane;
  u32 q[dim_qk / 16][kM][4];
  SoftmaxState<FloatMath> state[kM][2];
  Output out;

  MICA_DEVICE bool has(u32 feature) const { return full && (p.features & feature); }

  // Rows past the last one repeat it: they are computed and not stored.
  MICA_DEVICE Row row_at(i32 r) const {
    const i32 last = min_of(r, rows - 1);
    return Row{query_begin + last / heads, head_begin + last % heads};
  }

  // Sends for a (tile_k, dim) tile. A lane copies one chunk of every kRowStep-th row; next_row(r), called for these
  // rows in their order, is the address of row r.
  template <int dim, class NextRow>
  MICA_DEVICE void load_rows(u32 shared, i32 valid_rows, i32 valid_dim, NextRow next_row) {
    using Tile = SharedTile<dim>;
    constexpr int kRowStep = row_step<dim>();
    const i32 first = threadIdx.x % 32 / Tile::kChunks, chunk = threadIdx.x % Tile::kChunks;
    if (has(kFeatureUnaligned)) {
#pragma unroll 1
      for (int r = first; r < tile_k; r += kRowStep) {
        const u16* from = next_row(r) + chunk * 8;
        u32 words[4] = {0, 0, 0, 0};
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (r < valid_rows && chunk * 8 + e < valid_dim) words[e / 2] |= u32(from[e]) << (e % 2 * 16);
        store_shared_16(shared + Tile::offset(r, chunk), words);
      }
      return;
    }
    const u32 destination = shared + Tile::offset(first, chunk);
    const i32 bytes = chunk * 8 < valid_dim ? 16 : 0;
#pragma unroll
    for (int i = 0; i < tile_k / kRowStep; ++i) {
      // first < kRowStep, and the swizzle takes three bits of the row: those of i flip bits of the address.
      const u32 to = (destination ^ (((i * kRowStep) & 7) << 4)) + i * kRowStep * Tile::kRowBytes;
      const u16* from = next_row(first + i * kRowStep) + chunk * 8;
      cp_async_16(to, from, i * kRowStep < valid_rows - first ? bytes : 0);
    }
  }
  template <int dim>
  static constexpr int row_step() {
    return 32 / SharedTile<dim>::kChunks;  // rows that the lanes of a warp copy at once
  }

  // Rows of a tensor that is not paged.
  template <int dim>
  MICA_DEVICE void load_dense(u32 shared, const u16* base, i64 stride_row, i32 tile, i32 valid_dim) {
    const i64 step = stride_row * row_step<dim>();
    const u16* row = base + (tile * tile_k + i32(threadIdx.x % 32) / SharedTile<dim>::kChunks) * stride_row - step;
    load_rows<dim>(shared, sequence.len_k - tile * tile_k, valid_dim, [&](i32) { return row += step; });
  }

  // Rows in pages: each lane knows where one key is, the others ask it.
  template <int dim>
  MICA_DEVICE void load_paged(u32 shared, const u16* base, i64 row_offset, i32 tile, i32 valid_dim) {
    load_rows<dim>(shared, sequence.len_k - tile * tile_k, valid_dim,
                   [&](i32 r) { return base + __shfl_sync(0xffffffffu, row_offset, r); });
  }

  // Paged: fetches the entry of the block table before it is needed.
  MICA_DEVICE void look_ahead(i32 tile) {
    if (has(kFeaturePaged)) {
      const i32 key = min_of(tile * tile_k + i32(threadIdx.x % tile_k), sequence.len_k - 1);
      ahead = paged_row(p.sequences, sequence, batch_index, key);
    }
  }

  MICA_DEVICE void load(i32 tile, i32 stage, i32 end) {
    if (tile < end) {
      const u32 shared = ring + stage * kStageBytes;
      if (has(kFeaturePaged)) {
        const i64 k_row = paged_row_offset(p.sequences, ahead, p.k.stride_batch, p.k.stride_row);
        const i64 v_row = paged_row_offset(p.sequences, ahead, p.v.stride_batch, p.v.stride_row);
        look_ahead(tile + warps);
        load_paged<dim_qk>(shared, k_base, k_row, tile, p.dim_qk);
        load_paged<dim_v>(shared + kKBytes, v_base, v_row, tile, p.dim_v);
      } else {
        load_dense<dim_qk>(shared, k_base, p.k.stride_row, tile, p.dim_qk);
        load_dense<dim_v>(shared + kKBytes, v_base, p.v.stride_row, tile, p.dim_v);
      }
    }
    cp_async_commit();  // an empty group too: the waits count groups
  }

  // Two neighbouring elements of a query row.
  MICA_DEVICE u32 load_q_pair(const u16* row_begin, i32 column) const {
    if (!has(kFeatureUnaligned)) return column < p.dim_qk ? *reinterpret_cast<const u32*>(row_begin + column) : 0u;
    const u32 low = column < p.dim_qk ? row_begin[column] : 0u;
    return column + 1 < p.dim_qk ? low | u32(row_begin[column + 1]) << 16 : low;
  }

  // Q as the A operands of its products; a query that is not in use becomes zeros.
  MICA_DEVICE void load_q() {
    const i32 column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Row r = row[m][half];
        const u16* from = static_cast<const u16*>(p.q.data) + r.head * p.q.stride_head +
                          query_row_offset(sequence, r.query, p.q.stride_batch, p.q.stride_row);
        const bool used = r.query < sequence.len_q;
#pragma unroll
        for (int step = 0; step < dim_qk / 16; ++step) {
          q[step][m][half] = used ? load_q_pair(from, step * 16 + column) : 0u;
          q[step][m][half + 2] = used ? load_q_pair(from, step * 16 + 8 + column) : 0u;
        }
      }
  }

  MICA_DEVICE void gemm_qk(Scores& scores, i32 stage) {
    zero(scores);
    const u32 k_address = k_lane + stage * kStageBytes;
#pragma unroll
    for (int step = 0; step < dim_qk / 16; ++step)
#pragma unroll
      for (int n = 0; n < tile_k / 16; ++n) {
        u32 b[4];
        ldmatrix_x4(b, KTile::step(k_address, step) + n * 16 * KTile::kRowBytes);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma_m16n8k16<Element>(scores[m][2 * n], q[step][m], b[0], b[1]);
          mma_m16n8k16<Element>(scores[m][2 * n + 1], q[step][m], b[2], b[3]);
        }
      }
  }

  MICA_DEVICE void gemm_pv(const Scores& probabilities, i32 stage) {
    const u32 v_address = v_lane + stage * kStageBytes;
#pragma unroll
    for (int step = 0; step < tile_k / 16; ++step) {
      u32 a[kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m) pack_a<Element>(a[m], probabilities[m][2 * step], probabilities[m][2 * step + 1]);
#pragma unroll
      for (int n = 0; n < dim_v / 16; ++n) {
        u32 b[4];
        ldmatrix_x4_trans(b, VTile::step(v_address, n) + step * 16 * VTile::kRowBytes);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma_m16n8k16<Element>(out[m][2 * n], a[m], b[0], b[1]);
          mma_m16n8k16<Element>(out[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // Calls function(score, row, slope_log2, key) for every score of the lane.
  template <class Function>
  MICA_DEVICE void for_each(Scores& scores, i32 tile, Function function) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < tile_k / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          function(scores[m][n][e], row[m][e / 2], slope_log2[m][e / 2],
                   tile * tile_k + n * 8 + i32(threadIdx.x % 4) * 2 + e % 2);
  }

  // Products to scores in log2 units; the boolean mask hides.
  MICA_DEVICE void score(Scores& scores, i32 tile) const {
    if constexpr (!full) return;
    for_each(scores, tile, [&](float& x, Row, float, i32) { x = score_of_product<FloatMath>(p.score, x); });
    if (has(kFeatureAlibi))
      for_each(scores, tile, [&](float& x, Row r, float slope, i32 key) {
        x = add_alibi<FloatMath>(x, slope, float(r.query + band.shift - key));
      });
    if (has(kFeatureBias))
      for_each(scores, tile, [&](float& x, Row r, float, i32 key) {
        if (r.query < min_of(p.bias.rows, band.len_q) && key < min_of(p.bias.keys, band.len_k))
          x = add_bias<FloatMath>(x, load_as_float(p.bias.data, pair_offset(p.bias, r, key), p.bias.dtype));
      });
    if (has(kFeatureBoolean))
      for_each(scores, tile, [&](float& x, Row r, float, i32 key) {
        const bool inside = r.query < min_of(p.boolean.rows, band.len_q) && key < min_of(p.boolean.keys, band.len_k);
        if (!inside || !static_cast<const u8*>(p.boolean.data)[pair_offset(p.boolean, r, key)]) x = -infinity();
      });
  }
  MICA_DEVICE i64 pair_offset(const PairsArg& a, Row r, i32 key) const {
    return batch_index * a.stride_batch + r.head * a.stride_head + r.query * a.stride_row + key * a.stride_key;
  }

  // Hides what the band hides; called only for tiles that are not full.
  MICA_DEVICE void mask(Scores& scores, i32 tile) const {
    const i32 first = tile * tile_k + threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        hide_outside<tile_k / 8>(scores[m], half, keys[m][half].begin - first, keys[m][half].end - first);
  }

  // From scores to probabilities in place; rescales `out` where a maximum rises.
  MICA_DEVICE void softmax(Scores& scores) {
    const float scale = full ? 1.0f : p.score.scale_log2;
    float factor[kM][2];
    bool rescale = false;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float tile_max = -infinity();
#pragma unroll
        for (int n = 0; n < tile_k / 8; ++n)
          tile_max = fmaxf(tile_max, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        SoftmaxState<FloatMath>& s = state[m][half];
        factor[m][half] = absorb_lazily<FloatMath>(s, quad_max(tile_max) * scale);
        rescale |= factor[m][half] != 1.0f;
        const float reference = reference_of<FloatMath>(s.max);
#pragma unroll
        for (int n = 0; n < tile_k / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = scores[m][n][2 * half + e];
            x = ex2_approx(fmaf(x, scale, -reference));
            s.sum += x;
          }
      }
    if (!__any_sync(0xffffffffu, rescale)) return;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < dim_v / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[m][n][e] *= factor[m][e / 2];
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
      score(scores, tile);
      if (tile < tiles.full_begin || tile >= tiles.full_end) mask(scores, tile);
      softmax(scores);
      gemm_pv(scores, stage);
      stage = stage == stages - 1 ? 0 : stage + 1;
    }
  }

  // Finds the tile's place; false if nothing is there.
  MICA_DEVICE bool locate() {
    const i32 queries = decode_queries(tile_q, p.group), head_tiles = decode_head_tiles(tile_q, p.group);
    const i32 heads_k = p.heads_q / p.group;
    i32 index = blockIdx.x;
    const i32 head_tile = index % head_tiles;
    index /= head_tiles;
    head_k = index % heads_k;
    index /= heads_k;
    split = index % p.splits.num_splits;
    index /= p.splits.num_splits;
    QueryTile tile = QueryTile{index / p.tiles_q, index % p.tiles_q};
    if (p.packed_q) tile = find_packed_tile(p.sequences.cu_seqlens_q, p.batch, p.sequences.total_q, queries, index);
    batch_index = tile.batch;
    sequence = sequence_of(p.sequences, batch_index);
    query_begin = tile.tile * queries;
    head_begin = head_k * p.group + head_tile * tile_q;
    heads = min_of(tile_q, p.group - head_tile * tile_q);
    rows = heads * min_of(queries, sequence.slot_len_q - query_begin);
    return query_begin < sequence.slot_len_q;
  }

  MICA_DEVICE void run(u8* smem) {
    if (!locate()) return;
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    band = Band{sequence.len_q, sequence.len_k, p.band.bottom_right ? sequence.len_k - sequence.len_q : 0,
                p.band.window_left, p.band.window_right};
    TileRange tiles = TileRange{0, 0, 0, 0};
    const i32 query_end = min_of(query_begin + rows / heads, sequence.len_q);
    if (query_begin < query_end) tiles = key_tiles(band, query_begin, query_end, tile_k);
    // The tiles that are touched are dealt out, not those of the whole cache: a window keeps every split busy.
    Range own = split_tiles(p.splits, tiles.end - tiles.begin, split);
    own = Range{tiles.begin + own.begin, tiles.begin + own.end};

    ring = shared_address(smem) + warp * stages * kStageBytes;
    k_lane = ring + KTile::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    v_lane = ring + kKBytes + VTile::offset(lane % 16, lane / 16);
    const bool paged = has(kFeaturePaged);
    k_base = static_cast<const u16*>(p.k.data) + head_k * p.k.stride_head +
             (paged ? 0 : sequence.k_slot * p.k.stride_batch + sequence.k_begin * p.k.stride_row);
    v_base = static_cast<const u16*>(p.v.data) + head_k * p.v.stride_head +
             (paged ? 0 : sequence.k_slot * p.v.stride_batch + sequence.k_begin * p.v.stride_row);
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Row r = row_at(m * 16 + half * 8 + lane / 4);
        row[m][half] = r;
        keys[m][half] = keys_of_row(band, r.query);
        slope_log2[m][half] = has(kFeatureAlibi)
                                  ? p.alibi[batch_index * p.alibi_stride_batch + r.head * p.alibi_stride_head] * kLog2E
                                  : 0.0f;
        state[m][half] = empty_state<FloatMath>();
      }
    zero(out);
    attend(tiles, own);

    cp_async_wait<0>();
    __syncthreads();  // the rings are free
    float* parts = reinterpret_cast<float*>(smem);
    float* states = parts + warps * tile_q * kPartStride;
    store_part(parts + warp * tile_q * kPartStride, states + warp * tile_q * 2);
    __syncthreads();
    for (i32 index = threadIdx.x; index < rows * (dim_v / 4); index += kThreads)
      join_parts(parts, states, index / (dim_v / 4), index % (dim_v / 4) * 4);
  }

  // The warp's accumulators and softmax state to shared memory.
  MICA_DEVICE void store_part(float* part, float* part_states) const {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const i32 r = m * 16 + half * 8 + lane / 4;
        const float sum = quad_sum(state[m][half].sum);
        if (r >= rows) continue;
        if (lane % 4 == 0) {
          part_states[2 * r] = state[m][half].max;
          part_states[2 * r + 1] = sum;
        }
#pragma unroll
        for (int n = 0; n < dim_v / 8; ++n)
          *reinterpret_cast<float2*>(part + r * kPartStride + n * 8 + lane % 4 * 2) =
              make_float2(out[m][n][2 * half], out[m][n][2 * half + 1]);
      }
  }

  // Four columns of one row: the warps' results become one, and it is written as O or as the split's partial result.
  MICA_DEVICE void join_parts(const float* parts, const float* states, i32 r, i32 column) const {
    SoftmaxState<FloatMath> joined = empty_state<FloatMath>();
    float x[4] = {0, 0, 0, 0};
    const Row where = row_at(r);
    if (where.query < sequence.len_q) {
#pragma unroll
      for (int w = 0; w < warps; ++w) {
        const float* part_state = states + (w * tile_q + r) * 2;
        const auto both = merge<FloatMath>(joined, SoftmaxState<FloatMath>{part_state[0], part_state[1]});
        const float4 y = *reinterpret_cast<const float4*>(parts + (w * tile_q + r) * kPartStride + column);
        x[0] = x[0] * both.factor_a + y.x * both.factor_b;
        x[1] = x[1] * both.factor_a + y.y * both.factor_b;
        x[2] = x[2] * both.factor_a + y.z * both.factor_b;
        x[3] = x[3] * both.factor_a + y.w * both.factor_b;
        joined = both.state;
      }
      if (p.sinks && !p.partial_o) {
        const float sink = load_as_float(p.sinks, where.head * p.sinks_stride, p.sinks_dtype);
        const auto with_sink = merge_sink<FloatMath>(joined, sink * kLog2E);
#pragma unroll
        for (int e = 0; e < 4; ++e) x[e] *= with_sink.factor_a;
        joined = with_sink.state;
      }
    }
    const float scale = normalizer<FloatMath>(joined);
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] *= scale;
    const float lse = lse_log2<FloatMath>(joined);
    if (p.partial_o)
      store_partial(where, column, x, lse);
    else
      store_output(where, column, x, lse);
  }

  MICA_DEVICE void store_partial(Row where, i32 column, const float (&x)[4], float lse) const {
    const i64 slot_row = (i64(split) * p.heads_q + where.head) * p.partial_rows +
                         sequence.q_slot * i64(p.sequences.slot_len_q) + sequence.q_begin + where.query;
    if (column == 0) p.partial_lse[slot_row] = lse;
    float* to = p.partial_o + slot_row * p.dim_v + column;
    if (!has(kFeatureUnaligned)) {
      if (column < p.dim_v) *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (column + e < p.dim_v) to[e] = x[e];
    }
  }

  MICA_DEVICE void store_output(Row where, i32 column, const float (&x)[4], float lse) const {
    if (p.lse && column == 0)
      p.lse[sequence.q_slot * p.lse_stride_batch + where.head * p.lse_stride_head +
            (sequence.q_begin + where.query) * p.lse_stride_row] = lse * kLn2;
    const i64 offset = where.head * p.o.stride_head + column +
                       query_row_offset(sequence, where.query, p.o.stride_batch, p.o.stride_row);
    if (!has(kFeatureUnaligned | kFeatureFp32Output)) {
      if (column < p.dim_v)
        *reinterpret_cast<uint2*>(static_cast<u16*>(p.o.data) + offset) =
            make_uint2(pack<Element>(x[0], x[1]), pack<Element>(x[2], x[3]));
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (column + e < p.dim_v)
          store_float(p.o.data, offset + e, has(kFeatureFp32Output) ? MICA_FP32 : Element::kDtype, x[e]);
    }
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::ForwardParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::DecodeSm80<MICA_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS,
                                  MICA_STAGES, MICA_FULL>;
  Kernel kernel{params};
  kernel.run(smem);
}
