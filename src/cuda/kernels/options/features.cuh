// SPDX-License-Identifier: Apache-2.0
// What kernels that serve a Feature do to a fragment: softcap, ALiBi, bias, boolean mask and dropout, each behind a
// branch that is uniform over the grid; what a kernel does not serve is not in it. Forward's fragments have queries as
// rows; backward's are transposed: their rows are keys.
#pragma once

#include "core/random.h"
#include "device/attend.cuh"
#include "kernels/options/pairs.cuh"
#include "kernels/params.h"

namespace mica {

template <bool transposed, class Math = FloatMath, u32 served = serves::FULL>
struct FeatureState {
  float slope_log2;
  PhiloxKey key;

  template <class Params>
  static MICA_DEVICE bool has(const Params& p, u32 features) {
    return (served & features) && (p.features & served & features);
  }

  template <class Params>
  MICA_DEVICE void begin(const Params& p, i32 batch, i32 head) {
    if (has(p, kFeatureAlibi)) slope_log2 = p.alibi[batch * p.alibi_stride_batch + head * p.alibi_stride_head] * kLog2E;
    if (has(p, kFeatureDropout)) key = philox_key(p.dropout);
  }

  // Calls function(element) for every score of the fragment.
  template <int m_blocks, int n_blocks, class Function>
  static MICA_DEVICE void for_each(float (&scores)[m_blocks][n_blocks][4], Function function) {
#pragma unroll
    for (int m = 0; m < m_blocks; ++m)
#pragma unroll
      for (int n = 0; n < n_blocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) function(scores[m][n][e]);
  }

  // Products to scores in log2 units, as far as scale and softcap go.
  template <class Params, int m_blocks, int n_blocks>
  MICA_DEVICE void scale(float (&scores)[m_blocks][n_blocks][4], const Params& p) const {
    if (!has(p, kFeatureSoftcap)) {
      for_each(scores, [&](float& x) { x *= p.score.scale_log2; });
      return;
    }
    // Where fp32 is the element type, registers are what is short.
    if constexpr (Math::kIsPrecise) {
      for_each(scores, [&](float& x) { x = capped_score<Math>(p.score, x); });
      return;
    }
    constexpr int kBlocks = n_blocks % 4 == 0 ? 4 : n_blocks % 2 == 0 ? 2 : 1;
#pragma unroll
    for (int m = 0; m < m_blocks; ++m)
#pragma unroll
      for (int n = 0; n < n_blocks; n += kBlocks) cap<4 * kBlocks>(scores[m][n], p.score);
  }

  // Softcap of some scores. One branch for all of them: each by itself would bring its own, and more of them at once
  // leave no registers. What becomes of a score depends on nothing but itself, whichever branch is taken.
  template <int count>
  static MICA_DEVICE void cap(float* scores, const Score& score) {
    float beyond[count];       // of the first polynomial
    u32 sign[2] = {~0u, ~0u};  // two, since each conjunction waits for the one before
#pragma unroll
    for (int i = 0; i < count; ++i) beyond[i] = beyond_limit<Math>(score.tiny, scores[i]);
#pragma unroll
    for (int i = 0; i < count; i += 2) sign[i / 2 % 2] &= bits_of(beyond[i]) & bits_of(beyond[i + 1]);
    if (__all_sync(0xffffffffu, i32(sign[0] & sign[1]) < 0)) {
#pragma unroll
      for (int i = 0; i < count; ++i) scores[i] = capped_score<Math>(score.tiny, scores[i], beyond[i]);
      return;
    }
    // NOTE: choices, not branches: where lanes might part, the compiler no longer counts on uniform registers.
    const auto polynomial = [&](float x, float small_beyond) {
      const float tiny_beyond = beyond_limit<Math>(score.tiny, x);
      const float tiny = capped_score<Math>(score.tiny, x, tiny_beyond);
      const float small = capped_score<Math>(score.small, x, small_beyond);
      return tiny_beyond < 0 ? tiny : small;
    };
    bool is_small = true;
#pragma unroll
    for (int i = 0; i < count; ++i) is_small &= beyond_limit<Math>(score.small, scores[i]) < 0;
    if (__all_sync(0xffffffffu, is_small)) {
#pragma unroll
      for (int i = 0; i < count; ++i) scores[i] = polynomial(scores[i], beyond_limit<Math>(score.small, scores[i]));
    } else {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const float small_beyond = beyond_limit<Math>(score.small, scores[i]);
        const float small = polynomial(scores[i], small_beyond), large = capped_score<Math>(score, scores[i]);
        scores[i] = small_beyond < 0 ? small : large;
      }
    }
  }

  // ALiBi and bias; the boolean mask hides.
  template <class Params, int m_blocks, int n_blocks>
  MICA_DEVICE void add(float (&scores)[m_blocks][n_blocks][4], const Params& p, const Band& band, i32 batch, i32 head,
                       i32 query_begin, i32 key_begin) const {
    if (has(p, kFeatureAlibi)) add_alibi_to(scores, query_begin + band.shift - key_begin);
    if (has(p, kFeatureBias))
      for_each_line(
          scores, p.bias, band, batch, head, query_begin, key_begin,
          [&](auto& row, const PairsLine& line) { add_bias_line(row, p.bias, line); },
          [&](float& x, i64 index) { x = add_bias<FloatMath>(x, load_one(p.bias.data, index, p.bias.dtype)); },
          [](float&) {});
    if (has(p, kFeatureBoolean))
      for_each_line(
          scores, p.boolean, band, batch, head, query_begin, key_begin,
          [&](auto& row, const PairsLine& line) { hide_line(row, p.boolean, line); },
          [&](float& x, i64 index) {
            if (!static_cast<const u8*>(p.boolean.data)[index]) x = -infinity();
          },
          [](float& x) { x = -infinity(); });
  }

  template <class Params, int m_blocks, int n_blocks>
  MICA_DEVICE void score(float (&scores)[m_blocks][n_blocks][4], const Params& p, const Band& band, i32 batch, i32 head,
                         i32 query_begin, i32 key_begin) const {
    if (is_line(scores, p, band, query_begin, key_begin)) {
      const float first = add_line(scores, p, band, query_begin, key_begin),
                  step = transposed ? slope_log2 : -slope_log2;
#pragma unroll
      for (int m = 0; m < m_blocks; ++m)
#pragma unroll
        for (int n = 0; n < n_blocks; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) scores[m][n][e] += fmaf(step, float(m * 16 + e / 2 * 8), first);
      return;
    }
    scale(scores, p);
    add(scores, p, band, batch, head, query_begin, key_begin);
  }

  // Whether scale and ALiBi are all there is, and no key of the fragment lies after a query: ALiBi is a line then, a
  // part for the row and a part for the column.
  template <class Params, int m_blocks, int n_blocks>
  static MICA_DEVICE bool is_line(const float (&)[m_blocks][n_blocks][4], const Params& p, const Band& band,
                                  i32 query_begin, i32 key_begin) {
    return has(p, kFeatureAlibi) && (p.features & served & (serves::SCORE | serves::PAIRS)) == kFeatureAlibi &&
           query_begin + band.shift - key_begin >= (transposed ? m_blocks * 16 : n_blocks * 8) - 1;
  }
  // Scale, and the part of the columns. Returns that of the lane's first row, which changes by -slope_log2 a row
  // (transposed: by slope_log2).
  template <class Params, int m_blocks, int n_blocks>
  MICA_DEVICE float add_line(float (&scores)[m_blocks][n_blocks][4], const Params& p, const Band& band, i32 query_begin,
                             i32 key_begin) const {
    const i32 lane = threadIdx.x % 32, down = lane / 4, across = lane % 4 * 2;
    const i32 offset = query_begin + band.shift - key_begin;
    const float step = transposed ? -slope_log2 : slope_log2;
#pragma unroll
    for (int m = 0; m < m_blocks; ++m)
#pragma unroll
      for (int n = 0; n < n_blocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          scores[m][n][e] = fmaf(scores[m][n][e], p.score.scale_log2, step * float(n * 8 + e % 2));
    return -slope_log2 * float(transposed ? offset + across - down : offset + down - across);
  }

  // Calls function(m, n, e) for every dropped element. query_begin: a multiple of 16, key_begin: of 32.
  template <int m_blocks, int n_blocks, class Params, class Function>
  MICA_DEVICE void for_each_dropped(const Params& p, i32 batch, i32 head, i32 query_begin, i32 key_begin,
                                    Function function) const {
    const i32 lane = threadIdx.x % 32;
    if constexpr (served & kFeatureApartCells)
      if (p.features & kFeatureApartCells) {
        for_each_dropped_apart<m_blocks, n_blocks>(p, dropout_head(p.dropout.place, batch, head), query_begin,
                                                   key_begin, function);
        return;
      }
    if constexpr (!transposed) {
      // One Philox block has the lane's 2 rows by 8 columns of 32 keys.
#pragma unroll
      for (int m = 0; m < m_blocks; ++m)
#pragma unroll
        for (int n = 0; n < n_blocks; n += 4) {
          const PhiloxBlock<ScalarWords> block =
              block_of(p, batch, head, query_begin + m * 16 + lane / 4, key_begin + n * 8 + lane % 4 * 2);
#pragma unroll
          for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e)
              if (dropout_bits(block, e / 2 * 8 + i * 2 + e % 2) >= p.dropout.threshold) function(m, n + i, e);
        }
    } else {
      // One Philox block has, of one query and the eighth after it, the lane's 4 keys of 32 (and a neighbour's 4).
#pragma unroll
      for (int m = 0; m < m_blocks; m += 2)
#pragma unroll
        for (int n = 0; n < n_blocks; n += 2)
#pragma unroll
          for (int parity = 0; parity < 2; ++parity) {
            const PhiloxBlock<ScalarWords> block =
                block_of(p, batch, head, query_begin + n * 8 + lane % 4 * 2 + parity, key_begin + m * 16 + lane / 4);
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
              for (int i = 0; i < 4; ++i)
                if (dropout_bits(block, half * 8 + i * 2, lane / 4 % 2) >= p.dropout.threshold)
                  function(m + i / 2, n + half, i % 2 * 2 + parity);
          }
    }
  }

  // The same where neighbours do not share cells: each pair draws a block of its own. The bits are found in a loop and
  // looked at in the open, so that the fragment stays in registers.
  template <int m_blocks, int n_blocks, class Params, class Function>
  MICA_DEVICE void for_each_dropped_apart(const Params& p, u32 head_index, i32 query_begin, i32 key_begin,
                                          Function function) const {
    constexpr int kBlocks = m_blocks * n_blocks;
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int first = 0; first < kBlocks; first += 8) {
      constexpr int kWord = kBlocks < 8 ? kBlocks : 8;
      u32 kept = 0;
#pragma unroll 1
      for (int i = 0; i < kWord * 4; ++i) {
        const int block = first + i / 4, e = i % 4;
        const i32 down = block / n_blocks * 16 + lane / 4 + e / 2 * 8,
                  across = block % n_blocks * 8 + lane % 4 * 2 + e % 2;
        const i32 query = query_begin + (transposed ? across : down), at = key_begin + (transposed ? down : across);
        const bool keep = is_kept(key, p.dropout.threshold, head_index, dropout_row(p.dropout.place, query),
                                  dropout_key(p.dropout.place, at));
        kept |= u32(keep) << i;
      }
#pragma unroll
      for (int i = 0; i < kWord * 4; ++i)
        if (first + i / 4 < kBlocks && !(kept >> i & 1))
          function((first + i / 4) / n_blocks, (first + i / 4) % n_blocks, i % 4);
    }
  }

  // The Philox block of a pair, where the place keeps cells together (keeps_cells).
  template <class Params>
  MICA_DEVICE PhiloxBlock<ScalarWords> block_of(const Params& p, i32 batch, i32 head, i32 query, i32 key_index) const {
    const DropoutPlace& at = p.dropout.place;
    const DropoutCell cell = dropout_cell(query + at.row_first, key_index + at.key_first);
    return philox<ScalarWords>(key, cell.row, cell.column, dropout_head(at, batch, head));
  }

 private:
  // offset: the distance of the fragment's first query and key. Distances are counted on in floats: turning each from
  // an integer would cost as much as an exponential.
  template <int m_blocks, int n_blocks>
  MICA_DEVICE void add_alibi_to(float (&scores)[m_blocks][n_blocks][4], i32 offset) const {
    const i32 lane = threadIdx.x % 32, down = lane / 4, across = lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < m_blocks; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const i32 row = down + m * 16 + half * 8;
        const float first = float(transposed ? offset + across - row : offset + row - across);
#pragma unroll
        for (int n = 0; n < n_blocks; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = scores[m][n][2 * half + e];
            x = add_alibi<FloatMath>(x, slope_log2, transposed ? first + float(n * 8 + e) : first - float(n * 8 + e));
          }
      }
  }

  // Loops over a tensor of pairs with the fragment, a line of keys of one query at a time: whole(row, line) for a row
  // of a fragment that is not transposed, inside(score, index) and outside(score) for each score of one that is.
  template <int m_blocks, int n_blocks, class Whole, class Inside, class Outside>
  static MICA_DEVICE void for_each_line(float (&scores)[m_blocks][n_blocks][4], const PairsArg& a, const Band& band,
                                        i32 batch, i32 head, i32 query_begin, i32 key_begin, Whole whole, Inside inside,
                                        Outside outside) {
    const i32 lane = threadIdx.x % 32;
    if constexpr (!transposed) {
#pragma unroll
      for (int m = 0; m < m_blocks; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const i32 query = query_begin + m * 16 + half * 8 + lane / 4;
          FragmentRow<n_blocks> row = {scores[m], half};
          const i32 first = key_begin + lane % 4 * 2;
          if constexpr (served & kFeatureLastKeys)
            whole(row, a.last_keys > 0 ? last_line_of(a, band, batch, head, query, first)
                                       : line_of(a, band, batch, head, query, first));
          else
            whole(row, line_of(a, band, batch, head, query, first));
        }
    } else {
#pragma unroll
      for (int n = 0; n < n_blocks; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const i32 query = query_begin + n * 8 + lane % 4 * 2 + e;
          const PairsLine line = line_of(a, band, batch, head, query, key_begin + lane / 4);
#pragma unroll
          for (int m = 0; m < m_blocks; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              float& x = scores[m][n][2 * half + e];
              const i32 distance = m * 16 + half * 8;
              if (distance < line.limit)
                inside(x, line.index + distance * a.stride_key);
              else
                outside(x);
            }
        }
    }
  }

  // Byte k, which is known at compile time, or the one after it.
  static MICA_DEVICE u32 dropout_bits(const PhiloxBlock<ScalarWords>& block, u32 k, u32 next = 0) {
    return next ? MICA_NS::dropout_bits(block, k + 1) : MICA_NS::dropout_bits(block, k);
  }
};

}  // namespace mica
