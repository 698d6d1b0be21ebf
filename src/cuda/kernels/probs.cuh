// SPDX-License-Identifier: Apache-2.0
// For tests: the softmax itself, negative where dropped. A warp owns one row of the output, a lane every 32nd key; it
// goes over the keys twice, in double, and reads nothing that forward computed.
#pragma once

#include "core/random.h"
#include "device/attend.cuh"
#include "kernels/params.h"

namespace mica {

struct DoubleMath {
  using V = double;
  static MICA_DEVICE V set(float x) { return x; }
  static MICA_DEVICE V add(V a, V b) { return a + b; }
  static MICA_DEVICE V sub(V a, V b) { return a - b; }
  static MICA_DEVICE V mul(V a, V b) { return a * b; }
  static MICA_DEVICE V mul_add(V a, V b, V c) { return fma(a, b, c); }
  static MICA_DEVICE V div(V a, V b) { return a / b; }
  static MICA_DEVICE V max(V a, V b) { return fmax(a, b); }
  static MICA_DEVICE V abs(V a) { return fabs(a); }
  static MICA_DEVICE V exp2(V a) { return ::exp2(a); }
  static MICA_DEVICE V log2(V a) { return ::log2(a); }
  static MICA_DEVICE V tanh(V a) { return ::tanh(a); }
  static MICA_DEVICE V select_if_equal(V a, V b, V yes, V no) { return a == b ? yes : no; }
};
using DoubleState = SoftmaxState<DoubleMath>;

struct ProbsRow {
  const ProbsParams& params;
  const ForwardParams& p;
  i32 b, head, row;
  Sequence sequence;
  Band band;

  MICA_DEVICE double product(i32 key) const {
    const i64 q = head * p.q.stride_head + query_row_offset(sequence, row, p.q.stride_batch, p.q.stride_row);
    const i64 k = head / p.group * p.k.stride_head +
                  key_row_offset(p.sequences, sequence, b, key, p.k.stride_batch, p.k.stride_row);
    double sum = 0;
    for (i32 c = 0; c < p.dim_qk; ++c)
      sum = fma(element(p.q.data, q + c, params.dtype), element(p.k.data, k + c, params.keys_dtype), sum);
    const i32 slot = p.features & kFeaturePageFactors
                         ? clamp_to(paged_row(p.sequences, sequence, b, key).entry, 0, p.sequences.slots_k - 1)
                         : b;
    return sum * descale_at(p.q_descale, b, head / p.group) * descale_at(p.k_descale, slot, head / p.group);
  }
  static MICA_DEVICE double element(const void* data, i64 index, i32 dtype) {
    return dtype == MICA_FP8_E4M3 ? e4m3_to_float(static_cast<const u8*>(data)[index])
                                  : load_as_float(data, index, dtype);
  }

  // In log2 units; -inf where the key is hidden.
  MICA_DEVICE double score(i32 key) const {
    if (!is_visible(band, row, key)) return -infinity();
    double x = score_of_product<DoubleMath>(p.score, product(key));
    if (p.alibi) {
      const double slope = p.alibi[b * p.alibi_stride_batch + head * p.alibi_stride_head];
      x = add_alibi<DoubleMath>(x, slope * kLog2E, double(row + band.shift - key));
    }
    if (p.bias.data && row < p.bias.rows && key < p.bias.keys)
      x = add_bias<DoubleMath>(x, load_as_float(p.bias.data, index_in(p.bias, key), p.bias.dtype));
    if (!p.boolean.data) return x;
    const i32 column = p.boolean.last_keys > 0 ? key - (band.len_k - p.boolean.last_keys) : key;
    const bool visible = row < p.boolean.rows && column < p.boolean.keys &&
                         (column < 0 || static_cast<const u8*>(p.boolean.data)[index_in(p.boolean, column)]);
    return visible ? x : -infinity();
  }

  MICA_DEVICE i64 index_in(const PairsArg& t, i32 key) const {
    return b * t.stride_batch + head * t.stride_head + row * t.stride_row + key * t.stride_key;
  }

  // The state of every 32nd key from `lane` on.
  MICA_DEVICE DoubleState state_of_lane(i32 lane) const {
    DoubleState state = empty_state<DoubleMath>();
    for (i32 key = lane; key < band.len_k; key += 32)
      state = merge<DoubleMath>(state, DoubleState{score(key), 1.0}).state;
    return state;
  }

  MICA_DEVICE bool is_kept_here(const PhiloxKey& key, i32 column) const {
    return !(p.features & kFeatureDropout) ||
           is_kept(key, p.dropout.threshold, dropout_head(p.dropout.place, b, head), dropout_row(p.dropout.place, row),
                   dropout_key(p.dropout.place, column));
  }
};

template <int warps>
MICA_DEVICE void write_probs(const ProbsParams& params, DoubleState (&shared)[warps][32]) {
  const ForwardParams& p = params.forward;
  const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 count = i64(p.batch) * p.heads_q * params.rows;
  i64 index = i64(blockIdx.x) * warps + warp;
  const bool inside = index < count;
  index = inside ? index : 0;
  const i32 row = i32(index % params.rows);
  index /= params.rows;
  const i32 head = i32(index % p.heads_q), b = i32(index / p.heads_q);
  const Sequence s = sequence_of(p.sequences, b);
  const Band band = band_of(p.band, s.len_q, s.len_k);
  const ProbsRow probs = {params, p, b, head, row, s, band};

  shared[warp][lane] = probs.state_of_lane(lane);
  __syncthreads();
  DoubleState state = empty_state<DoubleMath>();
  for (i32 other = 0; other < 32; ++other) state = merge<DoubleMath>(state, shared[warp][other]).state;
  if (p.sinks) {
    const double sink = load_as_float(p.sinks, head * p.sinks_stride, p.sinks_dtype);
    state = merge_sink<DoubleMath>(state, sink * kLog2E).state;
  }
  if (!inside) return;

  const double reference = reference_of<DoubleMath>(state.max), scale = normalizer<DoubleMath>(state);
  const PhiloxKey key = philox_key(p.dropout);
  for (i32 column = lane; column < params.keys; column += 32) {
    const float value = float(exp2(probs.score(column) - reference) * scale);
    params.probs[b * params.stride_batch + head * params.stride_head + row * params.stride_row +
                 column * params.stride_key] = probs.is_kept_here(key, column) ? value : -value;
  }
}

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, MICA_BLOCKS)
    MICA_KERNEL_NAME(const __grid_constant__ mica::ProbsParams params) {
  __shared__ mica::DoubleState shared[MICA_WARPS][32];
  mica::write_probs<MICA_WARPS>(params, shared);
}
