// SPDX-License-Identifier: Apache-2.0
// What a consumer of forward_sm90 makes of the products of a key tile: scores by what the kernel serves, their
// exponentials and sums, relative to a maximum that most tiles take over from those before, and P as wgmma wants it.
#pragma once

#include "device/wgmma.cuh"
#include "kernels/forward/fetch_sm90.cuh"
#include "kernels/options/cap.cuh"
#include "kernels/parts/consumer_sm90.cuh"

namespace mica {

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages, int blocks, u32 served,
          int cluster>
struct ForwardScoresSm90
    : ForwardFetchSm90<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, blocks, served, cluster> {
  using Fetch = ForwardFetchSm90<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, blocks, served, cluster>;
  using Fetch::band;
  using Fetch::batch_index;
  using Fetch::head;
  using Fetch::k_place;
  using Fetch::key_begin;
  using Fetch::p;
  using Fetch::q_stage;
  using Fetch::smem_k;
  using Fetch::smem_q;
  using Fetch::tiles;
  using typename Fetch::KTile;
  using typename Fetch::QTile;
  using Scores = float[1][tile_k / 8][4];
  static_assert(!(served & kFeatureDropout) || tile_k % 32 == 0);

  // Most tiles need no maximum: all keys are seen, every row has a maximum from the tiles before, and what is relative
  // to that one is right as long as nothing overflows. So the exponentials begin at once. Masks and biases are read
  // once, so that scores could not be made again.
  static constexpr bool kCaps = served == serves::SOFTCAP, kMayBeBounded = kCaps && Element::kDtype == MICA_BF16;
  static constexpr bool kFollowsOn = dim_v < 256 && !(served & serves::PAIRS) && !kMayBeBounded;

  TileRange own;  // the consumer's
  FeatureState<false, FloatMath, served> features;
  PairsAhead<tile_k / 8> pairs;  // of the next tile, where the kernel serves them

  MICA_DEVICE ForwardScoresSm90(const ForwardMapsParams& params) : Fetch(params) {}

  MICA_DEVICE bool is_partly_hidden(i32 tile) const { return tile < own.full_begin || tile >= own.full_end; }

  MICA_DEVICE void fetch_pairs(i32 row_begin, i32 step) {
    if constexpr (served & serves::PAIRS) {
      if (step >= tiles.end - tiles.begin) return;
      if (this->has(kFeatureBias))
        pairs.template fetch<u16>(p.bias, band, batch_index, head, row_begin, key_begin(step));
      else
        pairs.template fetch<u8>(p.boolean, band, batch_index, head, row_begin, key_begin(step));
    }
  }

  // How this lane's numbers of a tile become scores in log2 units: times scale, plus what is added in each of its rows
  // (by which the lanes of a row differ).
  struct Units {
    float scale, of_row[2];
  };
  // What the kernel serves, applied to the products of a tile; softcap goes with the exponentials.
  MICA_DEVICE Units score(Scores& scores, i32 row_begin, i32 step) {
    if constexpr (kCaps) {
      return {p.score.scale_log2, {0.0f, 0.0f}};
    } else if constexpr (served & serves::SCORE) {
      if (features.is_line(scores, p, band, row_begin, key_begin(step))) {
        const float first = features.add_line(scores, p, band, row_begin, key_begin(step));
        return {1.0f, {first, first - 8 * features.slope_log2}};
      }
      features.score(scores, p, band, batch_index, head, row_begin, key_begin(step));
      return {1.0f, {0.0f, 0.0f}};
    } else if constexpr (served & serves::PAIRS) {
      const bool is_bias = this->has(kFeatureBias);
      if (is_bias)
        add_bias(scores[0]);
      else
        hide(scores[0]);
      fetch_pairs(row_begin, step + 1);
      return {is_bias ? 1.0f : p.score.scale_log2, {0.0f, 0.0f}};
    } else {
      return {p.score.scale_log2, {0.0f, 0.0f}};
    }
  }
  MICA_DEVICE void add_bias(float (&scores)[tile_k / 8][4]) const {
    const i32 dtype = p.bias.dtype;
#pragma unroll
    for (int n = 0; n < tile_k / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 two = floats_of(pairs.words[half][n], dtype);
        scores[n][2 * half] = fmaf(two.x, kLog2E, scores[n][2 * half] * p.score.scale_log2);
        scores[n][2 * half + 1] = fmaf(two.y, kLog2E, scores[n][2 * half + 1] * p.score.scale_log2);
      }
  }
  MICA_DEVICE void hide(float (&scores)[tile_k / 8][4]) const {
#pragma unroll
    for (int n = 0; n < tile_k / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (!(pairs.words[e / 2][n] & (e % 2 ? 0xff00u : 0xffu))) scores[n][e] = -infinity();
  }

  MICA_DEVICE void drop(Scores& probabilities, i32 row_begin, i32 step) const {
    if constexpr (served & kFeatureDropout)
      features.template for_each_dropped<1, tile_k / 8>(p, batch_index, head, row_begin, key_begin(step),
                                                        [&](int m, int n, int e) { probabilities[m][n][e] = 0.0f; });
  }

  // Scores that softcap holds within these bounds (log2 units) need no maximum: bf16 has the range of fp32. Relative to
  // a reference that depends on the cap alone, no P is above 2^64 or below 2^-82.
  static constexpr float kLargestP = 64.0f, kLargestCap = 73.0f;
  MICA_DEVICE bool is_bounded() const {
    if constexpr (kMayBeBounded)
      return this->has(kFeatureSoftcap) && p.score.cap_log2 <= kLargestCap;
    else
      return false;
  }

  // From scores to probabilities, in place; returns by what `out` must be multiplied.
  MICA_DEVICE Factors softmax(Scores& scores, SoftmaxState<FloatMath> (&state)[2], i32 row_begin, i32 step) {
    if constexpr (kCaps)
      if (this->has(kFeatureSoftcap)) return capped_softmax(scores, state, row_begin, step);
    const Units units = score(scores, row_begin, step);
    if (is_partly_hidden(tiles.end - 1 - step)) this->mask(scores, row_begin, key_begin(step));
    Factors factors;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float tile_max = quad_max(fmaf(lane_max(scores[0], half), units.scale, units.of_row[half]));
      factors.of_row[half] = absorb_lazily<FloatMath>(state[half], tile_max);
      const float offset = units.of_row[half] - reference_of<FloatMath>(state[half].max);
      state[half].sum += exponentials(scores[0], half, [&](float x) { return fmaf(x, units.scale, offset); });
    }
    return factors;
  }
  // The same with softcap. Since it keeps the order of scores, the largest is found before it.
  MICA_DEVICE Factors capped_softmax(Scores& scores, SoftmaxState<FloatMath> (&state)[2], i32 row_begin, i32 step) {
    const bool hides = is_partly_hidden(tiles.end - 1 - step);
    Factors factors = {{1.0f, 1.0f}};
    if (is_bounded()) {
      state[0].max = state[1].max = fmaxf(p.score.cap_log2 - kLargestP, 0.0f);
    } else {
      if (hides) this->mask(scores, row_begin, key_begin(step));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float largest = quad_max(lane_max(scores[0], half)), if_none = largest == -infinity() ? largest : 0.0f;
        factors.of_row[half] =
            absorb_lazily<FloatMath>(state[half], capped_score<FloatMath>(p.score, largest) + if_none);
      }
    }
    float sum[2];
    weigh_capped(scores, state, sum);
    if (hides) {
      this->mask(scores, row_begin, key_begin(step));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[half] = 0.0f;
#pragma unroll
        for (int i = 0; i < tile_k / 4; ++i) {
          float& x = scores[0][i / 2][2 * half + i % 2];
          x = x == -infinity() ? 0.0f : x;
          sum[half] += x;
        }
      }
    }
    state[0].sum += sum[0];
    state[1].sum += sum[1];
    return factors;
  }
  // Probabilities of products under softcap relative to the rows' maxima, and the lane's part of their sums.
  MICA_DEVICE void weigh_capped(Scores& scores, const SoftmaxState<FloatMath> (&state)[2], float (&sum)[2]) const {
    const float offset[2] = {-reference_of<FloatMath>(state[0].max), -reference_of<FloatMath>(state[1].max)};
    capped_exponentials(scores[0], p.score, offset, sum);
  }
  MICA_DEVICE bool follows_on(const SoftmaxState<FloatMath> (&state)[2], i32 step) const {
    return kFollowsOn && !is_partly_hidden(tiles.end - 1 - step) &&
           __all_sync(0xffffffffu, fminf(state[0].max, state[1].max) > -infinity());
  }
  // A lane's part of a row's sum: above the first limit the row gets a new maximum, above the second one the numbers
  // may be infinite, and their scores are made again.
  static constexpr float kLargeSum = 8192.0f, kLostSum = 0x1p100f;
  MICA_DEVICE bool follow_on(Scores& scores, SoftmaxState<FloatMath> (&state)[2], i32 group, i32 row_begin, i32 step,
                             Factors& factors) {
    float sum[2];
    if (kCaps && this->has(kFeatureSoftcap)) {
      weigh_capped(scores, state, sum);
    } else {
      const Units units = score(scores, row_begin, step);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float offset = served & serves::SCORE ? units.of_row[half] - state[half].max : -state[half].max;
        sum[half] = exponentials(scores[0], half, [&](float x) { return fmaf(x, units.scale, offset); });
      }
    }
    if (!__any_sync(0xffffffffu, fmaxf(sum[0], sum[1]) > kLargeSum)) {
      state[0].sum += sum[0];
      state[1].sum += sum[1];
      return true;
    }
    if (__any_sync(0xffffffffu, fmaxf(sum[0], sum[1]) > kLostSum)) {
      multiply_again(scores, group);
      return false;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float largest = quad_max(sum[half]);
      const float exponent = largest > kLargeSum ? floorf(lg2_approx(largest)) : 0.0f, factor = ex2_approx(-exponent);
      state[half].max += exponent;
      state[half].sum = (state[half].sum + sum[half]) * factor;
      factors.of_row[half] = factor;
#pragma unroll
      for (int n = 0; n < tile_k / 8; ++n) {
        scores[0][n][2 * half] *= factor;
        scores[0][n][2 * half + 1] *= factor;
      }
    }
    return true;
  }
  // Q K^T of the warp's rows once more, without the other warps that wgmma would need. Slow and hardly ever needed.
  MICA_DEVICE void multiply_again(Scores& scores, i32 group) const {
    const i32 lane = threadIdx.x % 32, row = uniform_warp() % 4 * kWarpRows + lane / 4;
    const u32 q = smem_q + q_stage(group) * QTile::kBytes, k = smem_k + k_place.stage * KTile::kBytes;
    zero(scores);
#pragma unroll 1
    for (i32 column = 0; column < dim_qk; column += 2) {
      const u32 in_chunk = column % 8 * 2;
      const float2 of_row[2] = {unpack<Element>(load_shared_4(q + QTile::offset(row, column / 8) + in_chunk)),
                                unpack<Element>(load_shared_4(q + QTile::offset(row + 8, column / 8) + in_chunk))};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const u32 of_keys = k + KTile::offset(lane % 4 * 2 + e, column / 8) + in_chunk;  // and of every eighth after it
#pragma unroll
        for (int n = 0; n < tile_k / 8; ++n) {
          const float2 of_key = unpack<Element>(load_shared_4(of_keys + n * KTile::kBlockBytes));
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& sum = scores[0][n][2 * half + e];
            sum = fmaf(of_row[half].x, of_key.x, fmaf(of_row[half].y, of_key.y, sum));
          }
        }
      }
    }
    __syncwarp();
  }
  // Waits for O += P V, after all that `sum` is made of, and multiplies.
  static MICA_DEVICE void wait_and_rescale(float (&out)[dim_v / 8][4], const Factors& factors, float sum) {
    finish_before_wait(sum);
    wgmma_wait<0>();
    wgmma_hold(out);
    rescale(out, factors);
  }
};

}  // namespace mica
