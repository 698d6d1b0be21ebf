// SPDX-License-Identifier: Apache-2.0
// After backward: dQ from its fp32 accumulator, scaled, to its type and strides. A block takes one (tile_q, dim) block.
// Columns dim_qk and tile_q of its row may be 0: then the parameters say what they are.
#pragma once

#include "core/schedule.h"
#include "device/dq_accumulator.cuh"
#include "kernels/params.h"

namespace mica {

// Columns [column, column + 8) of one row; those past dim_qk do not exist.
MICA_DEVICE void store_row_8(const BackwardFinishParams& p, i64 row_offset, i32 column, const float (&x)[8]) {
  if (p.dq_dtype != MICA_FP32 && !p.unaligned) {
    if (column >= p.dim_qk) return;
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = p.dq_dtype == MICA_BF16 ? pack<Bf16>(x[2 * i], x[2 * i + 1]) : pack<Fp16>(x[2 * i], x[2 * i + 1]);
    *reinterpret_cast<uint4*>(static_cast<u16*>(p.dq.data) + row_offset + column) =
        make_uint4(words[0], words[1], words[2], words[3]);
    return;
  }
#pragma unroll
  for (int e = 0; e < 8; ++e)
    if (column + e < p.dim_qk) store_float(p.dq.data, row_offset + column + e, p.dq_dtype, x[e]);
}

// A block of the accumulator, by all threads.
template <int threads>
MICA_DEVICE void store_rows(const BackwardFinishParams& p, const float* accumulator, i64 base, i32 dim, i32 tile_q,
                            i32 valid_rows) {
  // A thread takes the four lanes' quads that make up 8 columns of row g and of row g + 8 of a 16 x 8 block;
  // neighbouring threads take neighbouring columns.
  for (i32 i = threadIdx.x; i < tile_q * dim / 16; i += threads) {
    const i32 column_block = i % (dim / 8), g = i / (dim / 8) % 8, row_block = i / dim;
    const float4* quads =
        reinterpret_cast<const float4*>(accumulator + dq_accumulator_index(dim, row_block, column_block, 4 * g));
    float x[2][8];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float4 quad = quads[t];
      x[0][2 * t] = quad.x * p.scale;
      x[0][2 * t + 1] = quad.y * p.scale;
      x[1][2 * t] = quad.z * p.scale;
      x[1][2 * t + 1] = quad.w * p.scale;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i32 row = row_block * 16 + half * 8 + g;
      if (row < valid_rows) store_row_8(p, base + row * p.dq.stride_row, column_block * 8, x[half]);
    }
  }
}

// The same from a transposed block: a thread takes two rows of 16 columns.
template <int threads>
MICA_DEVICE void store_transposed(const BackwardFinishParams& p, const float* accumulator, i64 base, i32 dim,
                                  i32 tile_q, i32 valid_rows) {
  for (i32 i = threadIdx.x; i < tile_q * dim / 32; i += threads) {
    const i32 pair = i % 4, column_block = i / 4 % (dim / 16), row_block = i / (dim / 4);
    float x[2][2][8];  // row, columns 0 to 7 and 8 to 15
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      const float4 quad = *reinterpret_cast<const float4*>(
          accumulator + dq_accumulator_index(tile_q, column_block, row_block, 4 * g + pair));
      x[0][0][g] = quad.x * p.scale;
      x[1][0][g] = quad.y * p.scale;
      x[0][1][g] = quad.z * p.scale;
      x[1][1][g] = quad.w * p.scale;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i32 row = row_block * 8 + pair * 2 + r;
      if (row >= valid_rows) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store_row_8(p, base + row * p.dq.stride_row, column_block * 16 + half * 8, x[r][half]);
    }
  }
}

template <int dim_of_row, int tile_q_of_row, int threads>
MICA_DEVICE void backward_finish(const BackwardFinishParams& p) {
  const i32 dim = dim_of_row ? dim_of_row : p.dq_columns, tile_q = tile_q_of_row ? tile_q_of_row : p.tile_q;
  const i32 head = blockIdx.x % p.heads_q, tile_of_all = blockIdx.x / p.heads_q;
  i32 batch, tile;
  if (p.packed_q) {
    const QueryTile found =
        find_packed_tile(p.sequences.cu_seqlens_q, p.batch, p.sequences.total_q, tile_q, tile_of_all);
    batch = found.batch;
    tile = found.tile;
  } else {
    batch = tile_of_all / p.tiles_q;
    tile = tile_of_all % p.tiles_q;
  }
  const Sequence sequence = sequence_of(p.sequences, batch);
  if (tile * tile_q >= sequence.slot_len_q) return;
  const float* accumulator = p.dq_accumulator + i64(blockIdx.x) * (tile_q * dim);
  const i64 base =
      head * p.dq.stride_head + query_row_offset(sequence, tile * tile_q, p.dq.stride_batch, p.dq.stride_row);
  const i32 valid_rows = sequence.slot_len_q - tile * tile_q;
  if constexpr (backward_transposes_dq(tile_q_of_row))
    store_transposed<threads>(p, accumulator, base, dim, tile_q, valid_rows);
  else
    store_rows<threads>(p, accumulator, base, dim, tile_q, valid_rows);
}

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::BackwardFinishParams params) {
  mica::wait_for_earlier_kernel();
  mica::backward_finish<MICA_DIM_QK, MICA_TILE_Q, 32 * MICA_WARPS>(params);
}
