// SPDX-License-Identifier: Apache-2.0
// Decode's two products in bf16 by VDPBF16PS, which multiplies pairs of bf16 and adds both products to a float: rows of
// keys as they lie, and two rows of values interleaved.
#pragma once

#if defined(__AVX512BF16__)

#include <immintrin.h>

#include <type_traits>

#include "cpu/rows.h"

namespace MICA_NS {

constexpr i32 kPairColumns = 32;  // bf16 of a vector
static_assert(kPairColumns * 2 == kLineBytes);

template <i32 kValue>
using Constant = std::integral_constant<i32, kValue>;

HWY_INLINE __m512i load_bf16(const char* row, i32 c, i32 end) {
  if (end - c >= kPairColumns) return _mm512_loadu_si512(row + 2 * c);
  return _mm512_maskz_loadu_epi16((__mmask32(1) << (end - c)) - 1, row + 2 * c);
}

// The lanes of so many columns, at most a vector of them.
HWY_INLINE __mmask32 columns_mask(i32 count) {
  return count >= kPairColumns ? ~__mmask32(0) : (__mmask32(1) << count) - 1;
}

// Columns from c on; of the last vector those of the mask.
HWY_INLINE __m512i load_group(const char* row, i32 c, bool is_last, __mmask32 last) {
  return is_last ? _mm512_maskz_loadu_epi16(last, row + 2 * c) : _mm512_loadu_si512(row + 2 * c);
}

// s (kRows x 4) = q . k. Rows of q are zero-padded to whole vectors.
template <i32 kRows>
HWY_INLINE void multiply_pairs(const u16* q, i64 ld_q, const char* const (&k)[4], i32 dim, float* s, i64 ld_s) {
  Vector sum[kRows][4];
#pragma GCC unroll 4
  for (i32 r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (i32 i = 0; i < 4; ++i) sum[r][i] = set(0);
  for (i32 c = 0; c < dim; c += kPairColumns) {
    __m512i right[4];
#pragma GCC unroll 4
    for (i32 i = 0; i < 4; ++i) right[i] = load_bf16(k[i], c, dim);
#pragma GCC unroll 4
    for (i32 r = 0; r < kRows; ++r) {
      const __m512i left = _mm512_loadu_si512(q + r * ld_q + c);
#pragma GCC unroll 4
      for (i32 i = 0; i < 4; ++i)
        sum[r][i] = Vector{_mm512_dpbf16_ps(sum[r][i].raw, (__m512bh)left, (__m512bh)right[i])};
    }
  }
#pragma GCC unroll 4
  for (i32 r = 0; r < kRows; ++r) store_four_sums(sum[r], s + r * ld_s);
}

// s = q . k for one row of queries, all keys and kVectors vectors of columns. While four keys are multiplied their
// values are called in, which have as many vectors.
template <i32 kVectors>
HWY_INLINE void multiply_one_row(const u16* q, const char* const* k_rows, const char* const* v_rows, i32 count, i32 dim,
                                 float* s) {
  const __mmask32 last = columns_mask(dim - (kVectors - 1) * kPairColumns);
  __m512i left[kVectors];
#pragma GCC unroll 4
  for (i32 n = 0; n < kVectors; ++n) left[n] = _mm512_loadu_si512(q + n * kPairColumns);
  const auto multiply_four = [&](const char* const* k, const char* const* v, float* to) HWY_ATTR {
    Vector sum[4];
#pragma GCC unroll 4
    for (i32 i = 0; i < 4; ++i) {
#pragma GCC unroll 4
      for (i32 n = 0; n < kVectors; ++n) __builtin_prefetch(v[i] + n * kLineBytes);
      sum[i] = set(0);
#pragma GCC unroll 4
      for (i32 n = 0; n < kVectors; ++n)
        sum[i] = Vector{_mm512_dpbf16_ps(sum[i].raw, (__m512bh)left[n],
                                         (__m512bh)load_group(k[i], n * kPairColumns, n == kVectors - 1, last))};
    }
    store_four_sums(sum, to);
  };
  i32 j = 0;
  for (; j + 4 <= count; j += 4) multiply_four(k_rows + j, v_rows + j, s + j);
  if (j == count) return;
  const char *k[4], *v[4];  // the last key again where there are no four
  for (i32 i = 0; i < 4; ++i) {
    k[i] = k_rows[min_of(j + i, count - 1)];
    v[i] = v_rows[min_of(j + i, count - 1)];
  }
  multiply_four(k, v, s + j);
}

// o (kRows x dim) += p v for up to four keys whose rows are read whole. Columns of o stay in the order in which pairs
// are interleaved until settle_pairs.
template <i32 kRows>
HWY_INLINE void add_four_pairs(const u32* p, i64 ld_p, const char* const* v_rows, i32 count, float* HWY_RESTRICT o,
                               i64 ld_o, i32 dim) {
  __m512i left[kRows][2];
#pragma GCC unroll 4
  for (i32 r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (i32 pair = 0; pair < 2; ++pair) left[r][pair] = _mm512_set1_epi32(int(p[r * ld_p + pair]));
  for (i32 c = 0; c < dim; c += kPairColumns) {
    __m512i low[2], high[2];
#pragma GCC unroll 2
    for (i32 pair = 0; pair < 2; ++pair) {
      const __m512i nothing = _mm512_setzero_si512();
      const __m512i x = 2 * pair < count ? load_bf16(v_rows[2 * pair], c, dim) : nothing;
      const __m512i y = 2 * pair + 1 < count ? load_bf16(v_rows[2 * pair + 1], c, dim) : nothing;
      low[pair] = _mm512_unpacklo_epi16(x, y);
      high[pair] = _mm512_unpackhi_epi16(x, y);
    }
#pragma GCC unroll 4
    for (i32 r = 0; r < kRows; ++r) {
      float* to = o + r * ld_o + c;
      __m512 sum_low = _mm512_loadu_ps(to), sum_high = _mm512_loadu_ps(to + 16);
#pragma GCC unroll 2
      for (i32 pair = 0; pair < 2; ++pair) {
        sum_low = _mm512_dpbf16_ps(sum_low, (__m512bh)left[r][pair], (__m512bh)low[pair]);
        sum_high = _mm512_dpbf16_ps(sum_high, (__m512bh)left[r][pair], (__m512bh)high[pair]);
      }
      _mm512_storeu_ps(to, sum_low);
      _mm512_storeu_ps(to + 16, sum_high);
    }
  }
}

// Unpacking takes columns in fours: 0 to 3 of every eight go low, 4 to 7 high. Then the first 16 are low, the others
// high.
HWY_INLINE void put_in_order(__m512& low, __m512& high) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  const __m512 were_low = low;
  low = _mm512_permutex2var_ps(were_low, first, high);
  high = _mm512_permutex2var_ps(were_low, second, high);
}

// Puts what add_four_pairs summed in order.
HWY_INLINE void settle_pairs(float* o, i32 dim) {
  for (i32 c = 0; c < dim; c += kPairColumns) {
    __m512 low = _mm512_loadu_ps(o + c), high = _mm512_loadu_ps(o + c + 16);
    put_in_order(low, high);
    _mm512_storeu_ps(o + c, low);
    _mm512_storeu_ps(o + c + 16, high);
  }
}

// kGroups times 32 columns of o += p v. p: pairs of bf16, one for every two keys. kNextLines: those of a row of `next`;
// -1: next says.
template <i32 kRows, i32 kGroups, i32 kNextLines>
HWY_INLINE void add_pair_columns(const u32* p, i64 ld_p, const char* const* v_rows, i32 count, float* o, i64 ld_o,
                                 i32 c, i32 dim, const NextRows& next) {
  constexpr i32 kSums = kRows * kGroups >= 4 ? 1 : 4 / (kRows * kGroups);  // eight that do not wait for each other
  const __mmask32 last = columns_mask(dim - c - (kGroups - 1) * kPairColumns);
  __m512 sum[kSums][kRows][kGroups][2];
#pragma GCC unroll 4
  for (i32 n = 0; n < kSums; ++n)
#pragma GCC unroll 4
    for (i32 r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (i32 g = 0; g < kGroups; ++g) sum[n][r][g][0] = sum[n][r][g][1] = _mm512_setzero_ps();
  const auto add = [&](i32 pair, auto has_odd, __m512(&to)[kRows][kGroups][2]) HWY_ATTR {
    next.template call_in<kNextLines>(2 * pair);
    if constexpr (has_odd) next.template call_in<kNextLines>(2 * pair + 1);
#pragma GCC unroll 4
    for (i32 g = 0; g < kGroups; ++g) {
      const i32 at = c + g * kPairColumns;
      const __m512i x = load_group(v_rows[2 * pair], at, g == kGroups - 1, last);
      __m512i y = _mm512_setzero_si512();
      if constexpr (has_odd) y = load_group(v_rows[2 * pair + 1], at, g == kGroups - 1, last);
      const __m512i low = _mm512_unpacklo_epi16(x, y), high = _mm512_unpackhi_epi16(x, y);
#pragma GCC unroll 4
      for (i32 r = 0; r < kRows; ++r) {
        const __m512i left = _mm512_set1_epi32(int(p[r * ld_p + pair]));
        to[r][g][0] = _mm512_dpbf16_ps(to[r][g][0], (__m512bh)left, (__m512bh)low);
        to[r][g][1] = _mm512_dpbf16_ps(to[r][g][1], (__m512bh)left, (__m512bh)high);
      }
    }
  };
  constexpr std::true_type kBoth;
  constexpr std::false_type kEvenAlone;
  const i32 pairs = count / 2;
  i32 j = 0;
  for (; j + kSums <= pairs; j += kSums)
#pragma GCC unroll 4
    for (i32 n = 0; n < kSums; ++n) add(j + n, kBoth, sum[n]);
  for (; j < pairs; ++j) add(j, kBoth, sum[0]);
  if (count % 2) add(pairs, kEvenAlone, sum[0]);
#pragma GCC unroll 4
  for (i32 r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (i32 g = 0; g < kGroups; ++g) {
      __m512 low = sum[0][r][g][0], high = sum[0][r][g][1];
#pragma GCC unroll 4
      for (i32 n = 1; n < kSums; ++n) {
        low = _mm512_add_ps(low, sum[n][r][g][0]);
        high = _mm512_add_ps(high, sum[n][r][g][1]);
      }
      float* to = o + r * ld_o + c + g * kPairColumns;
      put_in_order(low, high);
      store(hn::Add(load(to), Vector{low}), to);
      store(hn::Add(load(to + 16), Vector{high}), to + 16);
    }
}

// o (kRows x dim) += p v. Rows of o have room for whole vectors of bf16.
template <i32 kRows>
HWY_INLINE void add_value_pairs(const u32* p, i64 ld_p, const char* const* v_rows, i32 count, float* o, i64 ld_o,
                                i32 dim, const NextRows& next) {
  constexpr i32 kMost = kRows == 1 ? 4 : 2;  // groups at a time
  const auto add = [&](i32 c, auto groups) HWY_ATTR {
    constexpr i32 kGroups = groups;
    if (kRows == 1 && c == 0 && next.lines() == kGroups)
      add_pair_columns<kRows, kGroups, kGroups>(p, ld_p, v_rows, count, o, ld_o, c, dim, next);
    else
      add_pair_columns<kRows, kGroups, -1>(p, ld_p, v_rows, count, o, ld_o, c, dim, c == 0 ? next : NextRows{});
  };
  i32 c = 0;
  for (; dim - c > (kMost - 1) * kPairColumns; c += kMost * kPairColumns) add(c, Constant<kMost>());
  if constexpr (kMost > 2) {
    if (dim - c > 2 * kPairColumns) {
      add(c, Constant<3>());
      c += 3 * kPairColumns;
    } else if (dim - c > kPairColumns) {
      add(c, Constant<2>());
      c += 2 * kPairColumns;
    }
  }
  if (c < dim) add(c, Constant<1>());
}

}  // namespace MICA_NS

#endif
