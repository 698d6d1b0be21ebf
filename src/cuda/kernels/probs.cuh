// SPDX-License-Identifier: Apache-2.0
// For tests: the softmax itself, negative where dropped, from the LSE that forward left. A warp owns one row of the
// output, a lane every 32nd key; plain and slow.
#pragma once

#include "core/random.h"
#include "device/attend.cuh"
#include "kernels/params.h"

namespace mica {

struct ProbsRow {
  const ProbsParams& params;
  const ForwardParams& p;
  i32 b, head, row;
  Sequence sequence;
  Band band;

  MICA_DEVICE float product(i32 key) const {
    const i64 q = head * p.q.stride_head + query_row_offset(sequence, row, p.q.stride_batch, p.q.stride_row);
    const i64 k = head / p.group * p.k.stride_head +
                  key_row_offset(p.sequences, sequence, b, key, p.k.stride_batch, p.k.stride_row);
    float sum = 0;
    for (i32 c = 0; c < p.dim_qk; ++c)
      sum = fmaf(load_as_float(p.q.data, q + c, params.dtype), load_as_float(p.k.data, k + c, params.dtype), sum);
    return sum;
  }

  // In log2 units; -inf where the boolean mask hides.
  MICA_DEVICE float score(i32 key) const {
    float x = score_of_product<FloatMath>(p.score, product(key));
    if (p.alibi) {
      const float slope = p.alibi[b * p.alibi_stride_batch + head * p.alibi_stride_head];
      x = add_alibi<FloatMath>(x, slope * kLog2E, float(row + band.shift - key));
    }
    if (p.bias.data && row < p.bias.rows && key < p.bias.keys)
      x = add_bias<FloatMath>(x, load_as_float(p.bias.data, index_in(p.bias, key), p.bias.dtype));
    if (!p.boolean.data) return x;
    const bool visible = row < p.boolean.rows && key < p.boolean.keys &&
                         static_cast<const u8*>(p.boolean.data)[index_in(p.boolean, key)];
    return visible ? x : -infinity();
  }

  MICA_DEVICE i64 index_in(const PairsArg& t, i32 key) const {
    return b * t.stride_batch + head * t.stride_head + row * t.stride_row + key * t.stride_key;
  }

  MICA_DEVICE float probability(i32 key, float lse_log2, const PhiloxKey& dropout_key) const {
    if (!is_visible(band, row, key)) return 0.0f;
    const float value = ex2_approx(score(key) - reference_of<FloatMath>(lse_log2));
    const bool kept = !(p.features & kFeatureDropout) ||
                      is_kept(dropout_key, p.dropout.threshold, u32(b * p.heads_q + head), u32(row), u32(key));
    return kept ? value : -value;
  }
};

MICA_DEVICE void write_probs(const ProbsParams& params) {
  const ForwardParams& p = params.forward;
  i64 index = i64(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (index >= i64(p.batch) * p.heads_q * params.rows) return;
  const i32 row = i32(index % params.rows);
  index /= params.rows;
  const i32 head = i32(index % p.heads_q), b = i32(index / p.heads_q);
  const Sequence s = sequence_of(p.sequences, b);
  const Band band = {s.len_q, s.len_k, p.band.bottom_right ? s.len_k - s.len_q : 0, p.band.window_left,
                     p.band.window_right};
  const ProbsRow probs = {params, p, b, head, row, s, band};
  const PhiloxKey key = p.dropout.rng_state ? philox_key(p.dropout.rng_state[0], p.dropout.rng_state[1])
                                            : philox_key(p.dropout.seed, p.dropout.offset);
  const float lse =
      row < s.len_q
          ? p.lse[s.q_slot * p.lse_stride_batch + head * p.lse_stride_head + (s.q_begin + row) * p.lse_stride_row]
          : -infinity();
  for (i32 j = threadIdx.x % 32; j < params.keys; j += 32)
    params
        .probs[b * params.stride_batch + head * params.stride_head + row * params.stride_row + j * params.stride_key] =
        probs.probability(j, lse * kLog2E, key);
}

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::ProbsParams params) {
  mica::write_probs(params);
}
