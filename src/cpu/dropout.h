// SPDX-License-Identifier: Apache-2.0
// Dropout of a row of probabilities; the bits are those of core/random.h.
#pragma once

#include "core/random.h"
#include "cpu/engine/vector.h"

namespace MICA_NS {

struct VectorWords {
  using W = hn::Vec<WordTag>;
  static HWY_INLINE W set(u32 x) { return hn::Set(WordTag(), x); }
  static HWY_INLINE W bit_xor(W a, W b) { return hn::Xor(a, b); }
  static HWY_INLINE W mul_low(W a, u32 b) { return hn::Mul(a, set(b)); }
  static HWY_INLINE W mul_high(W a, u32 b) {
    const hn::RepartitionToWide<WordTag> wide;
    const auto even = hn::MulEven(a, set(b));
    const auto odd = hn::MulEven(hn::BitCast(WordTag(), hn::ShiftRight<32>(hn::BitCast(wide, a))), set(b));
    return hn::BitCast(WordTag(),
                       hn::Or(hn::ShiftRight<32>(even), hn::And(odd, hn::Set(wide, u64(0xffffffffu) << 32))));
  }
};

// row: count values of row i for keys from j_begin on, both counted in the larger call. The dropped become 0.
// head_index: see dropout_head.
// A vector of Philox blocks serves kLanes / 4 stretches of 32 keys: each stretch draws from four blocks, eight elements
// from each (see dropout_cell).
inline void drop_row(const PhiloxKey& key, u32 threshold, u32 head_index, u32 i, i64 j_begin, float* row, i32 count) {
  const u32 half = i % 16 / 8;  // of a block: the words that this row takes
  const auto cell_row = hn::Set(WordTag(), dropout_cell(i, 0).row);
  const auto head = hn::Set(WordTag(), head_index);
  // In 64 bits: the larger call's keys may end at 2^31, and a row's vectors behind them.
  for (i64 stretch = j_begin / 32; stretch * 32 < j_begin + count; stretch += kLanes / 4) {
    const auto block = philox<VectorWords>(key, cell_row, hn::Iota(WordTag(), u32(stretch) * 4), head);
    alignas(64) u32 word[3][kLanes];
    for (u32 w = 0; w < 3; ++w) hn::Store(block.word[(2 * half + w) % 4], WordTag(), word[w]);
    for (i32 lane = 0; lane < kLanes; ++lane) {
      const i32 c = i32((stretch + lane / 4) * 32 + lane % 4 * 2 - j_begin);
      u64 bits = u64(word[1][lane]) << 32 | word[0][lane];
      for (i32 element = 0; element < 8; ++element) {
        if (element == 4) bits = u64(word[2][lane]) << 32 | word[1][lane];
        const i32 at = c + element / 2 * 8 + element % 2;
        if ((u32(bits >> (8 * (element % 4))) & 0xffffu) >= threshold && at >= 0 && at < count) row[at] = 0;
      }
    }
  }
}

// The same for (sequence b, head, row i) of the call, keys from j_begin on.
inline void drop_row(const PhiloxKey& key, const mica::Problem& p, i32 b, i32 head, i32 i, i32 j_begin, float* row,
                     i32 count) {
  const DropoutPlace& at = p.dropout_place;
  const u32 threshold = keep_threshold(p.dropout), head_index = dropout_head(at, b, head), at_row = dropout_row(at, i);
  if (at.key_step == 1) {
    drop_row(key, threshold, head_index, at_row, dropout_key(at, j_begin), row, count);
    return;
  }
  for (i32 c = 0; c < count; ++c)
    if (!is_kept(key, threshold, head_index, at_row, dropout_key(at, j_begin + c))) row[c] = 0;
}

}  // namespace MICA_NS
