// SPDX-License-Identifier: Apache-2.0
// What only the full kernels do to a fragment: softcap, ALiBi, bias, boolean mask and dropout, each behind a branch
// that is uniform over the grid.
#pragma once

#include "core/random.h"
#include "device/attend.cuh"
#include "kernels/params.h"

namespace mica {

struct FeatureState {
  float slope_log2;
  PhiloxKey key;

  MICA_DEVICE void begin(const ForwardParams& p, i32 batch, i32 head) {
    if (p.features & kFeatureAlibi)
      slope_log2 = p.alibi[batch * p.alibi_stride_batch + head * p.alibi_stride_head] * kLog2E;
    if (p.features & kFeatureDropout)
      key = p.dropout.rng_state ? philox_key(p.dropout.rng_state[0], p.dropout.rng_state[1])
                                : philox_key(p.dropout.seed, p.dropout.offset);
  }

  // Calls function(element, row, key) for every score of the fragment.
  template <int m_blocks, int n_blocks, class Function>
  static MICA_DEVICE void for_each(float (&scores)[m_blocks][n_blocks][4], i32 row_begin, i32 key_begin,
                                   Function function) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < m_blocks; ++m)
#pragma unroll
      for (int n = 0; n < n_blocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          function(scores[m][n][e], row_begin + m * 16 + e / 2 * 8 + lane / 4,
                   key_begin + n * 8 + lane % 4 * 2 + e % 2);
  }

  // Products to scores in log2 units; the boolean mask hides.
  template <int m_blocks, int n_blocks>
  MICA_DEVICE void score(float (&scores)[m_blocks][n_blocks][4], const ForwardParams& p, const Band& band, i32 batch,
                         i32 head, i32 row_begin, i32 key_begin) const {
    for_each(scores, row_begin, key_begin, [&](float& x, i32, i32) { x = score_of_product<FloatMath>(p.score, x); });
    if (p.features & kFeatureAlibi)
      for_each(scores, row_begin, key_begin, [&](float& x, i32 row, i32 key) {
        x = add_alibi<FloatMath>(x, slope_log2, float(row + band.shift - key));
      });
    if (p.features & kFeatureBias) {
      const i64 offset = batch * p.bias.stride_batch + head * p.bias.stride_head;
      for_each(scores, row_begin, key_begin, [&](float& x, i32 row, i32 key) {
        if (row < min_of(p.bias.rows, band.len_q) && key < min_of(p.bias.keys, band.len_k))
          x = add_bias<FloatMath>(
              x, load_as_float(p.bias.data, offset + row * p.bias.stride_row + key * p.bias.stride_key, p.bias.dtype));
      });
    }
    if (p.features & kFeatureBoolean) {
      const u8* data =
          static_cast<const u8*>(p.boolean.data) + batch * p.boolean.stride_batch + head * p.boolean.stride_head;
      for_each(scores, row_begin, key_begin, [&](float& x, i32 row, i32 key) {
        const bool inside = row < min_of(p.boolean.rows, band.len_q) && key < min_of(p.boolean.keys, band.len_k);
        if (!inside || !data[row * p.boolean.stride_row + key * p.boolean.stride_key]) x = -infinity();
      });
    }
  }

  // Dropped probabilities become 0; the sum has them already. One Philox block serves 2 rows by 8 columns of a lane.
  template <int m_blocks, int n_blocks>
  MICA_DEVICE void drop(float (&probabilities)[m_blocks][n_blocks][4], const ForwardParams& p, i32 head_index,
                        i32 row_begin, i32 key_begin) const {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < m_blocks; ++m)
#pragma unroll
      for (int n = 0; n < n_blocks; n += 4) {
        const DropoutCell cell = dropout_cell(row_begin + m * 16 + lane / 4, key_begin + n * 8 + lane % 4 * 2);
        const PhiloxBlock<ScalarWords> block = philox<ScalarWords>(key, cell.row, cell.column, head_index);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (dropout_bits(block, e / 2 * 8 + i * 2 + e % 2) >= p.dropout.threshold)
              probabilities[m][n + i][e] = 0.0f;
      }
  }
};

}  // namespace mica
