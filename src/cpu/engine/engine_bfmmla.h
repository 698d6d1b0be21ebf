// SPDX-License-Identifier: Apache-2.0
// The bf16 engine of Arm CPUs with BF16 instructions: BFMMLA multiplies 2x4 by 4x2 into 2x2 fp32.
// B is panels of 8 columns. A panel holds, for each 4 of depth, four vectors of two columns by four of depth.
#pragma once

#include <arm_neon.h>

#include "core/types.h"

namespace MICA_NS {

struct EngineBfmmla {
  using Element = u16;
  static constexpr i32 kStreamedRows = 2;
  static constexpr i32 kRows = 8;
  static constexpr i32 kCols = 8;
  static constexpr i32 kDepth = 8;
  static constexpr i32 kMaxDepth = 1024;  // of one product

  static void begin() {}
  static void end() {}

  static i64 packed_b_elements(i32 depth, i32 cols) { return i64(round_up(depth, kDepth)) * round_up(cols, kCols); }

  template <class RowAt>
  static void pack_b(Element* dst, const RowAt& row_at, i32 dtype, i32 depth, i32 cols) {
    if (dtype == MICA_FP32)
      pack_across<float>(dst, row_at, depth, cols);
    else
      pack_across<u16>(dst, row_at, depth, cols);
  }

  template <class RowAt>
  static void pack_b_transposed(Element* dst, const RowAt& row_at, i32 dtype, i32 depth, i32 cols) {
    if (dtype == MICA_FP32)
      pack_along<float>(dst, row_at, depth, cols);
    else
      pack_along<u16>(dst, row_at, depth, cols);
  }

  static void multiply(const Element* a, i64 ld_a, const Element* b, float* c, i64 ld_c, i32 rows, i32 cols, i32 depth,
                       bool accumulate, i32 packed_depth = 0) {
    const i32 padded_depth = round_up(depth, kDepth);
    const i64 panel_depth = round_up(max_of(depth, packed_depth), kDepth);
    if (padded_depth > kMaxDepth) __builtin_trap();  // a defect of the plan; the panel lies on the stack
    for (i32 row = 0; row < rows; row += kRows) {
      Element panel[kMaxDepth * kRows];
      pack_rows(panel, a + row * ld_a, ld_a, padded_depth);
      for (i32 col = 0; col < cols; col += kCols)
        block(panel, b + col * panel_depth, c + row * ld_c + col, ld_c, padded_depth, accumulate);
    }
  }

 private:
  static bfloat16x8_t load8(const u16* p) { return vreinterpretq_bf16_u16(vld1q_u16(p)); }

  // Eight elements as bf16, of which `count` exist; the others are 0.
  static uint16x8_t load_whole(const u16* source) { return vld1q_u16(source); }
  static uint16x8_t load_whole(const float* source) {
    const bfloat16x8_t low = vcvtq_low_bf16_f32(vld1q_f32(source));
    return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(low, vld1q_f32(source + 4)));
  }
  template <class T>
  static uint16x8_t load_some(const T* source, i32 count) {
    if (count >= 8) return load_whole(source);
    T padded[8] = {};
    for (i32 n = 0; n < count; ++n) padded[n] = source[n];
    return load_whole(padded);
  }

  // Depth runs along a source row.
  template <class T, class RowAt>
  static void pack_along(Element* dst, const RowAt& row_at, i32 depth, i32 cols) {
    const i64 panel = i64(round_up(depth, kDepth)) * kCols;
    for (i32 col = 0; col < cols; col += kCols, dst += panel) {
      for (i32 pair = 0; pair < kCols / 2; ++pair) {
        const i32 c = col + 2 * pair;
        const T* first = c < cols ? static_cast<const T*>(row_at(c)) : nullptr;
        const T* second = c + 1 < cols ? static_cast<const T*>(row_at(c + 1)) : nullptr;
        Element* out = dst + pair * 8;
        for (i32 k = 0; k < depth; k += 8, out += 64) {
          const uint16x8_t x = first ? load_some(first + k, depth - k) : vdupq_n_u16(0);
          const uint16x8_t y = second ? load_some(second + k, depth - k) : vdupq_n_u16(0);
          const uint64x2_t x64 = vreinterpretq_u64_u16(x), y64 = vreinterpretq_u64_u16(y);
          vst1q_u16(out, vreinterpretq_u16_u64(vzip1q_u64(x64, y64)));
          vst1q_u16(out + 32, vreinterpretq_u16_u64(vzip2q_u64(x64, y64)));
        }
      }
    }
  }

  // Depth runs across source rows.
  template <class T, class RowAt>
  static void pack_across(Element* dst, const RowAt& row_at, i32 depth, i32 cols) {
    const i32 padded_depth = round_up(depth, kDepth);
    for (i32 k = 0; k < padded_depth; k += 4) {
      const T* source[4];
      for (i32 n = 0; n < 4; ++n) source[n] = k + n < depth ? static_cast<const T*>(row_at(k + n)) : nullptr;
      Element* out = dst + i64(k) * kCols;
      for (i32 col = 0; col < cols; col += kCols, out += i64(padded_depth) * kCols) {
        uint16x8_t x[4];
        for (i32 n = 0; n < 4; ++n) x[n] = source[n] ? load_some(source[n] + col, cols - col) : vdupq_n_u16(0);
        const uint32x4_t low01 = vreinterpretq_u32_u16(vzip1q_u16(x[0], x[1]));
        const uint32x4_t high01 = vreinterpretq_u32_u16(vzip2q_u16(x[0], x[1]));
        const uint32x4_t low23 = vreinterpretq_u32_u16(vzip1q_u16(x[2], x[3]));
        const uint32x4_t high23 = vreinterpretq_u32_u16(vzip2q_u16(x[2], x[3]));
        vst1q_u16(out, vreinterpretq_u16_u32(vzip1q_u32(low01, low23)));
        vst1q_u16(out + 8, vreinterpretq_u16_u32(vzip2q_u32(low01, low23)));
        vst1q_u16(out + 16, vreinterpretq_u16_u32(vzip1q_u32(high01, high23)));
        vst1q_u16(out + 24, vreinterpretq_u16_u32(vzip2q_u32(high01, high23)));
      }
    }
  }

  // Eight rows of A, laid out as a panel of B is.
  static void pack_rows(Element* dst, const Element* a, i64 ld_a, i32 depth) {
    for (i32 pair = 0; pair < 4; ++pair, dst += 8) {
      const Element* even = a + 2 * pair * ld_a;
      const Element* odd = even + ld_a;
      for (i32 k = 0; k < depth; k += 8) {
        const uint64x2_t x = vreinterpretq_u64_u16(vld1q_u16(even + k)), y = vreinterpretq_u64_u16(vld1q_u16(odd + k));
        vst1q_u16(dst + k * 8, vreinterpretq_u16_u64(vzip1q_u64(x, y)));
        vst1q_u16(dst + k * 8 + 32, vreinterpretq_u16_u64(vzip2q_u64(x, y)));
      }
    }
  }

  // 8 x 8: sum[i][j] holds rows 2i, 2i + 1 and columns 2j, 2j + 1.
  static void block(const Element* a, const Element* b, float* c, i64 ld_c, i32 depth, bool accumulate) {
    float32x4_t sum[4][4];
#pragma GCC unroll 4
    for (i32 i = 0; i < 4; ++i)
#pragma GCC unroll 4
      for (i32 j = 0; j < 4; ++j) sum[i][j] = vdupq_n_f32(0);
    for (i32 k = 0; k < depth; k += 4, a += 32, b += 32) {
      const bfloat16x8_t columns[4] = {load8(b), load8(b + 8), load8(b + 16), load8(b + 24)};
#pragma GCC unroll 4
      for (i32 i = 0; i < 4; ++i) {
        const bfloat16x8_t rows = load8(a + 8 * i);
#pragma GCC unroll 4
        for (i32 j = 0; j < 4; ++j) sum[i][j] = vbfmmlaq_f32(sum[i][j], rows, columns[j]);
      }
    }
#pragma GCC unroll 4
    for (i32 i = 0; i < 4; ++i) {
      float* even = c + 2 * i * ld_c;
      float* odd = even + ld_c;
#pragma GCC unroll 2
      for (i32 j = 0; j < 4; j += 2) {
        const float64x2_t left = vreinterpretq_f64_f32(sum[i][j]), right = vreinterpretq_f64_f32(sum[i][j + 1]);
        float32x4_t top = vreinterpretq_f32_f64(vzip1q_f64(left, right));
        float32x4_t bottom = vreinterpretq_f32_f64(vzip2q_f64(left, right));
        if (accumulate) {
          top = vaddq_f32(top, vld1q_f32(even + 2 * j));
          bottom = vaddq_f32(bottom, vld1q_f32(odd + 2 * j));
        }
        vst1q_f32(even + 2 * j, top);
        vst1q_f32(odd + 2 * j, bottom);
      }
    }
  }
};

}  // namespace MICA_NS
