// SPDX-License-Identifier: Apache-2.0
// The row statistics as columns of backward's products: S^T = K Q^T less each row's logarithm, dP^T = V dO^T less its
// delta. Read into registers they would take a sixth of what shared memory delivers in a step of 64 columns: 8 lanes
// read the same, and each read takes its time.
//
// A row of 16 bytes has both in three bf16 parts, 24 bits as fp32 has. The other operand is the selector of one of
// them, the same in all rows; columns 8 to 15 are columns 0 to 7 once more, so what it takes it takes by halves. No
// selector takes columns 6 and 7: what lies there need only be finite.
#pragma once

#include "device/ptx.cuh"
#include "device/wgmma_plain.cuh"

namespace mica {

struct StatRows {
  static constexpr i32 kRowBytes = 16;
  static constexpr u32 kCoreBytes = 8 * kRowBytes;  // 8 rows
  static constexpr u32 kBeside = 12;                // where columns 6 and 7 lie
  u32 rows, selectors;                              // of all stages; of the logarithm, then of delta

  // By one warp, before the first rows.
  MICA_DEVICE void write_selectors(i32 lane) const {
    constexpr u32 kHalf = 0x3f00;  // 0.5
    const u32 word = lane / 8 % 2 ? kHalf << 16 : kHalf, words[4] = {word, word, word, 0};
    if (lane < 16) store_shared_16(selectors + lane * kRowBytes, words);
  }
  // score, delta: what is added to a row's products. Finite even where a row has nothing to see: the other product
  // multiplies it by zero. has_beside: another warp writes columns 6 and 7 of even rows.
  template <bool has_beside>
  static MICA_DEVICE void write_row(u32 first, i32 row, float score, float delta) {
    constexpr float kMost = 1e38f;
    float left[2] = {score, delta};
    for (float& x : left) x = x > kMost ? kMost : x < -kMost ? -kMost : x;  // not a number stays so
    u32 words[4] = {};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      words[i] = pack<Bf16>(left[0], left[1]);
      const float2 part = unpack<Bf16>(words[i]);
      left[0] -= part.x;
      left[1] -= part.y;
    }
    const u32 to = first + row * kRowBytes;
    if (has_beside && row % 2 == 0) {
#pragma unroll
      for (int i = 0; i < 3; ++i) store_shared_4(to + i * 4, words[i]);
    } else {
      store_shared_16(to, words);
    }
  }

  MICA_DEVICE u32 stage(i32 index, i32 tile_q) const { return rows + index * tile_q * kRowBytes; }
  // c (64 keys x n) += what the selector takes of n rows.
  template <int n>
  static MICA_DEVICE void add(float (&c)[n / 8][4], u32 selector, u64 from_rows) {
    Wgmma<Bf16, n>::add(c, plain_descriptor(selector, 0, 0), from_rows, 1);
  }
};

}  // namespace mica
