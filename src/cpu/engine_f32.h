// SPDX-License-Identifier: Apache-2.0
// The fp32 engine: B in panels of kCols columns, [panel][depth][kCols]; a block of kRows x kCols lives in registers.
#pragma once

#include "cpu/engine.h"

namespace MICA_NS {

struct EngineF32 {
  using Element = float;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
  static constexpr i32 kRows = 6;  // 12 of 16 registers accumulate
#else
  static constexpr i32 kRows = 8;
#endif
  static constexpr i32 kVectors = 2;
  static constexpr i32 kCols = kVectors * kLanes;
  static constexpr i32 kDepth = 1;

  static void begin() {}
  static void end() {}

  static i64 packed_b_elements(i32 depth, i32 cols) { return i64(round_up(cols, kCols)) * depth; }

  template <class RowAt>
  static void pack_b(float* dst, const RowAt& row_at, i32 dtype, i32 depth, i32 cols) {
    float row[kMaxDim + kCols];
    const i32 padded = round_up(cols, kCols);
    for (i32 k = 0; k < depth; ++k) {
      load_row(row, row_at(k), dtype, cols);
      for (i32 c = cols; c < padded; ++c) row[c] = 0;
      for (i32 c = 0; c < padded; c += kCols)
        for (i32 v = 0; v < kVectors; ++v)
          store(load(row + c + v * kLanes), dst + i64(c) * depth + k * kCols + v * kLanes);
    }
  }

  template <class RowAt>
  static void pack_b_transposed(float* dst, const RowAt& row_at, i32 dtype, i32 depth, i32 cols) {
    float row[kMaxDim];
    const i32 padded = round_up(cols, kCols);
    for (i32 c = 0; c < padded; ++c) {
      float* column = dst + i64(c / kCols) * kCols * depth + c % kCols;
      if (c < cols) {
        load_row(row, row_at(c), dtype, depth);
        for (i32 k = 0; k < depth; ++k) column[k * kCols] = row[k];
      } else {
        for (i32 k = 0; k < depth; ++k) column[k * kCols] = 0;
      }
    }
  }

  static void multiply(const float* a, i64 ld_a, const float* b, float* c, i64 ld_c, i32 rows, i32 cols, i32 depth,
                       bool accumulate) {
    for (i32 col = 0; col < cols; col += kCols)
      for (i32 row = 0; row < rows; row += kRows)
        block(a + row * ld_a, ld_a, b + i64(col) * depth, c + row * ld_c + col, ld_c, depth, accumulate);
  }

 private:
  static HWY_INLINE void block(const float* a, i64 ld_a, const float* b, float* c, i64 ld_c, i32 depth,
                               bool accumulate) {
    Vector sum[kRows][kVectors];
#pragma GCC unroll 8
    for (i32 r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (i32 v = 0; v < kVectors; ++v) sum[r][v] = accumulate ? load(c + r * ld_c + v * kLanes) : set(0);
    for (i32 k = 0; k < depth; ++k) {
      Vector right[kVectors];
#pragma GCC unroll 4
      for (i32 v = 0; v < kVectors; ++v) right[v] = load(b + k * kCols + v * kLanes);
#pragma GCC unroll 8
      for (i32 r = 0; r < kRows; ++r) {
        const Vector left = set(a[r * ld_a + k]);
#pragma GCC unroll 4
        for (i32 v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(left, right[v], sum[r][v]);
      }
    }
#pragma GCC unroll 8
    for (i32 r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (i32 v = 0; v < kVectors; ++v) store(sum[r][v], c + r * ld_c + v * kLanes);
  }
};

}  // namespace MICA_NS
