// SPDX-License-Identifier: Apache-2.0
// One row of a tile of scores: from products to scores in log2 units, -inf where hidden.
#pragma once

#include "core/mask.h"
#include "cpu/engine/vector.h"
#include "cpu/isa/isa.h"

namespace MICA_NS {

using mica::CpuCall;
using mica::CpuPlan;
using mica::Problem;
using mica::Tensor;

// Uniform over a sequence.
struct Scoring {
  const Problem* problem;
  const mica_bindings* x;
  Score score;
  Band band;
  i32 batch_index;
  // Scale alone, and positive: the maximum of the scores is the scaled maximum of the products, and a product can be
  // hidden like a score.
  bool is_plain;
};

HWY_API Scoring scoring_of(const CpuCall& call, const Sequence& s, i32 b) {
  const Problem& p = *call.problem;
  Scoring r;
  r.problem = &p;
  r.x = call.x;
  r.score = score_of(p);
  r.band = band_of(p, s.len_q, s.len_k);
  r.batch_index = b;
  r.is_plain = p.scale > 0 && p.softcap == 0 && p.alibi.dtype == MICA_NONE && p.bias.dtype == MICA_NONE &&
               p.boolean.dtype == MICA_NONE && p.probs.dtype == MICA_NONE;
  return r;
}

// Row i of a (batch, heads, rows, keys) tensor: element offset of key 0, and for how many keys it has a value.
struct PairRow {
  i64 offset;
  i64 stride_key;
  i32 num_keys;
};

HWY_API PairRow pair_row(const Tensor& t, i32 b, i32 head, i32 i) {
  PairRow r;
  r.offset = b * t.stride[0] + head * t.stride[1] + i * t.stride[2];
  r.stride_key = t.stride[3];
  const bool inside = t.shape[2] == 1 || i < t.shape[2];
  r.num_keys = !inside ? 0 : (t.shape[3] == 1 ? MICA_MAX_SEQLEN : i32(min_of<i64>(t.shape[3], MICA_MAX_SEQLEN)));
  return r;
}

HWY_API float slope_log2_of(const Scoring& s, i32 head) {
  const Tensor& t = s.problem->alibi;
  return t.dtype == MICA_NONE ? 0.0f : s.x->alibi[s.batch_index * t.stride[0] + head * t.stride[1]] * kLog2E;
}

template <i32 kDtype>
HWY_INLINE i32 add_dense_bias(float* row, const char* bias, i32 count) {
  constexpr i32 kBytes = kDtype == MICA_FP32 ? 4 : 2;
  i32 c = 0;
  for (; c + kLanes <= count; c += kLanes)
    store(add_bias<VectorMath>(load(row + c), load_as<kDtype>(bias + c * kBytes)), row + c);
  return c;
}

inline void add_bias_row(const Scoring& s, float* row, i32 head, i32 i, i32 j_begin, i32 count) {
  const Tensor& t = s.problem->bias;
  const PairRow at = pair_row(t, s.batch_index, head, i);
  const i32 end = clamp_to(at.num_keys - j_begin, 0, count);
  if (end == 0) return;
  const char* base = static_cast<const char*>(s.x->bias) + (at.offset + j_begin * at.stride_key) * dtype_bytes(t.dtype);
  i32 c = 0;
  if (at.stride_key == 1)
    c = t.dtype == MICA_FP32   ? add_dense_bias<MICA_FP32>(row, base, end)
        : t.dtype == MICA_BF16 ? add_dense_bias<MICA_BF16>(row, base, end)
                               : add_dense_bias<MICA_FP16>(row, base, end);
  for (; c < end; ++c) row[c] = add_bias<ScalarMath>(row[c], load_as_float(base, c * at.stride_key, t.dtype));
}

// What hide_by_mask does where the mask is about the last keys alone. A row that it does not have sees nothing.
inline void hide_by_last_keys(const Scoring& s, const PairRow& at, float* row, i32 j_begin, i32 count) {
  const i32 keys = s.problem->mask_last_keys, first = s.band.len_k - keys;  // the key of its column 0
  const u8* mask = static_cast<const u8*>(s.x->boolean_mask) + at.offset;
  for (i32 c = at.num_keys == 0 ? 0 : max_of(first - j_begin, 0); c < count; ++c) {
    const i32 column = j_begin + c - first;
    if (at.num_keys == 0 || column >= keys || !mask[column * at.stride_key]) row[c] = -infinity();
  }
}

// Hides what the boolean mask hides of keys [j_begin, j_begin + count) from row i.
inline void hide_by_mask(const Scoring& s, float* row, i32 head, i32 i, i32 j_begin, i32 count) {
  const PairRow at = pair_row(s.problem->boolean, s.batch_index, head, i);
  if (s.problem->mask_last_keys > 0) return hide_by_last_keys(s, at, row, j_begin, count);
  const i32 end = clamp_to(at.num_keys - j_begin, 0, count);
  const u8* base = end > 0 ? static_cast<const u8*>(s.x->boolean_mask) + at.offset + j_begin * at.stride_key : nullptr;
  i32 c = 0;
  if (at.stride_key == 1) {
    const hn::Rebind<u8, FloatTag> bytes;
    for (; c + kLanes <= end; c += kLanes) {
      const auto flags = hn::PromoteTo(WordTag(), hn::LoadU(bytes, base + c));
      const auto hidden = hn::RebindMask(FloatTag(), hn::Eq(flags, hn::Zero(WordTag())));
      store(hn::IfThenElse(hidden, set(-infinity()), load(row + c)), row + c);
    }
  }
  for (; c < end; ++c)
    if (!base[c * at.stride_key]) row[c] = -infinity();
  for (; c < count; ++c) row[c] = -infinity();
}

// Hides what the band hides of keys [j_begin, j_begin + count) from row i. count is a multiple of kLanes.
HWY_INLINE void hide_by_band(const Band& band, float* row, i32 i, i32 j_begin, i32 count) {
  const Range keys = keys_of_row(band, i);
  const i32 begin = clamp_to(keys.begin - j_begin, 0, count), end = clamp_to(keys.end - j_begin, begin, count);
  const Vector hidden = set(-infinity());
  // In whole vectors, which are loaded again at once.
  for (i32 c = 0; c < begin; c += kLanes)
    store(hn::IfThenElse(hn::Lt(hn::Iota(FloatTag(), float(c)), set(float(begin))), hidden, load(row + c)), row + c);
  for (i32 c = end / kLanes * kLanes; c < count; c += kLanes)
    store(hn::IfThenElse(hn::Lt(hn::Iota(FloatTag(), float(c)), set(float(end))), load(row + c), hidden), row + c);
}

// row: count products of query i of a head with keys [j_begin, j_begin + count), replaced by scores in log2 units.
// count is a multiple of kLanes; keys past the sequence are hidden by the band.
HWY_INLINE void score_row(const Scoring& s, float* row, i32 head, i32 i, i32 j_begin, i32 count, bool test_band) {
  const float slope = slope_log2_of(s, head);
  const Vector slope_log2 = set(slope);
  Vector distance = hn::Sub(set(float(i + s.band.shift - j_begin)), hn::Iota(FloatTag(), 0));
  for (i32 c = 0; c < count; c += kLanes) {
    Vector v = score_of_product<VectorMath>(s.score, load(row + c));
    if (slope != 0) v = add_alibi<VectorMath>(v, slope_log2, distance);
    store(v, row + c);
    distance = hn::Sub(distance, set(float(kLanes)));
  }
  if (s.problem->bias.dtype != MICA_NONE) add_bias_row(s, row, head, i, j_begin, count);
  if (s.problem->boolean.dtype != MICA_NONE) hide_by_mask(s, row, head, i, j_begin, count);
  if (test_band) hide_by_band(s.band, row, i, j_begin, count);
}

}  // namespace MICA_NS
