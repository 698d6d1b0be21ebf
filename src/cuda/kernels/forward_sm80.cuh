// SPDX-License-Identifier: Apache-2.0
// Forward attention with mma.sync, ldmatrix and cp.async: A100, A10G, L4, RTX, and everything newer that has no kernel
// of its own. A block owns tile_q queries of one head and walks the key tiles from the last to the first; a warp owns
// 16 * kM of the queries. Two blocks share an SM, so that one block's softmax runs beside the other's products.
#pragma once

#include "device/attend.cuh"
#include "device/features.cuh"
#include "device/mma.cuh"
#include "device/shared_tile.cuh"
#include "kernels/params.h"

namespace mica {

template <class Element_, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, bool full>
struct ForwardSm80 {
  using Element = Element_;
  static constexpr int kDimQK = dim_qk, kDimV = dim_v, kTileQ = tile_q, kTileK = tile_k;
  static constexpr int kThreads = 32 * warps;
  static constexpr int kM = tile_q / (16 * warps);  // blocks of 16 rows of a warp
  static constexpr int kStages = stages;            // of K and V in shared memory
  static_assert(stages == 1 || stages == 2);
  static constexpr bool kFull = full;
  static_assert(kM * 16 * warps == tile_q && tile_k % 32 == 0);

  using Scores = float[kM][tile_k / 8][4];
  using Output = float[kM][dim_v / 8][4];
  using QTile = SharedTile<dim_qk>;
  using VTile = SharedTile<dim_v>;
  using KCopy = TileCopy<dim_qk, tile_k, kThreads>;
  using VCopy = TileCopy<dim_v, tile_k, kThreads>;

  // Shared memory feeds ldmatrix at about the rate the tensor cores eat: Q stays in registers where they have room.
  static constexpr bool kQInRegisters = dim_qk <= 64;

  const ForwardParams& p;
  Sequence sequence;
  Band band;
  i32 batch_index, head, row_begin;  // row_begin: first query of this warp's rows
  u32 smem_k, smem_v;                // stage 0
  u32 q_address, k_lane, v_lane;     // lane offsets for ldmatrix
  const u16* k_base;                 // key 0
  const u16* v_base;
  const u16* k_thread;  // this thread's share of key tile 0
  const u16* v_thread;
  i64 k_tile_stride, v_tile_stride;
  u32 k_shared_offset, v_shared_offset;
  u32 q_registers[kQInRegisters ? dim_qk / 16 : 1][kM][4];
  FeatureState<false> features;
  SoftmaxState<FloatMath> state[kM][2];
  Output out;

  MICA_DEVICE bool aligned() const { return !(p.features & kFeatureUnaligned); }

  MICA_DEVICE void load_k(i32 tile, i32 stage) {
    const u32 shared = smem_k + stage * tile_k * QTile::kRowBytes;
    const i32 valid = sequence.len_k - tile * tile_k;
    if (kFull && (p.features & (kFeaturePaged | kFeatureUnaligned)))
      load_tile_by_rows<dim_qk, tile_k, kThreads>(shared, k_row_at(tile), aligned(), valid, p.dim_qk);
    else if (KCopy::kRegular && valid >= tile_k && p.dim_qk == dim_qk)
      KCopy::copy(shared + k_shared_offset, k_thread + tile * k_tile_stride, p.k.stride_row);
    else
      load_tile<dim_qk, tile_k, kThreads>(shared, k_base + tile * k_tile_stride, p.k.stride_row, valid, p.dim_qk);
  }
  MICA_DEVICE void load_v(i32 tile, i32 stage) {
    const u32 shared = smem_v + stage * tile_k * VTile::kRowBytes;
    const i32 valid = sequence.len_k - tile * tile_k;
    if (kFull && (p.features & (kFeaturePaged | kFeatureUnaligned)))
      load_tile_by_rows<dim_v, tile_k, kThreads>(shared, v_row_at(tile), aligned(), valid, p.dim_v);
    else if (VCopy::kRegular && valid >= tile_k && p.dim_v == dim_v)
      VCopy::copy(shared + v_shared_offset, v_thread + tile * v_tile_stride, p.v.stride_row);
    else
      load_tile<dim_v, tile_k, kThreads>(shared, v_base + tile * v_tile_stride, p.v.stride_row, valid, p.dim_v);
  }
  MICA_DEVICE auto k_row_at(i32 tile) const {
    return [this, tile](i32 row) {
      return static_cast<const u16*>(p.k.data) + (head / p.group) * p.k.stride_head +
             key_row_offset(p.sequences, sequence, batch_index, tile * tile_k + row, p.k.stride_batch, p.k.stride_row);
    };
  }
  MICA_DEVICE auto v_row_at(i32 tile) const {
    return [this, tile](i32 row) {
      return static_cast<const u16*>(p.v.data) + (head / p.group) * p.v.stride_head +
             key_row_offset(p.sequences, sequence, batch_index, tile * tile_k + row, p.v.stride_batch, p.v.stride_row);
    };
  }

  MICA_DEVICE void load_q(u32 (&a)[4], int step, int m) const {
    ldmatrix_x4(a, QTile::step(q_address, step) + m * 16 * QTile::kRowBytes);
  }

  // scores = Q K^T of one key tile.
  MICA_DEVICE void gemm_qk(Scores& scores, i32 stage) {
    zero(scores);
    const u32 k_address = k_lane + stage * tile_k * QTile::kRowBytes;
#pragma unroll
    for (int step = 0; step < dim_qk / 16; ++step) {
      u32 a[kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m)
        if constexpr (kQInRegisters)
          copy(a[m], q_registers[step][m]);
        else
          load_q(a[m], step, m);
#pragma unroll
      for (int n = 0; n < tile_k / 16; ++n) {
        u32 b[4];
        ldmatrix_x4(b, QTile::step(k_address, step) + n * 16 * QTile::kRowBytes);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma_m16n8k16<Element>(scores[m][2 * n], a[m], b[0], b[1]);
          mma_m16n8k16<Element>(scores[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // out += P V of one key tile; P, rounded to the element type, is the A operand as it lies in the registers.
  MICA_DEVICE void gemm_pv(const Scores& probabilities, i32 stage) {
    const u32 v_address = v_lane + stage * tile_k * VTile::kRowBytes;
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

  // Hides what the band hides; called only for tiles that are not full.
  MICA_DEVICE void mask(Scores& scores, i32 tile) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Range keys = keys_of_row(band, row_begin + m * 16 + half * 8 + lane / 4);
        const i32 first = tile * tile_k + 2 * (lane % 4);
        hide_outside<tile_k / 8>(scores[m], half, keys.begin - first, keys.end - first);
      }
  }

  static constexpr int kScoreBlocks = tile_k / 8;

  MICA_DEVICE float score_scale() const { return kFull ? 1.0f : p.score.scale_log2; }

  // exp2(score - reference) of one row in place; returns this lane's part of their sum.
  MICA_DEVICE float exponentials(float (&scores)[kScoreBlocks][4], int half, float reference) const {
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kScoreBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = scores[n][2 * half + e];
        x = ex2_approx(fmaf(x, score_scale(), -reference));
        sum += x;
      }
    return sum;
  }

  // From scores to probabilities, relative to the maximum of the tiles before, in place: no maximum is taken (plain
  // kernels; the full ones would need every feature's code twice). False if
  // some row had no maximum yet, or if it rose so much that the tile must be done again, carefully. A row that needs no
  // care gets the same bits either way, so it does not depend on its neighbours.
  MICA_DEVICE bool softmax(Scores& scores) {
    float sum[kM][2], largest = 0;
    bool ready = true;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[m][half] = exponentials(scores[m], half, state[m][half].max);
        largest = fmaxf(largest, sum[m][half]);
        ready &= state[m][half].max != -infinity();
      }
    ready &= largest <= kLazyLimit;
    if (!__all_sync(0xffffffffu, ready)) return false;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) state[m][half].sum += sum[m][half];
    return true;
  }

  // The same with the tile's maximum: rescales `out` where it rises.
  MICA_DEVICE void softmax_carefully(Scores& scores) {
    float factor[kM][2];
    bool rescale = false;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float tile_max = fmaxf(scores[m][0][2 * half], scores[m][0][2 * half + 1]);
#pragma unroll
        for (int n = 1; n < kScoreBlocks; ++n)
          tile_max = fmaxf(tile_max, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        factor[m][half] = absorb_lazily<FloatMath>(state[m][half], quad_max(tile_max) * score_scale());
        rescale |= factor[m][half] != 1.0f;
        state[m][half].sum += exponentials(scores[m], half, reference_of<FloatMath>(state[m][half].max));
      }
    if (!__any_sync(0xffffffffu, rescale)) return;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < dim_v / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[m][n][e] *= factor[m][e / 2];
  }

  MICA_DEVICE void score(Scores& scores, i32 tile) {
    if constexpr (kFull) features.score(scores, p, band, batch_index, head, row_begin, tile * tile_k);
  }
  MICA_DEVICE void drop(Scores& probabilities, i32 tile) {
    if constexpr (kFull)
      if (p.features & kFeatureDropout)
        features.template for_each_dropped<kM, tile_k / 8>(p, batch_index * p.heads_q + head, row_begin, tile * tile_k,
                                                           [&](int m, int n, int e) { probabilities[m][n][e] = 0.0f; });
  }

  // Key tile `tile`, the step-th from the last: K and V of it are on their way, those of the next tile are sent for.
  MICA_DEVICE void attend(const TileRange& tiles, i32 tile, i32 step) {
    const bool more = tile > tiles.begin;
    Scores scores;
    cp_async_wait<0>();
    __syncthreads();
    if constexpr (kStages == 2) {
      if (more) load_k(tile - 1, (step + 1) % 2);
      if (more) load_v(tile - 1, (step + 1) % 2);
      cp_async_commit();
      gemm_qk(scores, step % 2);
    } else {
      load_v(tile, 0);
      cp_async_commit();
      gemm_qk(scores, 0);
    }
    const bool partly_hidden = tile < tiles.full_begin || tile >= tiles.full_end;
    score(scores, tile);
    if (partly_hidden) mask(scores, tile);
    if (kFull || step == 0 || !softmax(scores)) {
      if (!kFull && step != 0) {
        gemm_qk(scores, step % kStages);
        score(scores, tile);
        if (partly_hidden) mask(scores, tile);
      }
      softmax_carefully(scores);
    }
    if constexpr (kStages == 1) {
      cp_async_wait<0>();
      __syncthreads();
      if (more) load_k(tile - 1, 0);
      cp_async_commit();
    }
    drop(scores, tile);
    gemm_pv(scores, step % kStages);
  }

  MICA_DEVICE void run(u8* smem) {
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    i32 index = blockIdx.x;
    const i32 tile_index = index % p.tiles_q;
    index /= p.tiles_q;
    head = index % p.heads_q;
    index /= p.heads_q;
    i32 tile, split;
    if (p.packed_q) {
      const QueryTile found =
          find_packed_tile(p.sequences.cu_seqlens_q, p.batch, p.sequences.total_q, kTileQ, tile_index);
      batch_index = found.batch;
      tile = found.tile;
      split = index;
    } else {
      batch_index = index % p.batch;
      tile = heavy_first(tile_index, p.tiles_q, p.band.window_right < kUnlimited);
      split = index / p.batch;
    }
    sequence = sequence_of(p.sequences, batch_index);
    const i32 tile_row = tile * kTileQ;
    if (tile_row >= sequence.slot_len_q) return;
    row_begin = tile_row + warp * 16 * kM;
    band = Band{sequence.len_q, sequence.len_k, p.band.bottom_right ? sequence.len_k - sequence.len_q : 0,
                p.band.window_left, p.band.window_right};

    TileRange tiles = TileRange{0, 0, 0, 0};
    const i32 tile_row_end = min_of(tile_row + kTileQ, sequence.len_q);
    if (tile_row < tile_row_end) tiles = key_tiles(band, tile_row, tile_row_end, kTileK);
    if (p.partial_o) {
      const Range own = split_tiles(p.splits, ceil_div(sequence.len_k, kTileK), split);
      tiles.begin = max_of(tiles.begin, own.begin);
      tiles.end = max_of(tiles.begin, min_of(tiles.end, own.end));
    }

    const u32 smem_q = shared_address(smem);
    smem_k = smem_q + kTileQ * 2 * (dim_qk > dim_v ? dim_qk : dim_v);
    smem_v = smem_k + kStages * tile_k * QTile::kRowBytes;
    q_address = smem_q + QTile::offset(warp * 16 * kM + lane % 16, lane / 16);
    k_lane = smem_k + QTile::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    v_lane = smem_v + VTile::offset(lane % 16, lane / 16);
    if constexpr (!kFull) {
      const i32 head_k = head / p.group;
      k_base = static_cast<const u16*>(p.k.data) + head_k * p.k.stride_head + sequence.k_slot * p.k.stride_batch +
               sequence.k_begin * p.k.stride_row;
      v_base = static_cast<const u16*>(p.v.data) + head_k * p.v.stride_head + sequence.k_slot * p.v.stride_batch +
               sequence.k_begin * p.v.stride_row;
    } else {
      k_base = k_row_at(0)(0);
      v_base = v_row_at(0)(0);
      features.begin(p, batch_index, head);
    }

    k_thread = k_base + KCopy::global_offset(p.k.stride_row);
    v_thread = v_base + VCopy::global_offset(p.v.stride_row);
    k_tile_stride = p.k.stride_row * tile_k;
    v_tile_stride = p.v.stride_row * tile_k;
    k_shared_offset = KCopy::shared_offset();
    v_shared_offset = VCopy::shared_offset();

#pragma unroll
    for (int m = 0; m < kM; ++m) state[m][0] = state[m][1] = empty_state<FloatMath>();
    zero(out);

    const i32 count = tiles.end - tiles.begin;
    if (count > 0) {
      const u16* q = static_cast<const u16*>(p.q.data) + head * p.q.stride_head +
                     query_row_offset(sequence, tile_row, p.q.stride_batch, p.q.stride_row);
      if (kFull && (p.features & kFeatureUnaligned))
        load_tile_by_rows<dim_qk, kTileQ, kThreads>(
            smem_q, [&](i32 row) { return q + row * p.q.stride_row; }, false, sequence.len_q - tile_row, p.dim_qk);
      else
        load_tile<dim_qk, kTileQ, kThreads>(smem_q, q, p.q.stride_row, sequence.len_q - tile_row, p.dim_qk);
      load_k(tiles.end - 1, 0);
      if constexpr (kStages == 2) load_v(tiles.end - 1, 0);
      cp_async_commit();
      if constexpr (kQInRegisters) {
        cp_async_wait<0>();
        __syncthreads();
#pragma unroll
        for (int step = 0; step < dim_qk / 16; ++step)
#pragma unroll
          for (int m = 0; m < kM; ++m) load_q(q_registers[step][m], step, m);
      }
      for (i32 step = 0; step < count; ++step) attend(tiles, tiles.end - 1 - step, step);
    }
    finish(smem, split, tile_row);
  }

  // Normalises, and writes O and LSE, or the partial result of a split.
  MICA_DEVICE void finish(u8* smem, i32 split, i32 tile_row) {
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float scale[kM][2], lse[kM][2];
    const bool sink = p.sinks && !p.partial_o;
    const float sink_log2 = sink ? load_as_float(p.sinks, head * p.sinks_stride, p.sinks_dtype) * kLog2E : 0.0f;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        SoftmaxState<FloatMath> s = state[m][half];
        s.sum = quad_sum(s.sum);
        if (row_of(m, half) >= sequence.len_q) s = empty_state<FloatMath>();  // not in use: an empty row
        float shrink = 1.0f;
        if (sink) {
          const Merge<FloatMath> with_sink = merge_sink<FloatMath>(s, sink_log2);
          s = with_sink.state;
          shrink = with_sink.factor_a;
        }
        lse[m][half] = lse_log2<FloatMath>(s);
        scale[m][half] = normalizer<FloatMath>(s) * shrink;
        if constexpr (kFull) scale[m][half] *= p.dropout.rescale;
      }
    if (p.partial_o) {
      store_partial(split, scale, lse);
      return;
    }
    if (p.lse && lane % 4 == 0) {
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const i32 row = row_begin + m * 16 + half * 8 + lane / 4;
          if (row < sequence.slot_len_q)
            p.lse[sequence.q_slot * p.lse_stride_batch + head * p.lse_stride_head +
                  (sequence.q_begin + row) * p.lse_stride_row] = lse[m][half] * kLn2;
        }
    }
    u16* o = static_cast<u16*>(p.o.data);
    const i64 o_offset =
        head * p.o.stride_head + query_row_offset(sequence, tile_row, p.o.stride_batch, p.o.stride_row);
    if (kFull && (p.features & (kFeatureUnaligned | kFeatureFp32Output))) {
      store_by_elements(o_offset, scale, tile_row);
    } else {
      __syncthreads();  // every warp is done with Q
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int n = 0; n < dim_v / 8; ++n)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const i32 row = warp * 16 * kM + m * 16 + half * 8 + lane / 4;
            *reinterpret_cast<u32*>(smem + VTile::offset(row, n) + lane % 4 * 4) =
                pack<Element>(out[m][n][2 * half] * scale[m][half], out[m][n][2 * half + 1] * scale[m][half]);
          }
      __syncwarp();
      for (int i = lane; i < 16 * kM * VTile::kChunks; i += 32) {
        const i32 row = warp * 16 * kM + i / VTile::kChunks, chunk = i % VTile::kChunks;
        if (tile_row + row < sequence.slot_len_q && chunk * 8 < p.dim_v)
          *reinterpret_cast<uint4*>(o + o_offset + row * p.o.stride_row + chunk * 8) =
              *reinterpret_cast<const uint4*>(smem + VTile::offset(row, chunk));
      }
    }
  }

  // Row of out[m][.][2 * half] within the sequence.
  MICA_DEVICE i32 row_of(int m, int half) const { return row_begin + m * 16 + half * 8 + threadIdx.x % 32 / 4; }

  // A split's O, normalised by itself, in fp32, and its LSE in log2 units.
  MICA_DEVICE void store_partial(i32 split, const float (&scale)[kM][2], const float (&lse)[kM][2]) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const i32 row = row_of(m, half);
        if (row >= sequence.slot_len_q) continue;
        const i64 rows_before = (i64(split) * p.heads_q + head) * p.partial_rows;
        const i64 slot_row = rows_before + sequence.q_slot * i64(p.sequences.slot_len_q) + sequence.q_begin + row;
        if (lane % 4 == 0) p.partial_lse[slot_row] = lse[m][half];
#pragma unroll
        for (int n = 0; n < dim_v / 8; ++n) {
          const i32 column = n * 8 + lane % 4 * 2;
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (column + e < p.dim_v)
              p.partial_o[slot_row * p.dim_v + column + e] = out[m][n][2 * half + e] * scale[m][half];
        }
      }
  }

  // O element by element: rows that do not start at 16 bytes, odd dims, or fp32 output.
  MICA_DEVICE void store_by_elements(i64 offset, const float (&scale)[kM][2], i32 tile_row) {
    const i32 lane = threadIdx.x % 32;
    const i32 dtype = p.features & kFeatureFp32Output ? MICA_FP32 : Element::kDtype;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const i32 row = row_of(m, half);
        if (row >= sequence.slot_len_q) continue;
#pragma unroll
        for (int n = 0; n < dim_v / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const i32 column = n * 8 + lane % 4 * 2 + e;
            if (column < p.dim_v)
              store_float(p.o.data, offset + (row - tile_row) * p.o.stride_row + column, dtype,
                          out[m][n][2 * half + e] * scale[m][half]);
          }
      }
  }
};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::ForwardParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::ForwardSm80<MICA_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS,
                                   MICA_STAGES, MICA_FULL>;
  Kernel kernel{params};
  kernel.run(smem);
}
