// SPDX-License-Identifier: Apache-2.0
// What only the full kernels do to a fragment: softcap, ALiBi, bias, boolean mask and dropout, each behind a branch
// that is uniform over the grid. Forward's fragments have queries as rows; backward's are transposed: their rows are
// keys.
#pragma once

#include "core/random.h"
#include "device/attend.cuh"
#include "kernels/params.h"

namespace mica {

template <bool transposed, class Math = FloatMath>
struct FeatureState {
  float slope_log2;
  PhiloxKey key;

  template <class Params>
  MICA_DEVICE void begin(const Params& p, i32 batch, i32 head) {
    if (p.features & kFeatureAlibi)
      slope_log2 = p.alibi[batch * p.alibi_stride_batch + head * p.alibi_stride_head] * kLog2E;
    if (p.features & kFeatureDropout)
      key = p.dropout.rng_state ? philox_key(p.dropout.rng_state[0], p.dropout.rng_state[1])
                                : philox_key(p.dropout.seed, p.dropout.offset);
  }

  // Calls function(element, query, key) for every score of the fragment.
  template <int m_blocks, int n_blocks, class Function>
  static MICA_DEVICE void for_each(float (&scores)[m_blocks][n_blocks][4], i32 query_begin, i32 key_begin,
                                   Function function) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < m_blocks; ++m)
#pragma unroll
      for (int n = 0; n < n_blocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const i32 down = m * 16 + e / 2 * 8 + lane / 4, across = n * 8 + lane % 4 * 2 + e % 2;
          function(scores[m][n][e], query_begin + (transposed ? across : down),
                   key_begin + (transposed ? down : across));
        }
  }

  // Products to scores in log2 units; the boolean mask hides.
  template <class Params, int m_blocks, int n_blocks>
  MICA_DEVICE void score(float (&scores)[m_blocks][n_blocks][4], const Params& p, const Band& band, i32 batch, i32 head,
                         i32 query_begin, i32 key_begin) const {
    for_each(scores, query_begin, key_begin, [&](float& x, i32, i32) { x = score_of_product<Math>(p.score, x); });
    if (p.features & kFeatureAlibi)
      for_each(scores, query_begin, key_begin, [&](float& x, i32 query, i32 key) {
        x = add_alibi<FloatMath>(x, slope_log2, float(query + band.shift - key));
      });
    if (p.features & kFeatureBias) {
      const i64 offset = batch * p.bias.stride_batch + head * p.bias.stride_head;
      for_each(scores, query_begin, key_begin, [&](float& x, i32 query, i32 key) {
        if (query < min_of(p.bias.rows, band.len_q) && key < min_of(p.bias.keys, band.len_k))
          x = add_bias<FloatMath>(
              x,
              load_as_float(p.bias.data, offset + query * p.bias.stride_row + key * p.bias.stride_key, p.bias.dtype));
      });
    }
    if (p.features & kFeatureBoolean) {
      const u8* data =
          static_cast<const u8*>(p.boolean.data) + batch * p.boolean.stride_batch + head * p.boolean.stride_head;
      for_each(scores, query_begin, key_begin, [&](float& x, i32 query, i32 key) {
        const bool inside = query < min_of(p.boolean.rows, band.len_q) && key < min_of(p.boolean.keys, band.len_k);
        if (!inside || !data[query * p.boolean.stride_row + key * p.boolean.stride_key]) x = -infinity();
      });
    }
  }

  // Calls function(m, n, e) for every dropped element. query_begin: a multiple of 16, key_begin: of 32.
  template <int m_blocks, int n_blocks, class Params, class Function>
  MICA_DEVICE void for_each_dropped(const Params& p, i32 head_index, i32 query_begin, i32 key_begin,
                                    Function function) const {
    const i32 lane = threadIdx.x % 32;
    if constexpr (!transposed) {
      // One Philox block has the lane's 2 rows by 8 columns of 32 keys.
#pragma unroll
      for (int m = 0; m < m_blocks; ++m)
#pragma unroll
        for (int n = 0; n < n_blocks; n += 4) {
          const PhiloxBlock<ScalarWords> block =
              block_of(query_begin + m * 16 + lane / 4, key_begin + n * 8 + lane % 4 * 2, head_index);
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
                block_of(query_begin + n * 8 + lane % 4 * 2 + parity, key_begin + m * 16 + lane / 4, head_index);
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
              for (int i = 0; i < 4; ++i)
                if (dropout_bits(block, half * 8 + i * 2, lane / 4 % 2) >= p.dropout.threshold)
                  function(m + i / 2, n + half, i % 2 * 2 + parity);
          }
    }
  }

 private:
  MICA_DEVICE PhiloxBlock<ScalarWords> block_of(i32 query, i32 key_index, i32 head_index) const {
    const DropoutCell cell = dropout_cell(query, key_index);
    return philox<ScalarWords>(key, cell.row, cell.column, head_index);
  }
  // Byte k, which is known at compile time, or the one after it.
  static MICA_DEVICE u32 dropout_bits(const PhiloxBlock<ScalarWords>& block, u32 k, u32 next = 0) {
    return next ? MICA_NS::dropout_bits(block, k + 1) : MICA_NS::dropout_bits(block, k);
  }
};

}  // namespace mica
