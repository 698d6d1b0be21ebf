// SPDX-License-Identifier: Apache-2.0
// The last block of a tile of packed rows (parts/packed_rows.cuh) to be done with its split joins the parts of all
// splits, as combine.cuh would, bit for bit: so the call is one launch. Blocks of two key heads have half of their
// warps for each.
#pragma once

#include "device/attend.cuh"
#include "device/last_block_sm90.cuh"
#include "kernels/options/joined_splits.h"
#include "kernels/params.h"

namespace mica {

template <class Tile, int tile_q, int dim_v>
struct SplitJoiner {
  using Row = typename Tile::Row;
  using State = SoftmaxState<FloatMath>;
  const ForwardParams& p;
  const Tile& rows;
  u8* smem;
  i32 own_head;       // of the block's
  i32 thread, warps;  // of those that have it

  // When it is known that the tile has rows.
  MICA_DEVICE void begin() const {
    if (joins() && threadIdx.x == 0) last_block().begin();
  }
  // When every thread has written what it has of the split's part; shared memory is free then.
  MICA_DEVICE void join_if_last() const {
    if (!joins()) return;
    __syncthreads();
    const Room room = own_room();
    if (thread < rows.rows) room.row[thread] = rows.row_at(thread);
    const bool is_last = threadIdx.x != 0 || last_block().arrive(rows.num_splits());
    if (!barrier_all(1, blockDim.x, is_last)) return;
    fetch(room);
    join(room);
  }

 private:
  // Sequences that are whole have nothing to join.
  MICA_DEVICE bool joins() const { return p.work_counter && rows.num_splits() > 1; }

  // What joined_splits says.
  struct Room {
    float* o;
    float* shares;  // LSE before
    State* states;
    Row* row;
  };
  MICA_DEVICE Room own_room() const {
    const JoinedSplits at = joined_splits(rows.num_splits(), rows.rows, dim_v);
    u8* const own = smem + own_head * at.bytes;
    return {reinterpret_cast<float*>(own), reinterpret_cast<float*>(own + at.lse),
            reinterpret_cast<State*>(own + at.state), reinterpret_cast<Row*>(own + at.row)};
  }

  // Where a row's part is, among those of one split, and how far it is to the next split's.
  MICA_DEVICE i64 part_row(const Row& r) const {
    const Sequence& s = rows.sequence;
    return r.head * p.partial_rows + s.q_slot * i64(p.sequences.slot_len_q) + s.q_begin + r.query;
  }
  MICA_DEVICE i64 split_step() const { return i64(p.heads_q) * p.partial_rows; }
  // The tile's blocks have the word of its first row.
  MICA_DEVICE LastBlock last_block() const {
    return {p.work_counter + part_row({rows.query_begin, rows.head_begin}), p.work_epoch};
  }

  // All parts to shared memory, so that memory is waited for once; while O is on its way the LSE become shares.
  MICA_DEVICE void fetch(const Room& room) const {
    constexpr i32 kChunks = dim_v / 4;
    const i32 n = rows.num_splits();
#pragma unroll 1
    for (i32 index = thread; index < n * tile_q; index += 32 * warps) {
      const i32 r = index % tile_q, split = index / tile_q;
      if (r < rows.rows)
        cp_async_4(shared_address(room.shares + r * n + split),
                   p.partial_lse + split * split_step() + part_row(room.row[r]));
    }
    cp_async_commit();
#pragma unroll 1
    for (i32 index = thread; index < rows.rows * kChunks; index += 32 * warps) {
      const i32 column = index % kChunks * 4;
      if (column >= p.dim_v) continue;
      const float* part = p.partial_o + part_row(room.row[index / kChunks]) * p.dim_v + column;
      u32 to = shared_address(room.o + index * 4);
#pragma unroll 4
      for (i32 split = 0; split < n; ++split) {
        cp_async_16(to, part);
        part += split_step() * p.dim_v;
        to += rows.rows * dim_v * 4;
      }
    }
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();  // all LSE are there
#pragma unroll 1
    for (i32 r = uniform_warp() - own_head * warps; r < rows.rows; r += warps) share_out(room, r);
    cp_async_wait<0>();  // of the columns that this thread asked for, and will join
    __syncthreads();     // all shares are there
  }

  // By a warp: the LSE of a row's parts become their shares, relative to the row's maximum.
  MICA_DEVICE void share_out(const Room& room, i32 r) const {
    const i32 lane = threadIdx.x % 32, n = rows.num_splits();
    float* const lse = room.shares + r * n;
    State own = empty_state<FloatMath>();
#pragma unroll 1
    for (i32 split = lane; split < n; split += 32) own = merge<FloatMath>(own, State{lse[split], 1.0f}).state;
    State all = own;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      all.max = fmaxf(all.max, __shfl_xor_sync(0xffffffffu, all.max, distance));
    const float reference = reference_of<FloatMath>(all.max);
    all.sum *= FloatMath::exp2(own.max - reference);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) all.sum += __shfl_xor_sync(0xffffffffu, all.sum, distance);
#pragma unroll 1
    for (i32 split = lane; split < n; split += 32) lse[split] = FloatMath::exp2(lse[split] - reference);
    if (lane == 0) room.states[r] = all;
  }

  // Four columns of a row, splits in the order in which a team of combine.cuh adds them.
  MICA_DEVICE void sum_up(float (&x)[4], const Room& room, i32 r, i32 index) const {
    constexpr i32 kChunks = dim_v / 4, kSplitsOfMember = 4;
    static_assert(combine_team_warps(kMostJoinedSplits, kMostJoinedSplits) * kSplitsOfMember >= kMostJoinedSplits);
    const i32 n = rows.num_splits(), team = combine_team_warps(n, kMostJoinedSplits);
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = -0.0f;  // to which a sum is added as it is
#pragma unroll 2
    for (i32 member = 0; member < team; ++member) {
      float4 part[kSplitsOfMember];
      float share[kSplitsOfMember], sum[4] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < kSplitsOfMember; ++i) {
        const i32 split = member + i * team;
        if (split >= n) continue;
        share[i] = room.shares[r * n + split];
        part[i] = *reinterpret_cast<const float4*>(room.o + (split * rows.rows * kChunks + index) * 4);
      }
#pragma unroll
      for (int i = 0; i < kSplitsOfMember; ++i) {
        if (member + i * team >= n) continue;
        sum[0] = fmaf(part[i].x, share[i], sum[0]);
        sum[1] = fmaf(part[i].y, share[i], sum[1]);
        sum[2] = fmaf(part[i].z, share[i], sum[2]);
        sum[3] = fmaf(part[i].w, share[i], sum[3]);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] += sum[e];
    }
  }

  // The sink, which no part knows of, enters at the end.
  MICA_DEVICE void join(const Room& room) const {
    constexpr i32 kChunks = dim_v / 4;
#pragma unroll 1
    for (i32 index = thread; index < rows.rows * kChunks; index += 32 * warps) {
      const i32 r = index / kChunks, column = index % kChunks * 4;
      if (column >= p.dim_v) continue;
      float x[4], shrink = 1.0f;
      sum_up(x, room, r, index);
      const Row where = room.row[r];
      State state = room.states[r];
      if (p.sinks) {
        const float sink_log2 = load_as_float(p.sinks, where.head * p.sinks_stride, p.sinks_dtype) * kLog2E;
        const Merge<FloatMath> with_sink = merge_sink<FloatMath>(state, sink_log2);
        state = with_sink.state;
        shrink = with_sink.factor_a;
      }
      const float scale = normalizer<FloatMath>(state) * shrink;
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] *= scale;
      rows.store_output(where, column, x, lse_log2<FloatMath>(state));
    }
  }
};

}  // namespace mica
