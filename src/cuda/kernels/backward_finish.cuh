// SPDX-License-Identifier: Apache-2.0
// After backward: dQ, or dK and dV to which several blocks added, from fp32 accumulators, scaled, to their types and
// strides. A block takes one (tile_q, dim) block of dQ, or a part of one of dK's or dV's.
// Columns dim_qk and tile_q of its row may be 0: then the parameters say what they are.
#pragma once

#include "core/schedule.h"
#include "cuda/kernels/parts/backward_drawn_sm90.h"
#include "cuda/kernels/whole/pair_integers.h"
#include "device/dq_accumulator.cuh"
#include "kernels/params.h"
#include "kernels/whole/key_norms.cuh"

namespace mica {

// Columns [column, column + 8) of one row; those past `dim` do not exist.
MICA_DEVICE void store_row_8(const SummedRows& to, i64 row_offset, i32 column, const float (&x)[8]) {
  if (to.dtype != MICA_FP32 && !to.unaligned) {
    if (column >= to.dim) return;
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = to.dtype == MICA_BF16 ? pack<Bf16>(x[2 * i], x[2 * i + 1]) : pack<Fp16>(x[2 * i], x[2 * i + 1]);
    *reinterpret_cast<uint4*>(static_cast<u16*>(to.rows.data) + row_offset + column) =
        make_uint4(words[0], words[1], words[2], words[3]);
    return;
  }
#pragma unroll
  for (int e = 0; e < 8; ++e)
    if (column + e < to.dim) store_float(to.rows.data, row_offset + column + e, to.dtype, x[e]);
}

// Lanes 2n and 2n + 1 have eight columns of a row each; then the even one has the first four of both rows and the odd
// one the last four: together they write a whole sector of 32 bytes of one row, and then of the other.
MICA_DEVICE void share_in_pair(float (&x)[8]) {
  const bool odd = threadIdx.x & 1;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float other = __shfl_xor_sync(0xffffffffu, odd ? x[e] : x[4 + e], 1);
    (odd ? x[e] : x[4 + e]) = other;
  }
}
MICA_DEVICE void store_4(const SummedRows& to, i64 row_offset, i32 column, const float* x) {
  if (column < to.dim)
    *reinterpret_cast<float4*>(static_cast<float*>(to.rows.data) + row_offset + column) =
        make_float4(x[0], x[1], x[2], x[3]);
}

// A block of the accumulator: floats, or whole numbers (dq_integers.h).
struct Sums {
  const float* data;
  bool is_empty;  // nobody has added to it: known later than where it lies, and so what is there is read anyway
  // dQ in whole numbers: the sizes of its rows, and by how much its numbers are larger. null: it is not.
  const float *row_norm = nullptr, *row_delta = nullptr;
  i32 valid_rows = 0;
  u64 offset = 0;
  KeyNorms norms = {};
  // dK or dV likewise: the largest of 16 rows, kPeerWords further on those of the next. null: it is not.
  const i32* largest = nullptr;
  i32 spare_bits = 0;

  // What 1 is worth in a row; 0: they are floats.
  MICA_DEVICE float unit(i32 row) const {
    constexpr i32 kPeerWords = i32(sizeof(KeyPeers) / sizeof(i32));
    if (largest) {
      const float most = float_of(u32(largest[row / 16 * kPeerWords]));
      return is_finite_bound(most) ? integers_unit(most, spare_bits) : 0.0f;
    }
    return row_norm && row < valid_rows ? dq_unit(dq_bound(norms, row_norm[row], row_delta[row])) : 0.0f;
  }
  // Two columns of a row, then two of another one.
  MICA_DEVICE float4 load(i32 index, float unit, float other_unit) const {
    const float4 sums = *reinterpret_cast<const float4*>(data + index);
    float4 x = sums;
    if (row_norm || (largest && unit > 0.0f)) x = in_units(sums, make_float4(unit, unit, other_unit, other_unit));
    return is_empty ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : x;
  }
  // The same of a block to which pairs were added: floats, or whole numbers as the halves of one.
  MICA_DEVICE float4 load_pairs(i32 index, float unit, float other_unit) const {
    const uint2* at = reinterpret_cast<const uint2*>(data + index);
    const uint2 low = at[0], high = at[kPairsApart / 2];
    if (!row_norm) return make_float4(float_of(low.x), float_of(low.y), float_of(high.x), float_of(high.y));
    const PairOfIntegers own = integers_of_pair(low.x, low.y, offset), other = integers_of_pair(high.x, high.y, offset);
    return make_float4(float(own.first) * unit, float(own.second) * unit, float(other.first) * other_unit,
                       float(other.second) * other_unit);
  }
  // As it lies, of a transposed block: several are on their way before it is known what they are.
  MICA_DEVICE float4 load(i32 index) const {
    const float4 sums = *reinterpret_cast<const float4*>(data + index);
    return is_empty ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : sums;
  }
  MICA_DEVICE float4 in_units(const float4& sums, const float4& units) const {
    return make_float4(number(sums.x) * units.x, number(sums.y) * units.y, number(sums.z) * units.z,
                       number(sums.w) * units.w);
  }
  MICA_DEVICE float number(float sum) const { return float(i32(bits_of(sum) - u32(offset))); }
};

// Which of a block's threads this one is, and of how many: of several blocks that have one together.
struct Worker {
  i32 thread, threads;
};

// A block of the accumulator: a warp takes 16 rows of 32 columns, 512 neighbouring bytes a load.
MICA_DEVICE void store_rows(const SummedRows& to, const Sums& sums, bool by_columns, bool in_pairs, i64 base, i32 dim,
                            i32 tile_q, i32 valid_rows, const Worker& worker) {
  const i32 lane = threadIdx.x % 32, row_in_block = lane / 4, pair = lane % 4;
  const i32 units = min_of(tile_q / 16, ceil_div(valid_rows, 16)) * (dim / 32);
  const i32 last_column_block = (to.dim - 1) / 8;
  const bool vectorised_by_8 = to.dtype != MICA_FP32 && !to.unaligned,
             vectorised_by_2 = to.dtype == MICA_FP32 && !to.unaligned;
#pragma unroll 2
  for (i32 unit = worker.thread / 32; unit < units; unit += worker.threads / 32) {
    const i32 row_block = unit / (dim / 32), column_block = unit % (dim / 32) * 4;
    const float unit_low = sums.unit(row_block * 16 + row_in_block),
                unit_high = sums.unit(row_block * 16 + row_in_block + 8);
    float x[4][4];  // of a 16 x 8 block each: two columns of a row, and of the row eight further down
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Of columns that nobody has there may be no sums: the last ones are read again.
      const i32 column = min_of(column_block + i, last_column_block);
      const i32 index = by_columns ? backward_dq_index_by_columns(tile_q, row_block, column, lane)
                                   : dq_accumulator_index(dim, row_block, column, lane);
      const float4 quad = in_pairs ? sums.load_pairs(dq_pair_index(dim, row_block, column, lane), unit_low, unit_high)
                                   : sums.load(index, unit_low, unit_high);
      x[i][0] = quad.x * to.scale;
      x[i][1] = quad.y * to.scale;
      x[i][2] = quad.z * to.scale;
      x[i][3] = quad.w * to.scale;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i32 row = row_block * 16 + half * 8 + row_in_block;
      const i64 row_offset = base + row * to.rows.stride_row;
      if (vectorised_by_8) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          words[i] = to.dtype == MICA_BF16 ? pack<Bf16>(x[i][2 * half], x[i][2 * half + 1])
                                           : pack<Fp16>(x[i][2 * half], x[i][2 * half + 1]);
        transpose_in_quad(words);
        const i32 column = (column_block + pair) * 8;
        if (row < valid_rows && column < to.dim)
          *reinterpret_cast<uint4*>(static_cast<u16*>(to.rows.data) + row_offset + column) =
              make_uint4(words[0], words[1], words[2], words[3]);
      } else if (row < valid_rows && vectorised_by_2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const i32 column = (column_block + i) * 8 + pair * 2;
          if (column < to.dim)
            *reinterpret_cast<float2*>(static_cast<float*>(to.rows.data) + row_offset + column) =
                make_float2(x[i][2 * half], x[i][2 * half + 1]);
        }
      } else if (row < valid_rows) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const i32 column = (column_block + i) * 8 + pair * 2 + e;
            if (column < to.dim) store_float(to.rows.data, row_offset + column, to.dtype, x[i][2 * half + e]);
          }
      }
    }
  }
}

// The same from a transposed block: a thread takes two rows of 16 columns.
MICA_DEVICE void store_transposed(const SummedRows& to, const Sums& sums, i64 base, i32 dim, i32 tile_q, i32 valid_rows,
                                  const Worker& worker) {
  for (i32 i = worker.thread; i < tile_q * dim / 32; i += worker.threads) {
    const i32 pair = i % 4, column_block = i / 4 % (dim / 16), row_block = i / (dim / 4);
    const i32 first_row = row_block * 8 + pair * 2;
    float4 quads[8];
#pragma unroll
    for (int g = 0; g < 8; ++g)
      quads[g] = sums.load(dq_accumulator_index(tile_q, column_block, row_block, 4 * g + pair));
    if (sums.row_norm) {
      const float unit = sums.unit(first_row), next_unit = sums.unit(first_row + 1);
#pragma unroll
      for (int g = 0; g < 8; ++g) quads[g] = sums.in_units(quads[g], make_float4(unit, next_unit, unit, next_unit));
    }
    float x[2][2][8];  // row, columns 0 to 7 and 8 to 15
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      const float4 quad = quads[g];
      x[0][0][g] = quad.x * to.scale;
      x[1][0][g] = quad.y * to.scale;
      x[0][1][g] = quad.z * to.scale;
      x[1][1][g] = quad.w * to.scale;
    }
    if (to.dtype == MICA_FP32 && !to.unaligned) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i32 even_row = row_block * 8 + pair / 2 * 4 + r;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          share_in_pair(x[r][half]);
#pragma unroll
          for (int other = 0; other < 2; ++other) {
            const i32 row = even_row + 2 * other;
            if (row < valid_rows)
              store_4(to, base + row * to.rows.stride_row, column_block * 16 + half * 8 + pair % 2 * 4,
                      x[r][half] + 4 * other);
          }
        }
      }
      continue;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i32 row = first_row + r;
      if (row >= valid_rows) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store_row_8(to, base + row * to.rows.stride_row, column_block * 16 + half * 8, x[r][half]);
    }
  }
}

// Which block of the accumulator this one takes, when it may. From the last on: what was added last is still in the
// second-level cache.
MICA_DEVICE i32 await_all(const BackwardFinishParams&) {
  griddepcontrol_wait();
  return i32(gridDim.x - 1 - blockIdx.x);
}
// A head after the other, while blocks of later ones are still at work.
MICA_DEVICE i32 await_head(const BackwardFinishParams& p) {
  const i32 head_of_all = i32(blockIdx.x) / p.tiles_q, tile = i32(blockIdx.x) - head_of_all * p.tiles_q;
  const i32 slot = head_of_all / p.heads_q, head = head_of_all - slot * p.heads_q;
  if (threadIdx.x == 0) {
    const i32* done = p.heads_done + (slot * p.heads_q + head) / p.group;
    while (load_acquire(done) != p.head_items) __nanosleep(200);
    // Whoever comes after this kernel relies on what came before it.
    if (blockIdx.x == gridDim.x - 1) griddepcontrol_wait();
  }
  __syncthreads();
  return (slot * p.tiles_q + tile) * p.heads_q + head;
}

// Whether this launch waits for all of the one before dQ's before it lets the next one begin: that of dK and dV, which
// has nothing to wait for then and runs beside this one.
MICA_DEVICE bool lets_keys_begin(const BackwardFinishParams& p) {
  return p.of_keys == 0 && p.parts > 1 && !p.heads_done;
}

// dK and dV, after all of them: they are small, and few blocks would take long. With heads_done, or without a launch
// for dQ, what is before this one may not be done yet.
template <int threads>
MICA_DEVICE void finish_keys(const BackwardFinishParams& p) {
  if (p.heads_done) griddepcontrol_wait();
  const bool is_v = i32(blockIdx.x) >= p.dk_blocks;
  const SummedRows to = is_v ? p.dv : p.dq;
  const i32 index = i32(blockIdx.x) - (is_v ? p.dk_blocks : 0), block = index / p.of_keys;
  const Worker worker = {(index - block * p.of_keys) * threads + i32(threadIdx.x), p.of_keys * threads};
  const i32 tile_of_all = block / p.heads_q, head = block - tile_of_all * p.heads_q, batch = tile_of_all / p.tiles_q,
            first_row = (tile_of_all - batch * p.tiles_q) * p.tile_q;
  Sums sums = {to.sums + i64(block) * (p.tile_q * to.columns), false};
  if (p.key_peers) {
    const KeyPeers* own = p.key_peers + i64(block) * (p.tile_q / 16);
    sums.largest = is_v ? &own->largest_v : &own->largest_k;
    sums.spare_bits = spare_bits_of(p.parts);
  }
  const i64 base = batch * to.rows.stride_batch + head * to.rows.stride_head + first_row * to.rows.stride_row;
  const i32 valid_rows = p.sequences.slot_len_q - first_row;
  if (backward_transposes_dq(p.tile_q))
    store_transposed(to, sums, base, to.columns, p.tile_q, valid_rows, worker);
  else
    store_rows(to, sums, false, false, base, to.columns, p.tile_q, valid_rows, worker);
  griddepcontrol_wait();  // whoever comes after this kernel relies on what came before it
}

template <int dim_of_row, int tile_q_of_row, int threads>
MICA_DEVICE void backward_finish(const BackwardFinishParams& p) {
  if constexpr (dim_of_row == 0)
    if (p.of_keys > 0) {
      finish_keys<threads>(p);
      return;
    }
  const i32 dim = dim_of_row ? dim_of_row : p.dq.columns, tile_q = tile_q_of_row ? tile_q_of_row : p.tile_q;
  const i32 block = p.heads_done ? await_head(p) : await_all(p), head = block % p.heads_q,
            tile_of_all = block / p.heads_q;
  if (lets_keys_begin(p)) griddepcontrol_launch_dependents();
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
  constexpr bool kMayHavePairs = dim_of_row > 128;
  const RowsArg& rows = p.dq.rows;
  Sums sums = {p.dq.sums + i64(block) * (tile_q * dim), p.dq_turns && p.dq_turns[block] == 0};
  // Where nobody has added, nobody has left norms.
  if (p.row_norm && p.dq_parts[block] != 0) {
    sums.norms = p.head_norms[(batch * p.heads_q + head) / p.group];
    if (have_one_scale(sums.norms)) {
      const i64 stat =
          head * p.stat_rows + sequence.q_slot * i64(p.sequences.slot_len_q) + sequence.q_begin + tile * tile_q;
      sums.row_norm = p.row_norm + stat;
      sums.row_delta = p.row_delta + stat;
      sums.valid_rows = sequence.len_q - tile * tile_q;
      sums.offset = u64(p.dq_parts[block]) * kOffsetBits;  // the low half of DqTurns::kOpen times it is 0
    }
  }
  const i64 base =
      head * rows.stride_head + query_row_offset(sequence, tile * tile_q, rows.stride_batch, rows.stride_row);
  const i32 valid_rows = sequence.slot_len_q - tile * tile_q;
  const Worker worker = {i32(threadIdx.x), threads};
  if (backward_transposes_dq(tile_q))
    store_transposed(p.dq, sums, base, dim, tile_q, valid_rows, worker);
  else
    store_rows(p.dq, sums, p.dq_by_columns, kMayHavePairs && p.dq_in_pairs, base, dim, tile_q, valid_rows, worker);
}

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::BackwardFinishParams params) {
  if (!mica::lets_keys_begin(params)) mica::griddepcontrol_launch_dependents();
  mica::backward_finish<MICA_DIM_QK, MICA_TILE_Q, 32 * MICA_WARPS>(params);
}
