// SPDX-License-Identifier: Apache-2.0
// Tiles of 16-bit elements in shared memory as wgmma reads them with its 128-byte swizzle.
#pragma once

#include "device/ptx.cuh"

namespace mica {

// A (rows, dim) tile in panels of 64 columns: rows of 128 bytes, swizzled in chunks of 16.
template <int dim, int rows>
struct PanelTile {
  static_assert(dim % 64 == 0 && rows % 8 == 0);
  static constexpr int kPanels = dim / 64;
  static constexpr int kChunks = dim / 8;
  static constexpr int kPanelBytes = rows * 128;
  static constexpr int kBytes = rows * dim * 2;
  static MICA_DEVICE u32 offset(int row, int chunk) {
    return chunk / 8 * kPanelBytes + row * 128 + ((chunk % 8 ^ row % 8) << 4);
  }

  // By the first `threads` threads of a warpgroup; rows past valid_rows and columns past valid_dim arrive as zeros.
  template <int threads = 128>
  static MICA_DEVICE void load(u32 shared, const u16* global, i64 stride_row, i32 valid_rows, i32 valid_dim) {
    constexpr int kRowStep = threads / kChunks;
    static_assert(threads % kChunks == 0 && rows % kRowStep == 0);
    const int thread = threadIdx.x % threads, first = thread / kChunks, chunk = thread % kChunks;
    const u16* source = global + first * stride_row + chunk * 8;
    if (valid_rows >= rows && valid_dim == dim) {
      // The swizzle comes again after kPeriod steps: a copy costs the addition of a stride, and no more.
      constexpr int kSteps = rows / kRowStep, kPeriod = kRowStep < 8 ? 8 / kRowStep : 1;
      constexpr int kUnrolled = kSteps % 8 == 0 ? 8 : kPeriod;
      static_assert(kSteps % kUnrolled == 0 && kUnrolled % kPeriod == 0);
      u32 to[kPeriod];
#pragma unroll
      for (int i = 0; i < kPeriod; ++i) to[i] = shared + offset(first + i * kRowStep, chunk);
      const i64 step = kRowStep * stride_row;
#pragma unroll 1
      for (int done = 0; done < kSteps; done += kUnrolled) {
#pragma unroll
        for (int i = 0; i < kUnrolled; ++i, source += step)
          cp_async_16(to[i % kPeriod] + i / kPeriod * (kPeriod * kRowStep * 128), source);
#pragma unroll
        for (int i = 0; i < kPeriod; ++i) to[i] += kUnrolled * kRowStep * 128;
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < rows / kRowStep; ++i) {
        const bool inside = first + i * kRowStep < valid_rows && chunk * 8 < valid_dim;
        cp_async_16(shared + offset(first + i * kRowStep, chunk),
                    inside ? source + i * (kRowStep * stride_row) : global, inside ? 16 : 0);
      }
    }
  }
};

}  // namespace mica
