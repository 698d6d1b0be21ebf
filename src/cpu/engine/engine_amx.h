// SPDX-License-Identifier: Apache-2.0
// The engines of x86 CPUs with AMX: TDPBF16PS multiplies 16x32 by 32x16 into 16x16 fp32, one tile register each.
// B is panels of 16 columns: tiles of 1 KiB for depth 0, 32, ... A tile is 16 rows of 16 pairs. The operating system
// must have granted the tiles to the process before begin().
//
// EngineAmx multiplies bf16: row t of a tile of B holds, for each column, depth 2t and 2t + 1. EngineAmxFp16 does the
// same with fp16, by TDPFP16PS, which not every CPU with AMX has (mica::has_amx_fp16).
// EngineAmxSplit multiplies numbers of 16 bits of mantissa, fp16 among them, as the sum of two bf16, `high` and `low`:
// an element of A is the pair (high, low); B has two tiles for each depth of 16, of pairs (high, high) and (low, low),
// so that the two products of a tile of A are the exact product of both sums.
#pragma once

#include <immintrin.h>

#include "cpu/engine/engine.h"

namespace MICA_NS {

struct AmxTiles {
  // Every tile register is 16 rows of 64 bytes.
  static void begin() {
    alignas(64) u8 config[64] = {};
    config[0] = 1;  // palette
    for (i32 tile = 0; tile < 8; ++tile) {
      config[16 + 2 * tile] = 64;  // bytes in a row
      config[48 + tile] = 16;      // rows
    }
    __asm__ volatile("" : : "r"(config) : "memory");  // see order_memory
    _tile_loadconfig(config);
  }
  // Tile registers held by an idle thread would slow every context switch.
  static void end() { _tile_release(); }

 protected:
  static __mmask32 first(i32 count) { return count >= 32 ? ~__mmask32(0) : (__mmask32(1) << count) - 1; }
  static __mmask16 first16(i32 count) { return __mmask16(first(clamp_to(count, 0, 16))); }
};

// What two tiles are multiplied as.
enum class AmxType { kBf16, kFp16 };

// Tile c += tile a * tile b by TDPFP16PS, spelt out: assemblers and compilers learnt it later than the rest of AMX.
template <i32 c, i32 a, i32 b>
HWY_INLINE void multiply_tiles_fp16() {
  constexpr i32 kLeft = (~b & 15) << 3 | 3, kOthers = 0xc0 | c << 3 | a;
  __asm__ volatile(".byte 0xc4, 0xe2, %c0, 0x5c, %c1" : : "i"(kLeft), "i"(kOthers));
}

// NOTE: a macro because the intrinsic wants literals.
#define MICA_MULTIPLY_TILES(c, a, b)      \
  do {                                    \
    if constexpr (type == AmxType::kFp16) \
      multiply_tiles_fp16<c, a, b>();     \
    else                                  \
      _tile_dpbf16ps(c, a, b);            \
  } while (false)

// C = or += A B, with `parts` tiles of B for each tile of A.
template <i32 parts, AmxType type = AmxType::kBf16>
class AmxProduct {
 public:
  static constexpr i32 kRows = 16, kCols = 16;
  static constexpr i32 kTile = 512;  // words

  // steps: tiles of a row of A; packed_steps: those that B was packed with.
  static void multiply(const u16* a, i64 ld_a, const u16* b, float* c, i64 ld_c, i32 rows, i32 cols, i32 steps,
                       i32 packed_steps, bool accumulate) {
    order_memory();
    Product p;
    p.steps = steps;
    p.b_right = i64(packed_steps) * parts * kTile;
    p.ld_a = ld_a;
    p.ld_c = ld_c;
    p.accumulate = accumulate;
    for (i32 col = 0; col < cols; col += 2 * kCols) {
      p.b = b + col / kCols * p.b_right;
      const bool wide = col + kCols < cols;
      for (i32 row = 0; row < rows; row += 2 * kRows) {
        p.a = a + row * ld_a;
        p.c = c + row * ld_c + col;
        if (row + kRows < rows)
          wide ? block_2x2(p) : block_2x1(p);
        else
          wide ? block_1x2(p) : block_1x1(p);
      }
    }
  }

 private:
  // One block of C and the panels it is the product of.
  struct Product {
    const u16* a;
    const u16* b;
    float* c;
    i64 ld_a, ld_c;
    i64 b_right;  // words from a panel of b to the next
    i32 steps;    // tiles of a row of a
    bool accumulate;
  };

  // Tile registers: 0 to 3 accumulate, 4 and 5 hold A, 6 and 7 hold B. Their numbers must be literals.
  static void block_2x2(const Product& p) {
    const i64 stride_a = p.ld_a * 2, stride_c = p.ld_c * 4;
    float* lower = p.c + kRows * p.ld_c;
    if (p.accumulate) {
      _tile_loadd(0, p.c, stride_c);
      _tile_loadd(1, p.c + kCols, stride_c);
      _tile_loadd(2, lower, stride_c);
      _tile_loadd(3, lower + kCols, stride_c);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    const u16* a = p.a;
    const u16* b = p.b;
    for (i32 step = 0; step < p.steps; ++step, a += 32) {
      _tile_loadd(4, a, stride_a);
      _tile_loadd(5, a + kRows * p.ld_a, stride_a);
      for (i32 part = 0; part < parts; ++part, b += kTile) {
        _tile_loadd(6, b, 64);
        _tile_loadd(7, b + p.b_right, 64);
        MICA_MULTIPLY_TILES(0, 4, 6);
        MICA_MULTIPLY_TILES(2, 5, 6);
        MICA_MULTIPLY_TILES(1, 4, 7);
        MICA_MULTIPLY_TILES(3, 5, 7);
      }
    }
    _tile_stored(0, p.c, stride_c);
    _tile_stored(1, p.c + kCols, stride_c);
    _tile_stored(2, lower, stride_c);
    _tile_stored(3, lower + kCols, stride_c);
  }

  static void block_2x1(const Product& p) {
    const i64 stride_a = p.ld_a * 2, stride_c = p.ld_c * 4;
    float* lower = p.c + kRows * p.ld_c;
    if (p.accumulate) {
      _tile_loadd(0, p.c, stride_c);
      _tile_loadd(2, lower, stride_c);
    } else {
      _tile_zero(0);
      _tile_zero(2);
    }
    const u16* a = p.a;
    const u16* b = p.b;
    for (i32 step = 0; step < p.steps; ++step, a += 32) {
      _tile_loadd(4, a, stride_a);
      _tile_loadd(5, a + kRows * p.ld_a, stride_a);
      for (i32 part = 0; part < parts; ++part, b += kTile) {
        _tile_loadd(6, b, 64);
        MICA_MULTIPLY_TILES(0, 4, 6);
        MICA_MULTIPLY_TILES(2, 5, 6);
      }
    }
    _tile_stored(0, p.c, stride_c);
    _tile_stored(2, lower, stride_c);
  }

  static void block_1x2(const Product& p) {
    const i64 stride_a = p.ld_a * 2, stride_c = p.ld_c * 4;
    if (p.accumulate) {
      _tile_loadd(0, p.c, stride_c);
      _tile_loadd(1, p.c + kCols, stride_c);
    } else {
      _tile_zero(0);
      _tile_zero(1);
    }
    const u16* a = p.a;
    const u16* b = p.b;
    for (i32 step = 0; step < p.steps; ++step, a += 32) {
      _tile_loadd(4, a, stride_a);
      for (i32 part = 0; part < parts; ++part, b += kTile) {
        _tile_loadd(6, b, 64);
        _tile_loadd(7, b + p.b_right, 64);
        MICA_MULTIPLY_TILES(0, 4, 6);
        MICA_MULTIPLY_TILES(1, 4, 7);
      }
    }
    _tile_stored(0, p.c, stride_c);
    _tile_stored(1, p.c + kCols, stride_c);
  }

  static void block_1x1(const Product& p) {
    const i64 stride_a = p.ld_a * 2, stride_c = p.ld_c * 4;
    if (p.accumulate) {
      _tile_loadd(0, p.c, stride_c);
    } else {
      _tile_zero(0);
    }
    const u16* a = p.a;
    const u16* b = p.b;
    for (i32 step = 0; step < p.steps; ++step, a += 32) {
      _tile_loadd(4, a, stride_a);
      for (i32 part = 0; part < parts; ++part, b += kTile) {
        _tile_loadd(6, b, 64);
        MICA_MULTIPLY_TILES(0, 4, 6);
      }
    }
    _tile_stored(0, p.c, stride_c);
  }

  // NOTE: GCC's tile intrinsics do not tell the compiler which memory they read; this makes it finish its stores.
  static void order_memory() { __asm__ volatile("" ::: "memory"); }
};

#undef MICA_MULTIPLY_TILES

// The transpose of 16 x 16 words of 32 bits: first within each 128-bit lane, then the lanes.
inline void transpose_dwords(__m512i (&out)[16], const __m512i (&x)[16]) {
  __m512i y[16];  // y[4 * q + w], lane l: word 4 * l + w of rows 4q to 4q + 3
  for (i32 q = 0; q < 16; q += 4) {
    const __m512i low01 = _mm512_unpacklo_epi32(x[q], x[q + 1]), high01 = _mm512_unpackhi_epi32(x[q], x[q + 1]);
    const __m512i low23 = _mm512_unpacklo_epi32(x[q + 2], x[q + 3]);
    const __m512i high23 = _mm512_unpackhi_epi32(x[q + 2], x[q + 3]);
    y[q] = _mm512_unpacklo_epi64(low01, low23);
    y[q + 1] = _mm512_unpackhi_epi64(low01, low23);
    y[q + 2] = _mm512_unpacklo_epi64(high01, high23);
    y[q + 3] = _mm512_unpackhi_epi64(high01, high23);
  }
  for (i32 w = 0; w < 4; ++w) {
    // The lanes (0, 1) and (2, 3) of the first and of the last eight rows; then lane l of all four.
    const __m512i a = _mm512_shuffle_i32x4(y[w], y[4 + w], 0x44), b = _mm512_shuffle_i32x4(y[w], y[4 + w], 0xee);
    const __m512i c = _mm512_shuffle_i32x4(y[8 + w], y[12 + w], 0x44);
    const __m512i d = _mm512_shuffle_i32x4(y[8 + w], y[12 + w], 0xee);
    out[0 + w] = _mm512_shuffle_i32x4(a, c, 0x88);
    out[4 + w] = _mm512_shuffle_i32x4(a, c, 0xdd);
    out[8 + w] = _mm512_shuffle_i32x4(b, d, 0x88);
    out[12 + w] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

// 32 floats as bf16, and as fp16.
struct AmxBf16 {
  static constexpr AmxType kType = AmxType::kBf16;
  using Element = u16;
  static __m512i round(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
};
struct AmxFp16 {
  static constexpr AmxType kType = AmxType::kFp16;
  using Element = Half;
  static __m512i round(__m512 low, __m512 high) {
    constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(low, kToNearest)),
                              _mm512_cvtps_ph(high, kToNearest), 1);
  }
};

template <class Type>
struct EngineAmxPairs : AmxTiles {
  using Element = typename Type::Element;
  static constexpr i32 kStreamedRows = 5;
  static constexpr i32 kRows = 16;
  static constexpr i32 kCols = 16;
  static constexpr i32 kDepth = 32;

  static i64 packed_b_elements(i32 depth, i32 cols) { return i64(round_up(depth, kDepth)) * round_up(cols, kCols); }

  template <class RowAt>
  static void pack_b(Element* dst, const RowAt& row_at, i32 dtype, i32 depth, i32 cols) {
    const i32 steps = ceil_div(depth, kDepth);
    for (i32 step = 0; step < steps; ++step) {
      const void* source[kDepth];
      for (i32 k = 0; k < kDepth; ++k) source[k] = step * kDepth + k < depth ? row_at(step * kDepth + k) : nullptr;
      Element* out = dst + i64(step) * kTile;
      for (i32 col = 0; col < cols; col += kCols, out += i64(steps) * kTile)
        for (i32 t = 0; t < 16; ++t)
          _mm512_storeu_si512(out + t * 32, load_pairs(source[2 * t], source[2 * t + 1], dtype, col, cols));
    }
  }

  template <class RowAt>
  static void pack_b_transposed(Element* dst, const RowAt& row_at, i32 dtype, i32 depth, i32 cols) {
    for (i32 col = 0; col < cols; col += kCols)
      for (i32 k = 0; k < depth; k += kDepth, dst += kTile) {
        __m512i x[kCols];
        for (i32 c = 0; c < kCols; ++c)
          x[c] = col + c < cols ? load32(row_at(col + c), dtype, k, depth) : _mm512_setzero_si512();
        __m512i y[16];
        transpose_dwords(y, x);
        for (i32 t = 0; t < 16; ++t) _mm512_storeu_si512(dst + t * 32, y[t]);
      }
  }

  static void multiply(const Element* a, i64 ld_a, const Element* b, float* c, i64 ld_c, i32 rows, i32 cols, i32 depth,
                       bool accumulate, i32 packed_depth = 0) {
    AmxProduct<1, Type::kType>::multiply(reinterpret_cast<const u16*>(a), ld_a, reinterpret_cast<const u16*>(b), c,
                                         ld_c, rows, cols, ceil_div(depth, kDepth),
                                         ceil_div(max_of(depth, packed_depth), kDepth), accumulate);
  }

 private:
  static constexpr i32 kTile = AmxProduct<1>::kTile;
  // From 16 even and then 16 odd words to 16 pairs.
  static constexpr u16 kInterleave[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};

  // Elements [k, k + 32) of a source row in 16 bits, 0 from `end` on.
  static __m512i load32(const void* row, i32 dtype, i32 k, i32 end) {
    if (dtype == MICA_FP32) {
      const float* p = static_cast<const float*>(row) + k;
      const __m512 low = _mm512_maskz_loadu_ps(first16(end - k), p);
      const __m512 high = _mm512_maskz_loadu_ps(first16(end - k - 16), p + 16);
      return Type::round(low, high);
    }
    return _mm512_maskz_loadu_epi16(first(end - k), static_cast<const u16*>(row) + k);
  }

  // Columns [col, col + 16) of two source rows as 16 pairs, 0 from `end` on. A null row is 0.
  static __m512i load_pairs(const void* even, const void* odd, i32 dtype, i32 col, i32 end) {
    const __mmask16 mask = first16(end - col);
    if (dtype == MICA_FP32) {
      const __m512 x = even ? _mm512_maskz_loadu_ps(mask, static_cast<const float*>(even) + col) : _mm512_setzero_ps();
      const __m512 y = odd ? _mm512_maskz_loadu_ps(mask, static_cast<const float*>(odd) + col) : _mm512_setzero_ps();
      return _mm512_permutexvar_epi16(_mm512_loadu_si512(kInterleave), Type::round(x, y));
    }
    const __m256i none = _mm256_setzero_si256();
    return interleave(even ? _mm256_maskz_loadu_epi16(mask, static_cast<const u16*>(even) + col) : none,
                      odd ? _mm256_maskz_loadu_epi16(mask, static_cast<const u16*>(odd) + col) : none);
  }
  static __m512i interleave(__m256i even, __m256i odd) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
  }
};
using EngineAmx = EngineAmxPairs<AmxBf16>;
using EngineAmxFp16 = EngineAmxPairs<AmxFp16>;

struct EngineAmxSplit : AmxTiles {
  using Element = u32;  // bf16 high in the low half, low in the high half
  static constexpr i32 kStreamedRows = 16;
  static constexpr i32 kRows = 16;
  static constexpr i32 kCols = 16;
  static constexpr i32 kDepth = 16;

  static i64 packed_b_elements(i32 depth, i32 cols) { return 2 * i64(round_up(depth, kDepth)) * round_up(cols, kCols); }

  template <class RowAt>
  static void pack_b(Element* dst, const RowAt& row_at, i32 dtype, i32 depth, i32 cols) {
    const i64 panel = i64(ceil_div(depth, kDepth)) * 2 * kTile;
    for (i32 k = 0; k < round_up(depth, kDepth); ++k) {
      const void* source = k < depth ? row_at(k) : nullptr;
      Element* out = dst + k / kDepth * 2 * kTile + k % kDepth * 16;
      for (i32 col = 0; col < cols; col += kCols, out += panel)
        store_doubled(out, source ? load16(source, dtype, col, cols) : _mm512_setzero_si512());
    }
  }

  template <class RowAt>
  static void pack_b_transposed(Element* dst, const RowAt& row_at, i32 dtype, i32 depth, i32 cols) {
    for (i32 col = 0; col < cols; col += kCols)
      for (i32 k = 0; k < depth; k += kDepth, dst += 2 * kTile) {
        __m512i x[kCols], y[kCols];
        for (i32 c = 0; c < kCols; ++c)
          x[c] = col + c < cols ? load16(row_at(col + c), dtype, k, depth) : _mm512_setzero_si512();
        transpose_dwords(y, x);
        for (i32 t = 0; t < kDepth; ++t) store_doubled(dst + t * 16, y[t]);
      }
  }

  static void multiply(const Element* a, i64 ld_a, const Element* b, float* c, i64 ld_c, i32 rows, i32 cols, i32 depth,
                       bool accumulate, i32 packed_depth = 0) {
    AmxProduct<2>::multiply(reinterpret_cast<const u16*>(a), 2 * ld_a, reinterpret_cast<const u16*>(b), c, ld_c, rows,
                            cols, ceil_div(depth, kDepth), ceil_div(max_of(depth, packed_depth), kDepth), accumulate);
  }

 private:
  static constexpr i32 kTile = AmxProduct<2>::kTile / 2;  // elements

  // Elements [k, k + 16) of a source row, 0 from `end` on.
  static __m512i load16(const void* row, i32 dtype, i32 k, i32 end) {
    const __mmask16 mask = first16(end - k);
    if (dtype == MICA_FP32) return split(_mm512_maskz_loadu_ps(mask, static_cast<const float*>(row) + k));
    return split(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, static_cast<const u16*>(row) + k)));
  }
  static __m512i split(__m512 x) {
    alignas(64) u32 words[16];
    store_elements(words, Vector{x});
    return _mm512_load_si512(words);
  }
  // A row of the tile of pairs (high, high) and, a tile further on, of (low, low).
  static void store_doubled(Element* out, __m512i x) {
    const __m512i high = _mm512_and_si512(x, _mm512_set1_epi32(0xffff)), low = _mm512_srli_epi32(x, 16);
    _mm512_storeu_si512(out, _mm512_or_si512(high, _mm512_slli_epi32(high, 16)));
    _mm512_storeu_si512(out + kTile, _mm512_or_si512(low, _mm512_slli_epi32(low, 16)));
  }
};

}  // namespace MICA_NS
