// SPDX-License-Identifier: Apache-2.0
// A (rows, dim) tile of 16-bit elements in shared memory, swizzled in chunks of 16 bytes so that eight rows of one
// column lie in eight different bank groups: ldmatrix then never conflicts.
#pragma once

#include "device/ptx.cuh"

namespace mica {

template <int dim>
struct SharedTile {
  static_assert(dim % 32 == 0);
  static constexpr int kColumns = dim;
  static constexpr int kRowBytes = dim * 2;
  static constexpr int kChunks = dim / 8;
  // Rows that are a multiple of 128 bytes start at bank 0: three bits of the row choose the chunk. Rows of 64 (mod 128)
  // bytes alternate between two halves by themselves: two bits are enough.
  static constexpr bool kWide = kRowBytes % 128 == 0;

  static MICA_DEVICE int swizzle(int row) { return kWide ? row & 7 : (row >> 1) & 3; }
  static MICA_DEVICE u32 offset(int row, int chunk) { return row * kRowBytes + ((chunk ^ swizzle(row)) << 4); }

  // From the address of (row, chunk) with chunk 0 or 1 to that of (row, chunk + 2 * step).
  static MICA_DEVICE u32 step(u32 address, int step) {
    constexpr int kLow = kWide ? 127 : 63;
    return (address ^ ((step * 32) & kLow)) + ((step * 32) & ~kLow);
  }
};

// A thread's share of copying full (rows, dim) tiles: chunk `column` of every `kRowStep`-th row. The shared offset of a
// share differs from that of the next by a constant, since the swizzle repeats every eight rows.
template <int dim, int rows, int threads>
struct TileCopy {
  using Tile = SharedTile<dim>;
  static constexpr int kRowStep = threads / Tile::kChunks;
  static constexpr bool kRegular = threads % Tile::kChunks == 0 && rows % kRowStep == 0 && kRowStep % 8 == 0;

  // The element offset of this thread's first chunk, and its offset in shared memory.
  static MICA_DEVICE i64 global_offset(i64 stride_row) {
    return i64(threadIdx.x / Tile::kChunks) * stride_row + threadIdx.x % Tile::kChunks * 8;
  }
  static MICA_DEVICE u32 shared_offset() {
    return Tile::offset(threadIdx.x / Tile::kChunks, threadIdx.x % Tile::kChunks);
  }

  // shared and global: already moved by the offsets above.
  static MICA_DEVICE void copy(u32 shared, const u16* global, i64 stride_row) {
#pragma unroll
    for (int i = 0; i < rows / kRowStep; ++i)
      cp_async_16(shared + i * kRowStep * Tile::kRowBytes, global + i * (kRowStep * stride_row));
  }
  // The same in a loop, where the addresses of an unrolled one would take registers that are needed.
  static MICA_DEVICE void copy_in_loop(u32 shared, const u16* global, i64 stride_row) {
#pragma unroll 1
    for (int i = 0; i < rows / kRowStep; ++i) {
      cp_async_16(shared, global);
      shared += kRowStep * Tile::kRowBytes;
      global += kRowStep * stride_row;
    }
  }
};

// Copies rows [0, rows) of a global tile; rows past valid_rows and columns past valid_dim arrive as zeros.
template <int dim, int rows, int threads>
MICA_DEVICE void load_tile(u32 shared, const u16* global, i64 stride_row, i32 valid_rows, i32 valid_dim) {
  using Tile = SharedTile<dim>;
  constexpr int kTotal = rows * Tile::kChunks;
  const int thread = threadIdx.x;
#pragma unroll
  for (int i = 0; i < (kTotal + threads - 1) / threads; ++i) {
    const int index = i * threads + thread;
    if (kTotal % threads != 0 && index >= kTotal) break;
    const int row = index / Tile::kChunks, chunk = index % Tile::kChunks;
    const bool inside = row < valid_rows && chunk * 8 < valid_dim;
    cp_async_16(shared + Tile::offset(row, chunk), inside ? global + row * stride_row + chunk * 8 : global,
                inside ? 16 : 0);
  }
}

// 16 bytes of a row, from `column` on; those past valid_dim become zeros.
MICA_DEVICE void store_bytes(u32 destination, const u8* row, i32 column, i32 valid_dim) {
  u32 words[4] = {0, 0, 0, 0};
#pragma unroll
  for (int e = 0; e < 16; ++e)
    if (column + e < valid_dim) words[e / 4] |= u32(row[column + e]) << (e % 4 * 8);
  store_shared_16(destination, words);
}

// The same with an address per row (pages), and element by element where rows do not start at 16 bytes.
template <int dim, int rows, int threads, class RowAt>
MICA_DEVICE void load_tile_by_rows(u32 shared, RowAt row_at, bool aligned, i32 valid_rows, i32 valid_dim) {
  using Tile = SharedTile<dim>;
#pragma unroll 1
  for (int index = threadIdx.x; index < rows * Tile::kChunks; index += threads) {
    const int row = index / Tile::kChunks, chunk = index % Tile::kChunks;
    const bool inside = row < valid_rows && chunk * 8 < valid_dim;
    const u16* source = row_at(inside ? row : 0) + (inside ? chunk * 8 : 0);
    const u32 destination = shared + Tile::offset(row, chunk);
    if (aligned) {
      cp_async_16(destination, source, inside ? 16 : 0);
    } else {
      u32 words[4] = {0, 0, 0, 0};
#pragma unroll
      for (int e = 0; e < 8; ++e)
        if (inside && chunk * 8 + e < valid_dim) words[e / 2] |= u32(source[e]) << (e % 2 * 16);
      store_shared_16(destination, words);
    }
  }
}

}  // namespace mica
