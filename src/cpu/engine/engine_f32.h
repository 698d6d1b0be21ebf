// SPDX-License-Identifier: Apache-2.0
// The fp32 engine: B in panels of kCols columns, [panel][depth][kCols]; a block of kRows x kCols of C lives in
// registers, or one of kRows x kLanes where no more columns are left.
#pragma once

#include "cpu/engine/engine.h"

namespace MICA_NS {

struct EngineF32 {
  using Element = float;
  static constexpr i32 kVectors = 2;  // of a row of the block
  static constexpr i32 kStreamedRows = 16;
  static constexpr i32 kCols = kVectors * kLanes;
#if HWY_TARGET == HWY_NEON
  // Multiplies by a lane of a register; rows of A are transposed in blocks of four.
  static constexpr i32 kRows = 8, kDepth = 4;
  static constexpr i32 kMaxDepth = 1024;  // of one product
#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
  static constexpr i32 kRows = 6, kDepth = 1;  // 12 of 16 registers accumulate
#else
  static constexpr i32 kRows = 8, kDepth = 1;
#endif

  static void begin() {}
  static void end() {}

  static i64 packed_b_elements(i32 depth, i32 cols) { return i64(round_up(cols, kCols)) * round_up(depth, kDepth); }

  template <class RowAt>
  static void pack_b(float* dst, const RowAt& row_at, i32 dtype, i32 depth, i32 cols) {
    if (dtype == MICA_FP32)
      pack_across<MICA_FP32>(dst, row_at, depth, cols);
    else if (dtype == MICA_BF16)
      pack_across<MICA_BF16>(dst, row_at, depth, cols);
    else
      pack_across<MICA_FP16>(dst, row_at, depth, cols);
  }

  template <class RowAt>
  static void pack_b_transposed(float* dst, const RowAt& row_at, i32 dtype, i32 depth, i32 cols) {
    if (dtype == MICA_FP32)
      pack_along<MICA_FP32>(dst, row_at, depth, cols);
    else if (dtype == MICA_BF16)
      pack_along<MICA_BF16>(dst, row_at, depth, cols);
    else
      pack_along<MICA_FP16>(dst, row_at, depth, cols);
  }

  static void multiply(const float* a, i64 ld_a, const float* b, float* c, i64 ld_c, i32 rows, i32 cols, i32 depth,
                       bool accumulate, i32 packed_depth = 0) {
    const i32 padded_depth = round_up(depth, kDepth);
    const i64 panel_depth = round_up(max_of(depth, packed_depth), kDepth);
#if HWY_TARGET == HWY_NEON
    if (padded_depth > kMaxDepth) __builtin_trap();  // a defect of the plan; the panel lies on the stack
    for (i32 row = 0; row < rows; row += kRows) {
      float panel[kMaxDepth * kRows];
      pack_rows(panel, a + row * ld_a, ld_a, padded_depth);
      for (i32 col = 0; col < cols; col += kCols)
        block(panel, b + col * panel_depth, c + row * ld_c + col, ld_c, padded_depth, accumulate);
    }
#else
    constexpr i32 kChunk = 4 * kRows;          // rows of A that stay in the first-level cache beside a panel of B
    for (i32 chunk = 0; chunk < rows; chunk += kChunk)
      for (i32 col = 0; col < cols; col += kCols)
        for (i32 row = chunk; row < min_of(chunk + kChunk, rows); row += kRows)
          block_of(min_of(rows - row, kRows), cols - col > kLanes)(
              a + row * ld_a, ld_a, b + col * panel_depth, c + row * ld_c + col, ld_c, padded_depth, accumulate);
#endif
  }

 private:
  template <i32 kDtype, class RowAt>
  static void pack_across(float* dst, const RowAt& row_at, i32 depth, i32 cols) {
    constexpr i32 kBytes = kDtype == MICA_FP32 ? 4 : 2;
    const i32 padded_depth = round_up(depth, kDepth), whole = cols - cols % kCols;
    for (i32 k = 0; k < padded_depth; ++k) {
      const char* row = k < depth ? static_cast<const char*>(row_at(k)) : nullptr;
      float* to = dst + k * kCols;
      for (i32 c = 0; c < whole; c += kCols)
        for (i32 v = 0; v < kVectors; ++v)
          store(row ? load_as<kDtype>(row + (c + v * kLanes) * kBytes) : set(0),
                to + i64(c) * padded_depth + v * kLanes);
      if (whole == cols) continue;
      for (i32 v = 0; v < kVectors; ++v) {
        const i32 c = whole + v * kLanes;
        const bool is_there = row && c < cols;
        store(!is_there            ? set(0)
              : c + kLanes <= cols ? load_as<kDtype>(row + c * kBytes)
                                   : load_some<kDtype>(row + c * kBytes, cols - c),
              to + i64(whole) * padded_depth + v * kLanes);
      }
    }
  }

  // Four source rows at a time: 4 x 4 transposes inside each 128 bits.
  template <i32 kDtype, class RowAt>
  static void pack_along(float* dst, const RowAt& row_at, i32 depth, i32 cols) {
    constexpr i32 kBytes = kDtype == MICA_FP32 ? 4 : 2;
    const i32 padded_depth = round_up(depth, kDepth);
    const auto load_at = [](const char* row, i32 k) { return row ? load_as<kDtype>(row + k * kBytes) : set(0); };
    for (i32 c = 0; c < round_up(cols, kCols); c += 4) {
      const char* row[4];
      for (i32 i = 0; i < 4; ++i) row[i] = c + i < cols ? static_cast<const char*>(row_at(c + i)) : nullptr;
      float* to = dst + i64(c / kCols) * kCols * padded_depth + c % kCols;
      i32 k = 0;
      for (; k + kLanes <= depth; k += kLanes)
        store_transposed(FloatTag(), load_at(row[0], k), load_at(row[1], k), load_at(row[2], k), load_at(row[3], k),
                         to + k * kCols, kCols);
      if constexpr (kDtype == MICA_FP32 && kLanes > 4) {  // what is left in parts of a vector
        k = pack_part<kLanes / 2>(row, k, depth, to);
        if constexpr (kLanes > 8) k = pack_part<kLanes / 4>(row, k, depth, to);
      }
      for (; k < padded_depth; ++k)
        for (i32 i = 0; i < 4; ++i) to[k * kCols + i] = row[i] && k < depth ? load_as_float(row[i], k, kDtype) : 0.0f;
    }
  }

  // kPart floats from k on of four rows, some of which may be null, if the depth has so many left. Returns where it is.
  template <i32 kPart>
  static HWY_INLINE i32 pack_part(const char* const (&row)[4], i32 k, i32 depth, float* to) {
    const hn::FixedTag<float, kPart> tag;
    const auto part = [&](i32 i) {
      return row[i] ? hn::LoadU(tag, reinterpret_cast<const float*>(row[i]) + k) : hn::Zero(tag);
    };
    if (k + kPart > depth) return k;
    store_transposed(tag, part(0), part(1), part(2), part(3), to + k * kCols, kCols);
    return k + kPart;
  }

#if HWY_TARGET == HWY_NEON
  // Eight rows of A as [depth][8], so that two loads serve each step of depth.
  static HWY_INLINE void pack_rows(float* dst, const float* a, i64 ld_a, i32 depth) {
    for (i32 half = 0; half < kRows; half += 4) {
      const float* row = a + half * ld_a;
      for (i32 k = 0; k < depth; k += 4)
        store_transposed(FloatTag(), load(row + k), load(row + ld_a + k), load(row + 2 * ld_a + k),
                         load(row + 3 * ld_a + k), dst + k * kRows + half, kRows);
    }
  }

  static HWY_INLINE void block(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, float* HWY_RESTRICT c,
                               i64 ld_c, i32 depth, bool accumulate) {
    Vector sum[kRows][kVectors];
#pragma GCC unroll 8
    for (i32 r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (i32 v = 0; v < kVectors; ++v) sum[r][v] = accumulate ? load(c + r * ld_c + v * kLanes) : set(0);
    for (i32 k = 0; k < depth; ++k, a += kRows, b += kCols) {
      Vector right[kVectors];
#pragma GCC unroll 4
      for (i32 v = 0; v < kVectors; ++v) right[v] = load(b + v * kLanes);
      multiply_lanes<0>(load(a), right, sum);
      multiply_lanes<4>(load(a + 4), right, sum);
    }
#pragma GCC unroll 8
    for (i32 r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (i32 v = 0; v < kVectors; ++v) store(sum[r][v], c + r * ld_c + v * kLanes);
  }

  // Rows kRow to kRow + 3, whose elements of A are the lanes of left.
  template <i32 kRow>
  static HWY_INLINE void multiply_lanes(Vector left, const Vector (&right)[kVectors], Vector (&sum)[kRows][kVectors]) {
#pragma GCC unroll 4
    for (i32 v = 0; v < kVectors; ++v) {
      sum[kRow][v] = Vector(vfmaq_laneq_f32(sum[kRow][v].raw, right[v].raw, left.raw, 0));
      sum[kRow + 1][v] = Vector(vfmaq_laneq_f32(sum[kRow + 1][v].raw, right[v].raw, left.raw, 1));
      sum[kRow + 2][v] = Vector(vfmaq_laneq_f32(sum[kRow + 2][v].raw, right[v].raw, left.raw, 2));
      sum[kRow + 3][v] = Vector(vfmaq_laneq_f32(sum[kRow + 3][v].raw, right[v].raw, left.raw, 3));
    }
  }
#else
  // Row r of a matrix by a pointer for every three rows: an address then needs no register but theirs and the step's,
  // where with one for each row the compiler fetches them from the stack in every step of depth.
  template <class T, i32 rows>
  struct Rows {
    static constexpr i32 kThirds = (rows + 2) / 3;
    T* third[kThirds];
    i64 step;  // elements
    HWY_INLINE Rows(T* first, i64 ld) : step(ld) {
#pragma GCC unroll 3
      for (i32 n = 0; n < kThirds; ++n) third[n] = first + 3 * n * ld;
    }
    HWY_INLINE T* operator[](i32 r) const { return third[r / 3] + r % 3 * step; }
    HWY_INLINE void advance() {
#pragma GCC unroll 3
      for (i32 n = 0; n < kThirds; ++n) ++third[n];
    }
  };

  using Block = void (*)(const float* a, i64 ld_a, const float* b, float* c, i64 ld_c, i32 depth, bool accumulate);

  // As few rows as there are: what lies behind them may be slow to compute with (subnormal numbers).
  static HWY_INLINE Block block_of(i32 rows, bool is_wide) {
    static constexpr Block kNarrow[] = {block<1, 1>, block<2, 1>, block<3, 1>, block<4, 1>,
                                        block<5, 1>, block<6, 1>, block<7, 1>, block<8, 1>};
    static constexpr Block kWide[] = {block<1, kVectors>, block<2, kVectors>, block<3, kVectors>, block<4, kVectors>,
                                      block<5, kVectors>, block<6, kVectors>, block<7, kVectors>, block<8, kVectors>};
    return (is_wide ? kWide : kNarrow)[rows - 1];
  }

  // `rows` of A, and the first `vectors` of kVectors in each row of a panel of B.
  template <i32 rows, i32 vectors>
  static HWY_NOINLINE void block(const float* HWY_RESTRICT a, i64 ld_a, const float* HWY_RESTRICT b,
                                 float* HWY_RESTRICT c, i64 ld_c, i32 depth, bool accumulate) {
    Rows<const float, rows> left_rows(a, ld_a);
    const Rows<float, rows> out(c, ld_c);
    Vector sum[rows][vectors];
    if (accumulate) {
#pragma GCC unroll 8
      for (i32 r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (i32 v = 0; v < vectors; ++v) sum[r][v] = load(out[r] + v * kLanes);
    } else {
#pragma GCC unroll 8
      for (i32 r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (i32 v = 0; v < vectors; ++v) sum[r][v] = set(0);
    }
    for (i32 k = 0; k < depth; ++k) {
      Vector right[vectors];
#pragma GCC unroll 4
      for (i32 v = 0; v < vectors; ++v) right[v] = load(b + v * kLanes);
#pragma GCC unroll 8
      for (i32 r = 0; r < rows; ++r) {
        const Vector left = set(*left_rows[r]);
#pragma GCC unroll 4
        for (i32 v = 0; v < vectors; ++v) sum[r][v] = hn::MulAdd(left, right[v], sum[r][v]);
      }
      left_rows.advance();
      b += kCols;
    }
#pragma GCC unroll 8
    for (i32 r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (i32 v = 0; v < vectors; ++v) store(sum[r][v], out[r] + v * kLanes);
  }
#endif
};

}  // namespace MICA_NS
