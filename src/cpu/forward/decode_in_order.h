// SPDX-License-Identifier: Apache-2.0
// Decode's two products of few query rows for CPUs that fetch ahead well as long as memory is read in order (Arm's
// Neoverse, Intel's with AVX-512): a few rows of keys or values side by side, each whole, and nothing is called in by
// hand, which costs there more than it saves. The values of a tile are added while the keys of the next one are
// multiplied: two streams that never pause, where one after the other each would have to be found anew.
#pragma once

#include <type_traits>

#include "cpu/engine/engine.h"

namespace MICA_NS {

template <i32 kDtype>
constexpr i32 kElementBytes = kDtype == MICA_FP32 ? 4 : 2;

// Within how many bytes rows are read side by side: further apart they are read at a third of the speed. Floats that
// memory and no cache has (all_bytes of keys and values in a call) are read faster as one key and two values than by
// fours between which a page may end; elements of 16 bits wait for arithmetic.
constexpr i64 kMostSideBySide = 1024;
template <i32 kDtype>
HWY_INLINE i64 side_by_side_bytes(const void* first, i32 dim, i64 all_bytes) {
  constexpr i64 kBytesOfCaches = 16 << 20, kPageBytes = 4096;
  const i64 row_bytes = dim * kElementBytes<kDtype>, four = 4 * row_bytes;
  const i64 behind = i64(reinterpret_cast<uintptr_t>(first) % u64(four));
  const bool ends_with_pages = kPageBytes % four == 0 && (behind <= kLineBytes || behind >= four - kLineBytes);
  const bool is_by_fours =
      kDtype != MICA_FP32 || four > kMostSideBySide || ends_with_pages || all_bytes <= kBytesOfCaches;
  return is_by_fours ? kMostSideBySide : 2 * row_bytes;
}

// Rows of queries for which keys and values are read so: more wait for arithmetic, and so do two where vectors are
// short.
constexpr i32 kRowsInOrder = kLanes == 16 ? 4 : 1;

// Keys of a tile, by which the values lag behind the keys: more of them cost less for softmax, fewer leave less at the
// ends of a range, where there is one stream alone; 16 KB of both are the most that pays.
HWY_API i32 keys_in_order(i32 row_bytes, i32 all_keys) { return row_bytes <= 256 && all_keys >= 256 ? 64 : 32; }

// s (4) = q . k, kKeys of the four keys side by side. dim is at least kLanes; where
// it is not whole vectors, the last one of q has the rest at its end, behind zeros.
template <i32 kDtype, i32 kKeys>
HWY_INLINE void multiply_in_order(const float* q, const char* const (&k)[4], i32 dim, float* s) {
  // Sums of a key that do not wait for each other. How many keys of floats are read at once depends on where they lie.
  constexpr i32 kChains = kDtype == MICA_FP32 ? 2 : 4 / kKeys;
  const i32 whole = dim / kLanes * kLanes;
  Vector sum[4];
#pragma GCC unroll 4
  for (i32 first = 0; first < 4; first += kKeys) {
    Vector part[kChains][kKeys];
#pragma GCC unroll 4
    for (i32 n = 0; n < kChains; ++n)
#pragma GCC unroll 4
      for (i32 i = 0; i < kKeys; ++i) part[n][i] = set(0);
    const auto add = [&](i32 c, Vector(&to)[kKeys]) HWY_ATTR {
      const Vector left = load(q + c);
#pragma GCC unroll 4
      for (i32 i = 0; i < kKeys; ++i)
        to[i] = hn::MulAdd(left, load_as<kDtype>(k[first + i] + c * kElementBytes<kDtype>), to[i]);
    };
    i32 c = 0;
    for (; c + 4 * kLanes <= dim; c += 4 * kLanes)
#pragma GCC unroll 4
      for (i32 n = 0; n < 4; ++n) add(c + n * kLanes, part[n % kChains]);
    for (; c < whole; c += kLanes) add(c, part[0]);
    if (c < dim) {
      const auto is_tail = hn::Ge(hn::Iota(FloatTag(), 0), set(float(kLanes - (dim - c))));
      for (i32 i = 0; i < kKeys; ++i) {
        const Vector last = load_as<kDtype>(k[first + i] + (dim - kLanes) * kElementBytes<kDtype>);
        part[0][i] = hn::MulAdd(load(q + c), hn::IfThenElseZero(is_tail, last), part[0][i]);
      }
    }
#pragma GCC unroll 4
    for (i32 i = 0; i < kKeys; ++i) {
      sum[first + i] = part[0][i];
#pragma GCC unroll 4
      for (i32 n = 1; n < kChains; ++n) sum[first + i] = hn::Add(sum[first + i], part[n][i]);
    }
  }
  store_four_sums(sum, s);
}

// The same of as many side by side as lie within so many bytes.
template <i32 kDtype>
HWY_INLINE void multiply_four(const float* q, const char* const (&k)[4], i32 dim, i64 side_by_side, float* s) {
  if (4 * dim * kElementBytes<kDtype> <= side_by_side)
    multiply_in_order<kDtype, 4>(q, k, dim, s);
  else
    multiply_in_order<kDtype, 1>(q, k, dim, s);
}

// o (kRows x dim) += p v for kKeys keys. dim is at least kLanes; where it is not whole vectors, the rest is summed
// behind them, at the end of a vector of its own (settle_tail).
template <i32 kDtype, i32 kRows, i32 kKeys>
HWY_INLINE void add_keys(const float* p, i64 ld_p, const char* const* v_rows, float* HWY_RESTRICT o, i64 ld_o,
                         i32 dim) {
  const char* value[kKeys];
  Vector left[kRows][kKeys];
#pragma GCC unroll 4
  for (i32 i = 0; i < kKeys; ++i) {
    value[i] = v_rows[i];
#pragma GCC unroll 4
    for (i32 r = 0; r < kRows; ++r) left[r][i] = set(p[r * ld_p + i]);
  }
  const auto add = [&](i32 c, const Vector(&right)[kKeys]) HWY_ATTR {
#pragma GCC unroll 4
    for (i32 r = 0; r < kRows; ++r) {
      Vector sum = load(o + r * ld_o + c);
#pragma GCC unroll 4
      for (i32 i = 0; i < kKeys; ++i) sum = hn::MulAdd(left[r][i], right[i], sum);
      store(sum, o + r * ld_o + c);
    }
  };
  const auto add_whole = [&](i32 c) HWY_ATTR {
    Vector right[kKeys];
#pragma GCC unroll 4
    for (i32 i = 0; i < kKeys; ++i) right[i] = load_as<kDtype>(value[i] + c * kElementBytes<kDtype>);
    add(c, right);
  };
  const i32 whole = dim / kLanes * kLanes;
  i32 c = 0;
  for (; c + 4 * kLanes <= dim; c += 4 * kLanes)
#pragma GCC unroll 4
    for (i32 n = 0; n < 4; ++n) add_whole(c + n * kLanes);
  for (; c < whole; c += kLanes) add_whole(c);
  if (c == dim) return;
  const auto is_tail = hn::Ge(hn::Iota(FloatTag(), 0), set(float(kLanes - (dim - c))));
  Vector right[kKeys];
#pragma GCC unroll 4
  for (i32 i = 0; i < kKeys; ++i)
    right[i] = hn::IfThenElseZero(is_tail, load_as<kDtype>(value[i] + (dim - kLanes) * kElementBytes<kDtype>));
  add(c, right);
}

// Moves what add_keys summed behind whole vectors to where it belongs.
HWY_API void settle_tail(float* o, i32 dim) {
  const i32 whole = dim / kLanes * kLanes, count = dim - whole;
  for (i32 c = 0; c < count; ++c) o[whole + c] = o[whole + kLanes - count + c];
}

// The same for any number of keys: one row's as many side by side as lie within so many bytes, several rows' by fours,
// since they wait for arithmetic.
template <i32 kDtype, i32 kRows>
HWY_INLINE void add_in_order(const float* p, i64 ld_p, const char* const* v_rows, i32 count, float* o, i64 ld_o,
                             i32 dim, i64 side_by_side) {
  const i32 row_bytes = dim * kElementBytes<kDtype>;
  i32 j = 0;
  if (kRows > 1 || 4 * row_bytes <= side_by_side)
    for (; j + 4 <= count; j += 4) add_keys<kDtype, kRows, 4>(p + j, ld_p, v_rows + j, o, ld_o, dim);
  if (kRows == 1 && 2 * row_bytes <= side_by_side)
    for (; j + 2 <= count; j += 2) add_keys<kDtype, kRows, 2>(p + j, ld_p, v_rows + j, o, ld_o, dim);
  for (; j < count; ++j) add_keys<kDtype, kRows, 1>(p + j, ld_p, v_rows + j, o, ld_o, dim);
}

}  // namespace MICA_NS
