// SPDX-License-Identifier: Apache-2.0
// The online softmax: a running maximum and a running sum, in log2 units. Everything about max, rescaling, normalising,
// LSE, the empty row and joining two partial results is here; split-KV and ring attention join by the same merge.
// M: see score.h.
#pragma once

#include "core/score.h"

namespace MICA_NS {

// Empty: max = -inf, sum = 0. A finished part with a known LSE is the state {lse_log2, 1}.
template <class M>
struct SoftmaxState {
  typename M::V max;
  typename M::V sum;
};

template <class M>
MICA_HD SoftmaxState<M> empty_state() {
  return SoftmaxState<M>{M::set(-infinity()), M::set(0.0f)};
}

// What to subtract from scores before exp2: the maximum, but 0 while no key was visible (so that -inf - max is not
// NaN).
template <class M>
MICA_HD typename M::V reference_of(typename M::V max) {
  return M::select_if_equal(max, M::set(-infinity()), M::set(0.0f), max);
}

// Raises the maximum to cover a new tile. Returns the factor by which what was accumulated so far shrinks (the sum is
// shrunk here). The caller then adds exp2(score - reference_of(state.max)) of the tile to the sum.
template <class M>
MICA_HD typename M::V absorb(SoftmaxState<M>& state, typename M::V tile_max) {
  const typename M::V max = M::max(state.max, tile_max);
  const typename M::V factor = M::exp2(M::sub(state.max, reference_of<M>(max)));
  state.max = max;
  state.sum = M::mul(state.sum, factor);
  return factor;
}

// The same, but the maximum is raised only by a tile that exceeds it by more than 2^kLazyLog2: probabilities then stay
// below 2^kLazyLog2 instead of 1, which no accumulator minds, and most factors are exactly 1, so that a GPU can skip
// the multiplications. M also needs select_if_greater(a, b, yes, no).
constexpr float kLazyLog2 = 8.0f;
constexpr float kLazyLimit = 256.0f;  // 2^kLazyLog2: a probability that calls for a new maximum
template <class M>
MICA_HD typename M::V absorb_lazily(SoftmaxState<M>& state, typename M::V tile_max) {
  const typename M::V max = M::select_if_greater(M::sub(tile_max, state.max), M::set(kLazyLog2), tile_max, state.max);
  const typename M::V factor = M::exp2(M::sub(state.max, reference_of<M>(max)));
  state.max = max;
  state.sum = M::mul(state.sum, factor);
  return factor;
}

// Joins two partial results; the accumulators of each are multiplied by its factor and added.
template <class M>
struct Merge {
  SoftmaxState<M> state;
  typename M::V factor_a, factor_b;
};
template <class M>
MICA_HD Merge<M> merge(const SoftmaxState<M>& a, const SoftmaxState<M>& b) {
  const typename M::V max = M::max(a.max, b.max);
  const typename M::V reference = reference_of<M>(max);
  Merge<M> r;
  r.factor_a = M::exp2(M::sub(a.max, reference));
  r.factor_b = M::exp2(M::sub(b.max, reference));
  r.state.max = max;
  r.state.sum = M::mul_add(a.sum, r.factor_a, M::mul(b.sum, r.factor_b));
  return r;
}

// A sink is a key whose value is zero: it only enters the sum.
template <class M>
MICA_HD Merge<M> merge_sink(const SoftmaxState<M>& state, typename M::V sink_log2) {
  return merge<M>(state, SoftmaxState<M>{sink_log2, M::set(1.0f)});
}

// 1 / sum, by which the accumulators are multiplied at the end; 0 for an empty row.
template <class M>
MICA_HD typename M::V normalizer(const SoftmaxState<M>& state) {
  const typename M::V zero = M::set(0.0f);
  return M::select_if_equal(state.sum, zero, zero, M::div(M::set(1.0f), state.sum));
}

// log2 of the sum of exp2(score); -inf for an empty row.
template <class M>
MICA_HD typename M::V lse_log2(const SoftmaxState<M>& state) {
  return M::add(state.max, M::log2(state.sum));
}

// Backward: what to subtract from a score (log2 units) before exp2, given the natural LSE that forward stored.
// A row whose LSE is infinite, of either sign, was empty: its probabilities are 0.
template <class M>
MICA_HD typename M::V backward_reference(typename M::V lse) {
  const typename M::V inf = M::set(infinity());
  return M::select_if_equal(M::abs(lse), inf, inf, M::mul(lse, M::set(kLog2E)));
}

}  // namespace MICA_NS
