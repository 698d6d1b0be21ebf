// SPDX-License-Identifier: Apache-2.0
// One row of a tile: from products to probabilities, by the online softmax.
#pragma once

#include "cpu/dropout.h"
#include "cpu/engine/engine.h"
#include "cpu/forward/finish.h"
#include "cpu/score_row.h"

namespace MICA_NS {

struct TileKeys {
  i32 begin;       // the first key of the tile
  i32 count;       // keys that exist
  bool test_band;  // some pair of the tile is hidden by the band
};

// Rows are worked on in groups of vectors, each with a maximum and a sum of its own; a key belongs to the same one
// wherever the tile ends, so that the sum's bits do not depend on it. Of the last group only the vectors with keys.
constexpr i32 kRowVectors = 4;
constexpr i32 kRowGroup = kRowVectors * kLanes;

HWY_INLINE float max_of_row(const float* row, i32 count) {
  Vector max[kRowVectors];
#pragma GCC unroll 4
  for (i32 v = 0; v < kRowVectors; ++v) max[v] = load(row + (v * kLanes < count ? v * kLanes : 0));
  i32 c = kRowGroup;
  for (; c + kRowGroup <= count; c += kRowGroup)
#pragma GCC unroll 4
    for (i32 v = 0; v < kRowVectors; ++v) max[v] = hn::Max(max[v], load(row + c + v * kLanes));
  for (; c < count; c += kLanes) max[0] = hn::Max(max[0], load(row + c));
  return reduce_max(hn::Max(hn::Max(max[0], max[1]), hn::Max(max[2], max[3])));
}

// Of a score, as precise as the element that it is rounded to asks for.
template <class Element>
HWY_INLINE Vector exponential(Vector x) {
  return sizeof(Element) == 2 ? VectorMath::exp2_for_16_bits(x) : VectorMath::exp2(x);
}

// to = exp2(row * scale - reference); returns the sum. `to` may be the row itself. count is a multiple of kLanes.
template <class Element>
HWY_INLINE float exponentials(const float* row, float scale, float reference, Element* to, i32 count) {
  const Vector scales = set(scale), shift = set(-reference);
  Vector sum[kRowVectors];
#pragma GCC unroll 4
  for (i32 v = 0; v < kRowVectors; ++v) sum[v] = set(0);
  i32 c = 0;
  for (; c + kRowGroup <= count; c += kRowGroup) {
    Vector e[kRowVectors];
#pragma GCC unroll 4
    for (i32 v = 0; v < kRowVectors; ++v)
      e[v] = exponential<Element>(hn::MulAdd(load(row + c + v * kLanes), scales, shift));
#pragma GCC unroll 4
    for (i32 v = 0; v < kRowVectors; ++v) {
      sum[v] = hn::Add(sum[v], e[v]);
      store_elements(to + c + v * kLanes, e[v]);
    }
  }
#pragma GCC unroll 3
  for (i32 v = 0; v < kRowVectors - 1; ++v) {
    if (c + v * kLanes >= count) break;
    const Vector e = exponential<Element>(hn::MulAdd(load(row + c + v * kLanes), scales, shift));
    sum[v] = hn::Add(sum[v], e);
    store_elements(to + c + v * kLanes, e);
  }
  return reduce_sum(hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3])));
}

HWY_INLINE void scale_row(float* row, float factor, i64 count) {
  const Vector f = set(factor);
  for (i64 c = 0; c < count; c += kLanes) store(hn::Mul(load(row + c), f), row + c);
}

// Far beyond it, product * scale - reference in one rounding is off by more than the exponential bears: the reference
// was rounded by itself. Below, the error is the same for all keys of a row and cancels.
constexpr float kLargeScore = 1 << 20;
HWY_INLINE bool is_large(float score) { return !(score < kLargeScore && score > -kLargeScore); }

// products: with room for a multiple of kLanes. Writes probabilities * exp2(maximum) to `probabilities`, zero-padded
// to ld, and returns the factor by which what was accumulated before shrinks.
template <class Element>
inline float softmax_row(const CpuCall& call, const Scoring& scoring, const RowPlace& row, const TileKeys& keys,
                         float* products, SoftmaxState<ScalarMath>& state, Element* probabilities, i64 ld) {
  const Problem& p = *call.problem;
  const i32 count = round_up(keys.count, kLanes);
  const bool test_band = keys.test_band || count != keys.count;
  float scale = scoring.score.scale_log2;
  if (!scoring.is_plain) {
    score_row(scoring, products, row.head, row.i, keys.begin, count, test_band);
    scale = 1;
  } else if (test_band) {
    hide_by_band(scoring.band, products, row.i, keys.begin, count);
  }
  if (p.probs.dtype != MICA_NONE)
    keep_scores(call, row, keys_of_row(scoring.band, row.i), products, keys.begin, keys.count);

  // Lower than it is where probabilities are raised: a state says the same with any maximum.
  float tile_max = max_of_row(products, count) * scale;
  if (!is_large(tile_max)) tile_max -= kRaisedLog2<Element>;
  // A tile that does not raise the maximum has factor 1, and the first tile has nothing to shrink: absorb would say the
  // same, more slowly.
  float factor = 1;
  if (state.max == -infinity())
    state.max = tile_max;
  else if (!(tile_max <= state.max))
    factor = absorb<ScalarMath>(state, tile_max);
  const float reference = reference_of<ScalarMath>(state.max);
  if (scale != 1 && is_large(reference)) {
    scale_row(products, scale, count);
    scale = 1;
  }
  i32 c = count;
  if (p.dropout == 0) {
    state.sum += exponentials(products, scale, reference, probabilities, count);
  } else {
    state.sum += exponentials(products, scale, reference, products, count);
    drop_row(call.philox, p, row.b, row.head, row.i, keys.begin, products, count);
    for (c = 0; c < count; c += kLanes) store_elements(probabilities + c, load(products + c));
  }
  for (; c < ld; ++c) probabilities[c] = 0;
  return factor;
}

}  // namespace MICA_NS
