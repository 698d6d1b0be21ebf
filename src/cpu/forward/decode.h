// SPDX-License-Identifier: Apache-2.0
// Few query rows against many keys: keys and values are read once, where they are, and never packed. The time is that
// of the memory.
#pragma once

#include "cpu/forward/decode_in_order.h"
#include "cpu/forward/decode_pairs.h"
#include "cpu/forward/forward_plan.h"
#include "cpu/forward/softmax_row.h"
#include "cpu/rows.h"

namespace MICA_NS {

constexpr i32 kDecodeKeys = 64;  // whose values stay in the first-level cache between score and sum

// Whether rows of bf16 are multiplied as they are (decode_pairs.h).
#if defined(__AVX512BF16__)
constexpr bool kHasPairs = true;
#else
constexpr bool kHasPairs = false;
#endif

// Whether keys and values of few rows are read in order (decode_in_order.h); those of more rows are called in ahead,
// except where that costs more than it saves.
constexpr bool kCallsIn = HWY_TARGET != HWY_NEON;
template <i32 kDtype>
constexpr bool kReadsInOrder = !kCallsIn || kLanes == 16;
template <i32 kDtype>
constexpr bool kByPairs = (kHasPairs && kDtype == MICA_BF16);
// Where pairs gain by it: long rows wait for memory, short ones for arithmetic. Four rows gain nothing.
HWY_API bool is_in_order_by_pairs(i32 rows, i32 dim) { return rows <= 3 && dim >= (rows == 1 ? 129 : 128); }

struct DecodeScratch {
  float *q, *s, *o;
  u16* q_pairs;  // q and probabilities in bf16
  u32* p_pairs;
  float *k_rows, *v_rows;  // of kDecodeKeys keys that are expanded
  i64 ld_q, ld_o;
  i64 bytes;

  DecodeScratch(const Problem& problem, char* base) {
    ld_q = leading_dimension(problem.dim_qk, 32);
    ld_o = leading_dimension(problem.dim_v, 32);
    bytes = i64(sizeof(float)) * kDecodeRows * (ld_q + kDecodeKeys + ld_o + ld_q / 2 + kDecodeKeys / 2);
    const bool expands = expands_keys(problem);
    const i64 wide_k = expands ? kDecodeKeys * i64(problem.dim_qk) : 0;
    const i64 wide_v = expands ? kDecodeKeys * i64(problem.dim_v) : 0;
    bytes += i64(sizeof(float)) * (wide_k + wide_v);
    q = s = o = nullptr;
    if (!base) return;  // only the size is asked for
    q = reinterpret_cast<float*>(base);
    s = q + kDecodeRows * ld_q;
    o = s + kDecodeRows * kDecodeKeys;
    q_pairs = reinterpret_cast<u16*>(o + kDecodeRows * ld_o);
    p_pairs = reinterpret_cast<u32*>(q_pairs + kDecodeRows * ld_q);
    k_rows = reinterpret_cast<float*>(p_pairs + kDecodeRows * kDecodeKeys / 2);
    v_rows = k_rows + wide_k;
  }
};

class DecodeWorker {
 public:
  DecodeWorker(const CpuCall& call, const ForwardTile& tile, const Sequence& sequence, char* scratch)
      : call_(call),
        p_(*call.problem),
        tile_(tile),
        sequence_(sequence),
        scoring_(scoring_of(call, sequence, tile.b)),
        rows_((min_of(tile.q_end, sequence.len_q) - tile.q_begin) * tile.heads),
        m_(p_, scratch) {}

  void run(Range keys) {
    for (i32 r = 0; r < rows_; ++r) {
      load_query(call_, sequence_, place(r), m_.q + r * m_.ld_q);
      if (kHasPairs && multiplied_dtype() == MICA_BF16)
        pack_a_row(m_.q_pairs + r * m_.ld_q, m_.ld_q, m_.q + r * m_.ld_q, p_.dim_qk);
      else
        align_tail(m_.q + r * m_.ld_q);
      state_[r] = empty_state<ScalarMath>();
    }
    __builtin_memset(m_.o, 0, sizeof(float) * size_t(rows_ * m_.ld_o));
    if (multiplied_dtype() == MICA_FP32)
      attend_keys<MICA_FP32>(keys);
    else if (multiplied_dtype() == MICA_BF16)
      attend_keys<MICA_BF16>(keys);
    else
      attend_keys<MICA_FP16>(keys);
  }

  const float* accumulator(i32 r) const { return m_.o + r * m_.ld_o; }
  SoftmaxState<ScalarMath> state(i32 r) const { return state_[r]; }

 private:
  i32 multiplied_dtype() const { return expands_keys(p_) ? i32(MICA_FP32) : p_.k.dtype; }
  RowPlace place(i32 r) const {
    return RowPlace{tile_.b, tile_.head_begin + r % tile_.heads, tile_.q_begin + r / tile_.heads};
  }

  // Columns past the last whole vector are multiplied by a vector that ends with the row, so that no key is read past
  // its end: what the whole vectors had is 0 in it. Narrower rows than a vector have no such vector, and go one by one.
  bool has_tail() const { return p_.dim_qk % kLanes != 0 && p_.dim_qk > kLanes; }
  void align_tail(float* q) const {
    const i32 whole = p_.dim_qk / kLanes * kLanes, count = p_.dim_qk - whole;
    if (!has_tail()) return;
    for (i32 c = count - 1; c >= 0; --c) q[whole + kLanes - count + c] = q[whole + c];
    for (i32 c = 0; c < kLanes - count; ++c) q[whole + c] = 0;
  }

  i64 bytes_of_keys() const { return i64(p_.total_k) * p_.heads_k * (p_.dim_qk + p_.dim_v) * dtype_bytes(p_.k.dtype); }

  template <i32 kDtype>
  bool is_in_order() const {
    if (kByPairs<kDtype> && !is_in_order_by_pairs(rows_, p_.dim_qk)) return false;
    return rows_ <= kRowsInOrder && p_.dim_qk >= kLanes && p_.dim_v >= kLanes && !expands_keys(p_);
  }

  TileKeys tile_at(Range keys, i32 j, i32 most) const {
    const Range every = keys_of_every_row(scoring_.band, place(0).i, place(rows_ - 1).i + 1);
    TileKeys tile = {j, min_of(most, keys.end - j), false};
    tile.test_band = every.begin > j || every.end < j + tile.count;
    return tile;
  }

  KeyRows rows_of(const void* base, const Tensor& tensor, i32 j) const {
    return KeyRows{call_.sequences, &sequence_, base, &tensor, tile_.b, tile_.head_begin / p_.group, j};
  }

  template <i32 kDtype>
  void attend_keys(Range keys) {
    if constexpr (kReadsInOrder<kDtype>) {
      if (is_in_order<kDtype>() && keys.begin < keys.end) {
        if (rows_ == 1) return attend_in_order<kDtype, 1>(keys);
        if constexpr (kRowsInOrder == 4) {
          if (rows_ == 2) return attend_in_order<kDtype, 2>(keys);
          if (rows_ == 3) return attend_in_order<kDtype, 3>(keys);
          return attend_in_order<kDtype, 4>(keys);
        }
      }
    }
    for (i32 j = keys.begin; j < keys.end; j += kDecodeKeys) attend<kDtype>(tile_at(keys, j, kDecodeKeys));
  }

  // All keys of the range, of which there are some, for kRows rows, which are all: the values of a tile beside the keys
  // of the next.
  template <i32 kDtype, i32 kRows>
  void attend_in_order(Range keys) {
    const char *k_rows[kDecodeKeys], *v_rows[kDecodeKeys];
    float *s = m_.s, *next_s = m_.s + kRows * kDecodeKeys;
    const i32 most = keys_in_order(p_.dim_qk * kElementBytes<kDtype>, keys.end - keys.begin);
    TileKeys tile = tile_at(keys, keys.begin, most);
    rows_of(call_.x->k, p_.k, tile.begin).list(tile.count, k_rows);
    const i64 side_by_side = side_by_side_bytes<kDtype>(k_rows[0], p_.dim_qk, bytes_of_keys());
    const auto multiply = [&](i32 count, i32 j, float* to) HWY_ATTR __attribute__((always_inline)) {
      const char* k[4];
#pragma GCC unroll 4
      for (i32 i = 0; i < 4; ++i) k[i] = k_rows[min_of(j + i, count - 1)];  // those past the last one repeat it
      if constexpr (kRows == 1 && !kByPairs<kDtype>)
        multiply_four<kDtype>(m_.q, k, p_.dim_qk, side_by_side, to + j);
      else
        multiply_block<kDtype, kRows>(k, m_.q, to + j);
    };
    const auto add = [&](i32 count, i32 j) HWY_ATTR __attribute__((always_inline)) {
#if defined(__AVX512BF16__)
      if constexpr (kByPairs<kDtype>) {
        for (i32 i = 0; i < count; i += 4)
          add_four_pairs<kRows>(m_.p_pairs + (j + i) / 2, kDecodeKeys / 2, v_rows + j + i, count - i, m_.o, m_.ld_o,
                                p_.dim_v);
        return;
      }
#endif
      add_in_order<kDtype, kRows>(s + j, kDecodeKeys, v_rows + j, count, m_.o, m_.ld_o, p_.dim_v, side_by_side);
    };
    for (i32 j = 0; j < tile.count; j += 4) multiply(tile.count, j, s);
    for (;;) {
      for (i32 r = 0; r < kRows; ++r) {
        float* row = s + r * kDecodeKeys;
        const float factor =
            softmax_row(call_, scoring_, place(r), tile, row, state_[r], row, round_up(tile.count, 2 * kLanes));
        if (factor != 1.0f) scale_row(m_.o + r * m_.ld_o, factor, m_.ld_o);
        if (kByPairs<kDtype>) store_pairs(r, row, round_up(tile.count, 2 * kLanes));
      }
      rows_of(call_.x->v, p_.v, tile.begin).list(tile.count, v_rows);
      if (tile.begin + tile.count >= keys.end) break;
      const TileKeys next = tile_at(keys, tile.begin + most, most);
      rows_of(call_.x->k, p_.k, next.begin).list(next.count, k_rows);
      for (i32 j = 0; j < most; j += 4) {
        if (j < next.count) multiply(next.count, j, next_s);
        add(4, j);
      }
      tile = next;
      float* const last_s = s;
      s = next_s;
      next_s = last_s;
    }
    add(tile.count, 0);
    for (i32 r = 0; r < kRows; ++r) {
#if defined(__AVX512BF16__)
      if constexpr (kByPairs<kDtype>) {
        settle_pairs(m_.o + r * m_.ld_o, p_.dim_v);
        continue;
      }
#endif
      settle_tail(m_.o + r * m_.ld_o, p_.dim_v);
    }
  }

  // The probabilities of a row in bf16.
  void store_pairs(i32 r, const float* s, i32 count) {
    for (i32 c = 0; c < count; c += kLanes) store_as<MICA_BF16>(load(s + c), m_.p_pairs + (r * kDecodeKeys + c) / 2);
  }

  template <i32 kDtype>
  void attend(const TileKeys& keys) {
    const KeyRows k = rows_of(call_.x->k, p_.k, keys.begin), v = rows_of(call_.x->v, p_.v, keys.begin);
    const char *k_rows[kDecodeKeys], *v_rows[kDecodeKeys];
    const bool expands = expands_keys(p_);
    if (expands) {
      const ExpandedRows wide_k = {m_.k_rows, p_.dim_qk}, wide_v = {m_.v_rows, p_.dim_v};
      expand_keys(call_, k, v, wide_k, wide_v, keys.count);
      for (i32 j = 0; j < keys.count; ++j) {
        k_rows[j] = static_cast<const char*>(wide_k(j));
        v_rows[j] = static_cast<const char*>(wide_v(j));
      }
    } else {
      k.list(keys.count, k_rows);
      v.list(keys.count, v_rows);
    }
    const bool is_paged = call_.sequences->page_size > 0;
    multiply_keys<kDtype>(k_rows, v_rows, keys.count);
    const NextRows next = {k_rows, kDecodeKeys * p_.k.stride[1] * dtype_bytes(p_.k.dtype),
                           is_paged || expands || !kCallsIn ? 0 : p_.dim_qk * dtype_bytes(p_.k.dtype)};
    const i32 padded = round_up(keys.count, 2 * kLanes);  // pairs of keys, the last one's partner 0
    for (i32 r = 0; r < rows_; ++r) {
      float* s = m_.s + r * kDecodeKeys;
      const float factor = softmax_row(call_, scoring_, place(r), keys, s, state_[r], s, padded);
      if (factor != 1.0f) scale_row(m_.o + r * m_.ld_o, factor, m_.ld_o);
      if (kByPairs<kDtype>) store_pairs(r, s, padded);
    }
    for (i32 r = 0; r < rows_;) {
      if (rows_ - r >= 4) {
        add_values<kDtype, 4>(v_rows, keys.count, r, r == 0 ? next : NextRows{});
        r += 4;
      } else if (rows_ - r >= 2) {
        add_values<kDtype, 2>(v_rows, keys.count, r, r == 0 ? next : NextRows{});
        r += 2;
      } else {
        add_values<kDtype, 1>(v_rows, keys.count, r, r == 0 ? next : NextRows{});
        r += 1;
      }
    }
  }

  // s = q . k for all rows and keys. While a group of keys is multiplied, its values are called in, and so are the keys
  // of the next tile, where they lie so many bytes further on (0: nobody knows).
  template <i32 kDtype>
  void multiply_keys(const char* const* k_rows, const char* const* v_rows, i32 count) {
    constexpr i32 kBytes = kDtype == MICA_FP32 ? 4 : 2;
    constexpr i32 kGroup = 4;
#if defined(__AVX512BF16__)
    if (kDtype == MICA_BF16 && rows_ == 1 && multiply_pairs_of_one_row(k_rows, v_rows, count)) return;
#endif
    for (i32 j = 0; j < count; j += kGroup) {
      const char* k[kGroup];
      for (i32 i = 0; i < kGroup; ++i) {
        k[i] = k_rows[min_of(j + i, count - 1)];
        if (!kCallsIn) continue;
        const char* value = v_rows[min_of(j + i, count - 1)];
        for (i32 byte = 0; byte < p_.dim_v * kBytes; byte += 64) __builtin_prefetch(value + byte);
      }
      for (i32 r = 0; r < rows_;) {
        if (rows_ - r >= 4) {
          multiply_block<kDtype, 4>(k, m_.q + r * m_.ld_q, m_.s + r * kDecodeKeys + j);
          r += 4;
        } else if (rows_ - r >= 2) {
          multiply_block<kDtype, 2>(k, m_.q + r * m_.ld_q, m_.s + r * kDecodeKeys + j);
          r += 2;
        } else {
          multiply_block<kDtype, 1>(k, m_.q + r * m_.ld_q, m_.s + r * kDecodeKeys + j);
          r += 1;
        }
      }
    }
  }

#if defined(__AVX512BF16__)
  // Whether there is a function for so many columns.
  bool multiply_pairs_of_one_row(const char* const* k_rows, const char* const* v_rows, i32 count) {
    const i32 vectors = ceil_div(p_.dim_qk, kPairColumns);
    if (vectors != ceil_div(p_.dim_v, kPairColumns)) return false;
    switch (vectors) {
      case 2: multiply_one_row<2>(m_.q_pairs, k_rows, v_rows, count, p_.dim_qk, m_.s); return true;
      case 3: multiply_one_row<3>(m_.q_pairs, k_rows, v_rows, count, p_.dim_qk, m_.s); return true;
      case 4: multiply_one_row<4>(m_.q_pairs, k_rows, v_rows, count, p_.dim_qk, m_.s); return true;
      default: return false;
    }
  }
#endif

  // kRows x 4 products. Products with keys past the last one repeat it and are hidden by the band.
  template <i32 kDtype, i32 kRows>
  HWY_INLINE void multiply_block(const char* const (&k)[4], const float* q, float* s) {
    constexpr i32 kBytes = kDtype == MICA_FP32 ? 4 : 2;
    const i64 ld_q = m_.ld_q;
#if defined(__AVX512BF16__)
    if constexpr (kDtype == MICA_BF16)
      return multiply_pairs<kRows>(m_.q_pairs + (q - m_.q), ld_q, k, p_.dim_qk, s, kDecodeKeys);
#endif
    const i32 dim = p_.dim_qk;
    Vector sum[kRows][4];
#pragma GCC unroll 4
    for (i32 r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (i32 i = 0; i < 4; ++i) sum[r][i] = set(0);
    i32 c = 0;
    for (; c + kLanes <= dim; c += kLanes) {
      Vector right[4];
#pragma GCC unroll 4
      for (i32 i = 0; i < 4; ++i) right[i] = load_as<kDtype>(k[i] + c * kBytes);
#pragma GCC unroll 4
      for (i32 r = 0; r < kRows; ++r) {
        const Vector left = load(q + r * ld_q + c);
#pragma GCC unroll 4
        for (i32 i = 0; i < 4; ++i) sum[r][i] = hn::MulAdd(left, right[i], sum[r][i]);
      }
    }
    if (has_tail()) {
      const auto is_tail = hn::Ge(hn::Iota(FloatTag(), 0), set(float(kLanes - (dim - c))));
#pragma GCC unroll 4
      for (i32 i = 0; i < 4; ++i) {
        const Vector right = hn::IfThenElseZero(is_tail, load_as<kDtype>(k[i] + (dim - kLanes) * kBytes));
#pragma GCC unroll 4
        for (i32 r = 0; r < kRows; ++r) sum[r][i] = hn::MulAdd(load(q + r * ld_q + c), right, sum[r][i]);
      }
      c = dim;
    }
#pragma GCC unroll 4
    for (i32 r = 0; r < kRows; ++r) store_four_sums(sum[r], s + r * kDecodeKeys);
    for (; c < dim; ++c)
      for (i32 r = 0; r < kRows; ++r)
        for (i32 i = 0; i < 4; ++i) s[r * kDecodeKeys + i] += q[r * ld_q + c] * load_as_float(k[i], c, kDtype);
  }

  // o += p v for kRows rows: a few vectors of columns at a time, over all keys of the tile.
  template <i32 kDtype, i32 kRows>
  HWY_INLINE void add_values(const char* const* v_rows, i32 count, i32 row, const NextRows& next) {
#if defined(__AVX512BF16__)
    if constexpr (kDtype == MICA_BF16)
      return add_value_pairs<kRows>(m_.p_pairs + row * kDecodeKeys / 2, kDecodeKeys / 2, v_rows, count,
                                    m_.o + row * m_.ld_o, m_.ld_o, p_.dim_v, next);
#endif
    constexpr i32 kMost = kRows == 4 ? 4 : 8;  // vectors at a time
    i32 c = 0;
    for (; c + kMost * kLanes <= p_.dim_v; c += kMost * kLanes)
      add_columns<kDtype, kRows, kMost>(v_rows, count, row, c, c == 0 ? next : NextRows{});
    if (kMost > 4 && c + 4 * kLanes <= p_.dim_v) {
      add_columns<kDtype, kRows, 4>(v_rows, count, row, c, c == 0 ? next : NextRows{});
      c += 4 * kLanes;
    }
    if (c + 2 * kLanes <= p_.dim_v) {
      add_columns<kDtype, kRows, 2>(v_rows, count, row, c, c == 0 ? next : NextRows{});
      c += 2 * kLanes;
    }
    if (c + kLanes <= p_.dim_v) {
      add_columns<kDtype, kRows, 1>(v_rows, count, row, c, c == 0 ? next : NextRows{});
      c += kLanes;
    }
    if (c < p_.dim_v && c > 0) {
      // A vector that ends with the row; the columns that had their turn are left as they are.
      float before[kRows][kLanes];
      const i32 again = p_.dim_v - kLanes;
      for (i32 r = 0; r < kRows; ++r) store(load(m_.o + (row + r) * m_.ld_o + again), before[r]);
      add_columns<kDtype, kRows, 1>(v_rows, count, row, again, again == 0 ? next : NextRows{});
      for (i32 r = 0; r < kRows; ++r)
        for (i32 n = 0; n < c - again; ++n) m_.o[(row + r) * m_.ld_o + again + n] = before[r][n];
      c = p_.dim_v;
    }
    for (; c < p_.dim_v; ++c)
      for (i32 r = row; r < row + kRows; ++r) {
        float sum = m_.o[r * m_.ld_o + c];
        for (i32 j = 0; j < count; ++j)
          sum = __builtin_fmaf(m_.s[r * kDecodeKeys + j], load_as_float(v_rows[j], c, kDtype), sum);
        m_.o[r * m_.ld_o + c] = sum;
      }
  }

  // Several sums for each column, of every kSums-th key, so that eight do not wait for each other.
  template <i32 kDtype, i32 kRows, i32 kVectors>
  HWY_INLINE void add_columns(const char* const* v_rows, i32 count, i32 row, i32 c, const NextRows& next) {
    constexpr i32 kBytes = kDtype == MICA_FP32 ? 4 : 2;
    constexpr i32 kSums = kRows * kVectors >= 8 ? 1 : 8 / (kRows * kVectors);
    const float* s = m_.s + row * kDecodeKeys;
    float* o = m_.o + row * m_.ld_o + c;
    Vector sum[kSums][kRows][kVectors];
#pragma GCC unroll 8
    for (i32 n = 0; n < kSums; ++n)
#pragma GCC unroll 4
      for (i32 r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (i32 v = 0; v < kVectors; ++v) sum[n][r][v] = n == 0 ? load(o + r * m_.ld_o + v * kLanes) : set(0);
    const auto add_key = [&](i32 j, Vector(&to)[kRows][kVectors]) HWY_ATTR {
      const char* value = v_rows[j] + c * kBytes;
      next.call_in(j);
      Vector right[kVectors];
#pragma GCC unroll 8
      for (i32 v = 0; v < kVectors; ++v) right[v] = load_as<kDtype>(value + v * kLanes * kBytes);
#pragma GCC unroll 4
      for (i32 r = 0; r < kRows; ++r) {
        const Vector left = set(s[r * kDecodeKeys + j]);
#pragma GCC unroll 8
        for (i32 v = 0; v < kVectors; ++v) to[r][v] = hn::MulAdd(left, right[v], to[r][v]);
      }
    };
    i32 j = 0;
    for (; j + kSums <= count; j += kSums)
#pragma GCC unroll 8
      for (i32 n = 0; n < kSums; ++n) add_key(j + n, sum[n]);
    for (; j < count; ++j) add_key(j, sum[0]);
#pragma GCC unroll 4
    for (i32 r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (i32 v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
        for (i32 n = 1; n < kSums; ++n) sum[0][r][v] = hn::Add(sum[0][r][v], sum[n][r][v]);
        store(sum[0][r][v], o + r * m_.ld_o + v * kLanes);
      }
  }

  const CpuCall& call_;
  const Problem& p_;
  const ForwardTile& tile_;
  const Sequence& sequence_;
  Scoring scoring_;
  i32 rows_;
  DecodeScratch m_;
  SoftmaxState<ScalarMath> state_[kDecodeRows];
};

}  // namespace MICA_NS
