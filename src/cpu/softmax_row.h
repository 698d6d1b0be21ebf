// SPDX-License-Identifier: Apache-2.0
// One row of a tile: from products to probabilities, by the online softmax.
#pragma once

#include "cpu/dropout.h"
#include "cpu/engine.h"
#include "cpu/finish.h"
#include "cpu/score_row.h"

namespace MICA_NS {

struct TileKeys {
  i32 begin;       // the first key of the tile
  i32 count;       // keys that exist
  bool test_band;  // some pair of the tile is hidden by the band
};

// products: kLanes-padded. Writes probabilities * exp2(maximum) to `probabilities`, zero-padded to ld, and returns the
// factor by which what was accumulated before shrinks.
template <class Element>
HWY_INLINE float softmax_row(const CpuCall& call, const Scoring& scoring, const RowPlace& row, const TileKeys& keys,
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

  Vector max = load(products);
  for (i32 c = kLanes; c < count; c += kLanes) max = hn::Max(max, load(products + c));
  const float tile_max = reduce_max(max) * scale;
  // A tile that does not raise the maximum has factor 1: absorb would say the same, more slowly.
  const float factor = tile_max <= state.max ? 1.0f : absorb<ScalarMath>(state, tile_max);

  const Vector reference = set(-reference_of<ScalarMath>(state.max)), scales = set(scale);
  const bool drops = p.dropout > 0;
  Vector sum = set(0);
  i32 c = 0;
  for (; c < count; c += kLanes) {
    const Vector e = VectorMath::exp2(hn::MulAdd(load(products + c), scales, reference));
    sum = hn::Add(sum, e);
    if (drops)
      store(e, products + c);
    else
      store_elements(probabilities + c, e);
  }
  state.sum += reduce_sum(sum);
  if (drops) {
    drop_row(call.philox, keep_threshold(p.dropout), u32(row.b * p.heads_q + row.head), row.i, keys.begin, products,
             count);
    for (c = 0; c < count; c += kLanes) store_elements(probabilities + c, load(products + c));
  }
  for (; c < ld; ++c) probabilities[c] = 0;
  return factor;
}

HWY_INLINE void scale_row(float* row, float factor, i64 count) {
  const Vector f = set(factor);
  for (i64 c = 0; c < count; c += kLanes) store(hn::Mul(load(row + c), f), row + c);
}

}  // namespace MICA_NS
