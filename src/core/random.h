// SPDX-License-Identifier: Apache-2.0
// Dropout bits: Philox 4x32 with 7 rounds, a counter per cell of 2 x 8 elements, the same bits on every backend.
//
// The cell follows the tensor cores' accumulator: a thread of an m16n8 product holds rows g and g + 8, columns 2t and
// 2t + 1 of each 8 columns, so over 32 columns it holds 16 elements: one Philox block of 16 bytes. Element k compares
// the 16 bits that start at byte k (cyclic) with the keep threshold: windows overlap by a byte, so a block serves 16
// elements and yet each is kept with a probability exact to 2^-16.
#pragma once

#include "core/problem.h"

namespace mica {

struct PhiloxKey {
  u32 key0, key1;
  u32 offset;  // the counter's last word
};

// Which Philox block an element takes its bits from, and at which byte.
struct DropoutCell {
  u32 row, column;
  u32 byte;
};

}  // namespace mica

namespace MICA_NS {

using mica::DropoutCell;
using mica::DropoutPlace;
using mica::PhiloxKey;

MICA_HD PhiloxKey philox_key(u64 seed, u64 offset) {
  return PhiloxKey{u32(seed), u32(seed >> 32) ^ (u32(offset >> 32) * 0x9E3779B9u), u32(offset)};
}

MICA_HD DropoutCell dropout_cell(u32 i, u32 j) {
  return DropoutCell{(i / 16) * 8 + i % 8, (j / 32) * 4 + (j % 8) / 2, (i % 16) / 8 * 8 + (j % 32) / 8 * 2 + j % 2};
}

// Kept with probability threshold / 2^16, rounded half up: no standard header here, so no lround.
MICA_HD u32 keep_threshold(float dropout_probability) {
  const float rounded_up = (1.0f - dropout_probability) * 65536.0f + 0.5f;
  return u32(rounded_up);
}

// U is the arithmetic of 32-bit words: a type W and static functions set(u32), bit_xor, mul_low, mul_high.
template <class U>
struct PhiloxBlock {
  typename U::W word[4];
};

template <class U>
MICA_HD PhiloxBlock<U> philox(const PhiloxKey& key, typename U::W row, typename U::W column, typename U::W head) {
  using W = typename U::W;
  W c0 = row, c1 = column, c2 = head, c3 = U::set(key.offset);
  u32 k0 = key.key0, k1 = key.key1;
  for (int round = 0; round < 7; ++round) {
    const W low0 = U::mul_low(c0, 0xD2511F53u), high0 = U::mul_high(c0, 0xD2511F53u);
    const W low1 = U::mul_low(c2, 0xCD9E8D57u), high1 = U::mul_high(c2, 0xCD9E8D57u);
    c0 = U::bit_xor(U::bit_xor(high1, c1), U::set(k0));
    c2 = U::bit_xor(U::bit_xor(high0, c3), U::set(k1));
    c1 = low1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return PhiloxBlock<U>{{c0, c1, c2, c3}};
}

struct ScalarWords {
  using W = u32;
  static MICA_HD W set(u32 x) { return x; }
  static MICA_HD W bit_xor(W a, W b) { return a ^ b; }
  static MICA_HD W mul_low(W a, u32 b) { return a * b; }
  static MICA_HD W mul_high(W a, u32 b) { return u32((u64(a) * b) >> 32); }
};

// The 16 bits that start at byte k of the block, cyclic.
MICA_HD u32 dropout_bits(const PhiloxBlock<ScalarWords>& block, u32 k) {
  const u64 pair = (u64(block.word[(k / 4 + 1) % 4]) << 32) | block.word[k / 4];
  return u32(pair >> (8 * (k % 4))) & 0xffffu;
}

MICA_HD u32 dropout_row(const DropoutPlace& at, i32 i) { return at.row_first + u32(i) * at.row_step; }
MICA_HD u32 dropout_key(const DropoutPlace& at, i32 j) { return at.key_first + u32(j) * at.key_step; }
MICA_HD u32 dropout_head(const DropoutPlace& at, i32 b, i32 head) {
  return at.head_first + u32(b) * at.heads + u32(head);
}

// Whether the cells of the piece are whole cells of the larger call.
MICA_HD bool keeps_cells(const DropoutPlace& at) {
  return at.row_step == 1 && at.key_step == 1 && at.row_first % 16 == 0 && at.key_first % 32 == 0;
}

// One element, the slow way. i and j count in the larger call; head_index: see dropout_head.
MICA_HD bool is_kept(const PhiloxKey& key, u32 threshold, u32 head_index, u32 i, u32 j) {
  const DropoutCell cell = dropout_cell(i, j);
  return dropout_bits(philox<ScalarWords>(key, cell.row, cell.column, head_index), cell.byte) < threshold;
}

}  // namespace MICA_NS
