// SPDX-License-Identifier: Apache-2.0
// What a matrix engine is. Forward and backward are templates over one; engine_f32.h, engine_amx.h and
// engine_bfmmla.h are the engines.
//
//   struct Engine {
//     using Element = float;                        // of the packed operands: float, u16 holding bf16, Half, or u32
//                                                   // holding two bf16 that stand for their sum
//     static constexpr i32 kRows, kCols, kDepth;    // granularity of a product
//     static constexpr i32 kStreamedRows;           // up to so many rows decode is faster, which packs no keys; at
//     most
//                                                   // kDecodeRows
//
// C (rows x cols, fp32) = or += A (rows x depth) * B (depth x cols).
//
// A is row-major: row r starts at a + r * ld_a, where ld_a >= round_up(depth, kDepth), and the columns from depth to
// round_up(depth, kDepth) are zero. The softmax therefore writes P straight into A's format. Rows up to
// round_up(rows, kRows) must be readable; what they hold does not matter.
//
// B is packed in the engine's own format, zero-padded to kDepth and kCols:
//     static i64 packed_b_elements(i32 depth, i32 cols);
//     // source (depth x cols): V. row_at(i) is a callable i32 -> const void*, the start of source row i (rows may be
//     // scattered: paged caches); dtype is the mica_dtype of the source.
//     template <class RowAt> static void pack_b(Element* dst, const RowAt& row_at, i32 dtype, i32 depth, i32 cols);
//     // source (cols x depth): K.
//     template <class RowAt> static void pack_b_transposed(Element* dst, const RowAt& row_at, i32 dtype, i32 depth,
//                                                          i32 cols);
//
//     // C has room for round_up(rows, kRows) rows of ld_c >= round_up(cols, kCols) floats: the padded part is written
//     // too, with values of no meaning. Every element is summed over depth in an order that does not depend on rows,
//     // cols or its own place: batch invariance rests on this.
//     // packed_depth: the depth that b was packed with, if it is more than what is asked for.
//     static void multiply(const Element* a, i64 ld_a, const Element* b, float* c, i64 ld_c, i32 rows, i32 cols,
//                          i32 depth, bool accumulate, i32 packed_depth = 0);
//
//     // Threads call these around a run of multiplications (AMX: tile configuration).
//     static void begin();
//     static void end();
//   };
//
// The functions below write A operands for any engine by its Element alone. All pointers that are packed or scratch are
// 64-byte aligned; ld_a and ld_c are multiples of 16.
#pragma once

#include "cpu/engine/vector.h"

namespace MICA_NS {

constexpr i64 kLineBytes = 64;
constexpr i32 kMaxDim = 576;  // MICA_MAX_DIM_QK

// Floats or bf16 words between rows of a scratch matrix with that many columns.
HWY_API i64 leading_dimension(i32 cols, i32 granularity) { return round_up<i64>(round_up(cols, granularity), 16); }

// An fp16 number. Zero is all that is assigned to one as such.
struct Half {
  u16 bits;
  HWY_INLINE Half& operator=(i32 zero) {
    bits = u16(zero);
    return *this;
  }
};

HWY_API void store_element(float* dst, float x) { *dst = x; }
HWY_API void store_element(u16* dst, float x) { *dst = float_to_bf16(x); }
HWY_API void store_element(Half* dst, float x) { store_float(dst, 0, MICA_FP16, x); }
HWY_API void store_elements(float* dst, Vector v) { store(v, dst); }
HWY_API void store_elements(Half* dst, Vector v) { store_as<MICA_FP16>(v, dst); }
HWY_API void store_elements(u16* dst, Vector v) { store_as<MICA_BF16>(v, dst); }
// The upper 16 bits of a float as they are, and what they leave, likewise: 16 bits of mantissa. An infinity leaves 0.
HWY_API void store_elements(u32* dst, Vector v) {
  const auto upper = hn::Set(WordTag(), 0xffff0000u);
  const auto high = hn::And(hn::BitCast(WordTag(), v), upper);
  const Vector rest = hn::Sub(v, hn::BitCast(FloatTag(), high));
  const auto low = hn::And(hn::BitCast(WordTag(), hn::IfThenElseZero(hn::Eq(rest, rest), rest)), upper);
  hn::StoreU(hn::Or(hn::ShiftRight<16>(high), low), WordTag(), dst);
}
HWY_API void store_element(u32* dst, float x) {
  u32 words[kLanes];
  store_elements(words, set(x));
  *dst = words[0];
}

// By how much probabilities are raised, as a power of two: fp16 would lose the small ones, and has room above 1.
template <class Element>
constexpr float kRaisedLog2 = 0;
template <>
constexpr float kRaisedLog2<Half> = 12;

template <class Element>
constexpr bool kIsFloat = false;
template <>
constexpr bool kIsFloat<float> = true;

// One row of A from floats, zero-padded to ld_a.
template <class Element>
HWY_INLINE void pack_a_row(Element* dst, i64 ld_a, const float* src, i32 depth) {
  i32 c = 0;
  for (; c + kLanes <= depth; c += kLanes) store_elements(dst + c, load(src + c));
  for (; c < depth; ++c) store_element(dst + c, src[c]);
  for (; c < ld_a; ++c) dst[c] = 0;
}

// The same where A has floats; nothing is read behind the row.
HWY_INLINE void copy_a_row(float* dst, i64 ld_a, const float* src, i32 depth) {
  for (i32 c = 0; c < ld_a; c += kLanes)
    store(c + kLanes <= depth ? load(src + c) : c < depth ? load_some<MICA_FP32>(src + c, depth - c) : set(0), dst + c);
}

// A from source rows (rows x depth): Q, dO.
template <class Element, class RowAt>
HWY_INLINE void pack_a(Element* dst, i64 ld_a, const RowAt& row_at, i32 dtype, i32 rows, i32 depth) {
  float buffer[kMaxDim];
  for (i32 r = 0; r < rows; ++r) {
    if constexpr (kIsFloat<Element>) {
      if (dtype == MICA_FP32) {
        copy_a_row(dst + r * ld_a, ld_a, static_cast<const float*>(row_at(r)), depth);
        continue;
      }
    }
    load_row(buffer, row_at(r), dtype, depth);
    pack_a_row(dst + r * ld_a, ld_a, buffer, depth);
  }
}

}  // namespace MICA_NS
