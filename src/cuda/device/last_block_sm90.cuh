// SPDX-License-Identifier: Apache-2.0
// Which of several blocks is the last to be done, so that it goes on with what all of them wrote.
#pragma once

#include "device/ptx_arrive.cuh"
#include "device/ring_sm90.cuh"

namespace mica {

// A word in the workspace, which may hold anything before the call: an epoch, which no two calls share, and a count.
// The last block leaves epoch 0, so that the call can be repeated as it is, in a graph. No two launches use a workspace
// at the same time.
struct LastBlock {
  static constexpr i32 kCountBits = 24;
  u64* word;
  u64 epoch;

  // By one thread of each block, long before it arrives: what lies there is taken for a smaller epoch.
  MICA_DEVICE void begin() const { raise_to(word, epoch << kCountBits); }

  // By the same thread, when it sees all that the block wrote: whether the other blocks have arrived, so that it sees
  // what they wrote, too.
  MICA_DEVICE bool arrive(i32 blocks) const {
    u64 before;
    while ((before = arrive_at(word)) >> kCountBits != epoch) {  // it was a larger one: that block did not count
      u64 now = load_relaxed(word);
      while (now >> kCountBits != epoch) {
        const u64 found = compare_and_swap(word, now, epoch << kCountBits);
        if (found == now) break;
        now = found;
      }
    }
    const bool is_last = i32(before & ((1u << kCountBits) - 1)) == blocks - 1;
    if (is_last) store_relaxed(word, 0);
    return is_last;
  }
};

}  // namespace mica
