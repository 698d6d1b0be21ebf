// SPDX-License-Identifier: Apache-2.0
// Before backward: the statistics of every query row (LSE in log2 units, delta = row sum of dO * O less dLSE), where dQ
// is summed in whole numbers the norms of dO's rows and of the keys, zeros for the sums and counts in the workspace
// that begin with them, and packed sequences in the order of their lengths. A group of lanes shares a row;
// memory-bound.
#pragma once

#include "device/attend.cuh"
#include "kernels/packed/packed_order.h"
#include "kernels/params.h"
#include "kernels/whole/key_norms.cuh"

namespace mica {

template <class Element>
MICA_DEVICE float dot_8(const uint4& x, const uint4& y) {
  const u32 xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 a = unpack<Element>(xs[i]), b = unpack<Element>(ys[i]);
    sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
  }
  return sum;
}
MICA_DEVICE uint4 load_8(const RowsArg& t, i64 at) {
  return *reinterpret_cast<const uint4*>(static_cast<const u16*>(t.data) + at);
}
// Rows of O or dO of any type, from `column` on; elements past dim count as zero. vectors: both rows can be read 16
// bytes at a time.
struct TypedRows {
  const RowsArg& rows;
  i64 offset;
  i32 dtype;
};
MICA_DEVICE float dot_8_of_any(const TypedRows& a, const TypedRows& b, i32 column, i32 dim, bool vectors) {
  if (vectors) {
    const uint4 x = load_8(a.rows, a.offset + column), y = load_8(b.rows, b.offset + column);
    return a.dtype == MICA_BF16 ? dot_8<Bf16>(x, y) : dot_8<Fp16>(x, y);
  }
  float sum = 0.0f;
#pragma unroll
  for (int e = 0; e < 8; ++e)
    if (column + e < dim)
      sum += load_as_float(a.rows.data, a.offset + column + e, a.dtype) *
             load_as_float(b.rows.data, b.offset + column + e, b.dtype);
  return sum;
}

// 8 elements of dO in q's type.
MICA_DEVICE void convert_8(const BackwardPrepareParams& p, i64 d_o, i64 slot, i64 slot_row, i32 head, i32 column) {
  const i64 to = slot * p.converted.stride_batch + slot_row * p.converted.stride_row + head * p.converted.stride_head;
#pragma unroll
  for (int e = 0; e < 8; ++e)
    if (column + e < p.dim_v)
      store_float(p.converted.data, to + column + e, p.converted_dtype,
                  load_as_float(p.d_o.data, d_o + column + e, p.d_o_dtype));
}

// The row of a query head. slot: of the batch; packed: 0, and row counts through all sequences.
struct StatRow {
  i32 head, row, slot;
};
// Counts heads, then rows (or blocks of rows) of a slot, then slots.
template <class Count>
MICA_DEVICE StatRow stat_row(Count item, Count heads, Count rows) {
  const Count row = item / heads, slot = row / rows;
  return {i32(item - row * heads), i32(row - slot * rows), i32(slot)};
}
// `step` further on: digits with carries, since divisions would take longer than the sums.
MICA_DEVICE StatRow advance(const StatRow& at, const StatRow& step, i32 heads, i32 rows) {
  StatRow next = {at.head + step.head, at.row + step.row, at.slot + step.slot};
  const bool next_row = next.head >= heads;
  next.head -= next_row ? heads : 0;
  next.row += next_row;
  const bool next_slot = next.row >= rows;
  next.row -= next_slot ? rows : 0;
  next.slot += next_slot;
  return next;
}

MICA_DEVICE i64 offset_of(const RowsArg& t, const StatRow& at) {
  return at.slot * t.stride_batch + at.row * t.stride_row + at.head * t.stride_head;
}
// norm: of dO's row.
MICA_DEVICE void store_stats(const BackwardPrepareParams& p, const StatRow& at, float lse, float delta, float norm) {
  if (p.d_lse)
    delta -= p.d_lse[at.slot * p.d_lse_stride_batch + at.head * p.d_lse_stride_head + at.row * p.d_lse_stride_row];
  const i64 stat = at.head * p.stat_rows + i64(at.slot) * p.rows_per_batch + at.row;
  p.row_lse[stat] = backward_reference<FloatMath>(lse);
  p.row_delta[stat] = delta;
  if (p.row_norm) p.row_norm[stat] = lse == lse ? norm : lse;  // without a number there is no bound
}
MICA_DEVICE float lse_of(const BackwardPrepareParams& p, const StatRow& at) {
  return p.lse[at.slot * p.lse_stride_batch + at.head * p.lse_stride_head + at.row * p.lse_stride_row];
}
template <int lanes>
MICA_DEVICE float sum_of_lanes(float x) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

// The largest magnitude, of bits: that of no number is the largest.
template <class Element, int pieces>
MICA_DEVICE float largest_of_pieces(const uint4 (&x)[pieces]) {
  float largest = 0.0f;
#pragma unroll
  for (int n = 0; n < pieces; ++n) {
    const u32 words[4] = {x[n].x, x[n].y, x[n].z, x[n].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack<Element>(words[i]);
      largest = larger(largest, larger(fabsf(pair.x), fabsf(pair.y)));
    }
  }
  return largest;
}
template <int lanes>
MICA_DEVICE float largest_of_lanes(float x) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) x = larger(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}

// The same of a row of any type.
MICA_DEVICE float largest_8_of_any(const TypedRows& a, i32 column, i32 dim) {
  float largest = 0.0f;
#pragma unroll
  for (int e = 0; e < 8; ++e)
    if (column + e < dim) largest = larger(largest, fabsf(load_as_float(a.rows.data, a.offset + column + e, a.dtype)));
  return largest;
}
// Whether the sum of a row's squares has its norm as a root. Else the norm is as many times its largest element at
// most.
MICA_DEVICE bool keeps_root(float square) { return square > 1e-30f && square < 1e30f; }
constexpr float kMostRoot = 23.0f;  // of 512 columns

// Any rows, by 16 lanes each.
MICA_DEVICE void prepare_any(const BackwardPrepareParams& p, i64 thread, i64 threads, bool vectors) {
  constexpr i32 kLanes = 16;
  const i64 items = p.stat_rows * p.heads_q;
  const i32 lane = threadIdx.x % kLanes;
  for (i64 item = thread / kLanes; item < round_up<i64>(items, 2); item += threads / kLanes) {
    const bool inside = item < items;
    const StatRow at = stat_row<i64>(inside ? item : 0, p.heads_q, p.rows_per_batch);
    const TypedRows o = {p.o, offset_of(p.o, at), p.o_dtype}, d_o = {p.d_o, offset_of(p.d_o, at), p.d_o_dtype};
    float delta = 0.0f, square = 0.0f, largest = 0.0f;
#pragma unroll 1
    for (i32 column = lane * 8; inside && column < p.dim_v; column += kLanes * 8) {
      delta += dot_8_of_any(o, d_o, column, p.dim_v, vectors);
      if (p.row_norm) {
        square += dot_8_of_any(d_o, d_o, column, p.dim_v, vectors);
        largest = larger(largest, largest_8_of_any(d_o, column, p.dim_v));
      }
      if (p.converted.data) convert_8(p, d_o.offset, at.slot, at.row, at.head, column);
    }
    delta = sum_of_lanes<kLanes>(delta);
    if (p.row_norm) square = sum_of_lanes<kLanes>(square);
    if (p.row_norm) largest = largest_of_lanes<kLanes>(largest);
    if (inside && lane == 0)
      store_stats(p, at, lse_of(p, at), delta, keeps_root(square) ? sqrtf(square) : kMostRoot * largest);
  }
}

// Sums in the workspace, 16 bytes at a time, by all threads of the grid.
struct Zeros {
  const BackwardPrepareParams& p;
  i64 at, step;

  MICA_DEVICE bool are_left() const { return at < (p.first_zeros + p.other_zeros) / 4; }
  MICA_DEVICE void store_one() {
    if (!are_left()) return;
    const i64 others = at * 4 < p.first_zeros ? 0 : (p.others_begin - p.first_zeros) / 4;
    reinterpret_cast<float4*>(p.zeros)[at + others] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    at += step;
  }
};

template <class Element, int pieces>
MICA_DEVICE float dot_8_of_pieces(const uint4 (&x)[pieces], const uint4 (&y)[pieces]) {
  float sum = 0.0f;
#pragma unroll
  for (int n = 0; n < pieces; ++n) sum += dot_8<Element>(x[n], y[n]);
  return sum;
}

// Rows of at most 8 * lanes * pieces columns that can be read 16 bytes at a time: a warp takes neighbouring rows of a
// head, whose statistics lie beside each other, `rows` a group of lanes, so that their loads are under way together,
// and zeros are written meanwhile: of as many columns of dQ as there are of O. What a warp does beside the loads must
// be little: it takes as long as they do.
template <class Element, int lanes, int pieces, int rows>
MICA_DEVICE void prepare_rows(const BackwardPrepareParams& p, u32 thread, u32 threads, Zeros& zeros) {
  constexpr int kZeros = 2 * rows * pieces, kGroups = 32 / lanes, kBlock = rows * kGroups;
  if (p.stat_rows == 0) return;
  const u32 heads = u32(p.heads_q), blocks = u32(ceil_div(p.rows_per_batch, kBlock)), warps = threads / 32;
  const u32 slots = u32(p.stat_rows / p.rows_per_batch), units = slots * blocks * heads;  // a unit is 128 bytes or more
  const i32 group = i32(thread % 32) / lanes, lane = i32(thread) % lanes;
  const StatRow step = stat_row(warps, heads, blocks);
  StatRow block = stat_row(thread / 32, heads, blocks);
  for (u32 unit = thread / 32; unit < units; unit += warps, block = advance(block, step, p.heads_q, i32(blocks))) {
    const StatRow first = {block.head, block.row * kBlock + group, block.slot};  // row i is i * kGroups further on
    const i64 from_o = offset_of(p.o, first) + lane * 8, from_do = offset_of(p.d_o, first) + lane * 8;
    uint4 o[rows][pieces], d_o[rows][pieces];
#pragma unroll
    for (int i = 0; i < rows; ++i)
#pragma unroll
      for (int n = 0; n < pieces; ++n) {
        o[i][n] = d_o[i][n] = make_uint4(0, 0, 0, 0);
        if (first.row + i * kGroups < p.rows_per_batch && (n * lanes + lane) * 8 < p.dim_v) {
          o[i][n] = load_8(p.o, from_o + i * kGroups * p.o.stride_row + n * lanes * 8);
          d_o[i][n] = load_8(p.d_o, from_do + i * kGroups * p.d_o.stride_row + n * lanes * 8);
        }
      }
    const StatRow own = {block.head, first.row + lane * kGroups, block.slot};  // lane i writes what belongs to row i
    const bool writes = lane < rows && own.row < p.rows_per_batch;
    const float own_lse = writes ? lse_of(p, own) : 0.0f;
    if (zeros.are_left())
#pragma unroll 1
      for (int i = 0; i < kZeros; ++i) zeros.store_one();
    float own_delta = 0.0f, own_square = 1.0f;
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      const float delta = sum_of_lanes<lanes>(dot_8_of_pieces<Element>(o[i], d_o[i]));
      if (lane == i) own_delta = delta;
      if (!p.row_norm) continue;
      const float square = sum_of_lanes<lanes>(dot_8_of_pieces<Element>(d_o[i], d_o[i]));
      if (lane == i) own_square = square;
    }
    float own_norm = 0.0f;
    if (p.row_norm) {
      own_norm = sqrtf(own_square);
      if (!__all_sync(0xffffffffu, keeps_root(own_square)))
#pragma unroll
        for (int i = 0; i < rows; ++i) {
          const float largest = largest_of_lanes<lanes>(largest_of_pieces<Element>(d_o[i]));
          if (lane == i && !keeps_root(own_square)) own_norm = kMostRoot * largest;
        }
    }
    if (writes) store_stats(p, own, own_lse, own_delta, own_norm);
  }
}
template <class Element>
MICA_DEVICE void prepare_rows(const BackwardPrepareParams& p, u32 thread, u32 threads, Zeros& zeros) {
  if (p.dim_v <= 64)
    prepare_rows<Element, 4, 2, 2>(p, thread, threads, zeros);
  else if (p.dim_v <= 96)
    prepare_rows<Element, 4, 3, 1>(p, thread, threads, zeros);
  else if (p.dim_v <= 128)
    prepare_rows<Element, 4, 4, 1>(p, thread, threads, zeros);
  else
    prepare_rows<Element, 8, 4, 1>(p, thread, threads, zeros);
}

// The norms of a chunk of a head's keys by each block, some lanes a key. The copy engine reads these rows later: they
// can be read 16 bytes at a time. of_warps: in shared memory.
template <class Element, int kLanes>
MICA_DEVICE void measure_keys(const BackwardPrepareParams& p, u32 own_block, u32 blocks, KeyNorms* of_warps) {
  constexpr int kPieces = 4;
  const i32 kGroups = i32(blockDim.x) / kLanes;
  const i32 group = i32(threadIdx.x) / kLanes, lane = i32(threadIdx.x) % kLanes, warps = i32(blockDim.x) / 32;
  const u32 units = u32(p.batch * p.heads_k) * kNormChunks;
  for (u32 unit = own_block; unit < units; unit += blocks) {
    const i32 head_of_all = i32(unit / kNormChunks), batch = head_of_all / p.heads_k,
              head = head_of_all - batch * p.heads_k;
    const Sequence sequence = sequence_of(p.sequences, batch);
    const i32 each = keys_of_norm_chunk(sequence.len_k), first = i32(unit % kNormChunks) * each;
    const i32 end = min_of(first + each, sequence.len_k);
    if (first >= end) continue;
    const auto row_of = [&](const RowsArg& t) {
      return sequence.k_slot * t.stride_batch + sequence.k_begin * t.stride_row + head * t.stride_head + lane * 8;
    };
    const i64 k_row = row_of(p.k), v_row = row_of(p.v);
    KeyNorms norms = {};
#pragma unroll 1
    for (i32 key = first + group; key - group < end; key += kGroups) {
      uint4 k[kPieces], v[kPieces];
#pragma unroll
      for (int n = 0; n < kPieces; ++n) {
        const i32 column = (n * kLanes + lane) * 8;
        k[n] = v[n] = make_uint4(0, 0, 0, 0);
        if (key < end && column < p.dim_qk) k[n] = load_8(p.k, k_row + key * p.k.stride_row + n * kLanes * 8);
        if (key < end && column < p.dim_v) v[n] = load_8(p.v, v_row + key * p.v.stride_row + n * kLanes * 8);
      }
      const float norm_k = largest_of_lanes<kLanes>(largest_of_pieces<Element>(k));
      const float norm_v = sqrtf(sum_of_lanes<kLanes>(dot_8_of_pieces<Element>(v, v)));
      const bool has_k = lane == 0 && norm_k != 0.0f, has_v = lane == 0 && norm_v != 0.0f;
      add_norms(norms, KeyNorms{norm_k, norm_v, has_k ? exponent_of(norm_k) : 0, has_v ? exponent_of(norm_v) : 0, has_k,
                                has_v});
    }
    norms = join_norms(norms);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = norms;
    __syncthreads();
    if (threadIdx.x < 32) {
      norms = join_norms(i32(threadIdx.x) < warps ? of_warps[threadIdx.x] : KeyNorms{});
      if (threadIdx.x == 0) p.key_norms[unit] = norms;
    }
    __syncthreads();
  }
}

template <class Element>
MICA_DEVICE void measure_keys(const BackwardPrepareParams& p, u32 block, u32 blocks, KeyNorms* of_warps) {
  constexpr i32 kNarrow = 128;
  if (max_of(p.dim_qk, p.dim_v) <= kNarrow)
    measure_keys<Element, 4>(p, block, blocks, of_warps);
  else
    measure_keys<Element, 8>(p, block, blocks, of_warps);
}

// What decides a packed sequence's place.
struct SequenceSize {
  i32 len_q, tiles_k;
};
// Packed sequences from the one with the most queries on, by one block: each thread finds the place of its sequences.
// sizes: of all of them, in shared memory.
MICA_DEVICE void order_sequences(const BackwardPrepareParams& p, SequenceSize* sizes) {
  i32* items = p.packed_order + p.batch;
  for (i32 own = threadIdx.x; own < p.batch; own += blockDim.x) {
    const Sequence sequence = sequence_of(p.sequences, own);
    sizes[own] = {sequence.len_q, ceil_div(sequence.slot_len_k, p.tile_k)};
  }
  __syncthreads();
  for (i32 own = threadIdx.x; own < p.batch; own += blockDim.x) {
    const SequenceSize size = sizes[own];
    i32 place = 0, tiles_before = 0;
#pragma unroll 4
    for (i32 other = 0; other < p.batch; ++other) {
      const SequenceSize s = sizes[other];
      const bool is_before = s.len_q > size.len_q || (s.len_q == size.len_q && other < own);
      place += is_before;
      tiles_before += is_before ? s.tiles_k : 0;
    }
    p.packed_order[place] = own;
    items[place] = tiles_before * p.heads_k;
    if (place == p.batch - 1) items[p.batch] = (tiles_before + size.tiles_k) * p.heads_k;
  }
}

MICA_DEVICE void backward_prepare(const BackwardPrepareParams& p, SequenceSize* sizes, KeyNorms* of_warps) {
  const i32 ordering = p.packed_order != nullptr;  // one block does nothing else
  if (ordering && blockIdx.x == 0) {
    order_sequences(p, sizes);
    return;
  }
  const u32 blocks = gridDim.x - ordering, block = blockIdx.x - ordering;
  u32 measured = 0;  // keys, by the first blocks, which take longest; rows begin with those after them
  if (p.key_norms) {
    if (p.keys_dtype == MICA_BF16)
      measure_keys<Bf16>(p, block, blocks, of_warps);
    else
      measure_keys<Fp16>(p, block, blocks, of_warps);
    measured = u32(p.batch * p.heads_k) * kNormChunks % blocks;
  }
  const i64 thread = i64(block >= measured ? block - measured : block + blocks - measured) * blockDim.x + threadIdx.x;
  const i64 threads = i64(blocks) * blockDim.x;
  Zeros zeros{p, thread, threads};
  const bool vectors = p.o_dtype == p.d_o_dtype && p.o_dtype != MICA_FP32 && !p.unaligned;
  if (!vectors || p.converted.data || p.dim_v > 256)
    prepare_any(p, thread, threads, vectors);
  else if (p.o_dtype == MICA_BF16)
    prepare_rows<Bf16>(p, u32(thread), u32(threads), zeros);
  else
    prepare_rows<Fp16>(p, u32(thread), u32(threads), zeros);
  while (zeros.are_left()) zeros.store_one();
}

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, 3)
    MICA_KERNEL_NAME(const __grid_constant__ mica::BackwardPrepareParams params) {
  __shared__ mica::SequenceSize sizes[mica::kMostOrderedSequences];
  __shared__ mica::KeyNorms of_warps[MICA_WARPS];
  mica::griddepcontrol_launch_dependents();
  mica::backward_prepare(params, sizes, of_warps);
}
