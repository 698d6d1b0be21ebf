// SPDX-License-Identifier: Apache-2.0
// Work that is dealt out while a persistent kernel runs: blocks draw from a counter in global memory, and one warp of a
// block tells the others through shared memory.
#pragma once

#include "device/ring_sm90.cuh"

namespace mica {

// A block's first item is its own index; those after the grid's are drawn. The counter is an epoch (40 bits), which no
// two calls share, and a count: what lies in the workspace before the call has another epoch, and the last draw of a
// call leaves epoch 0, so that the call can be repeated as it is. No two launches use a workspace at the same time.
struct WorkCounter {
  static constexpr i32 kCountBits = 24;
  u64* counter;  // null: there is nothing beyond the first items
  u64 epoch;
  i32 items;

  // By a warp: the next item, or -1.
  MICA_DEVICE i32 next() {
    if (!counter) return -1;
    u32 drawn = 0;
    if (threadIdx.x % 32 == 0) drawn = draw();
    drawn = __shfl_sync(0xffffffffu, drawn, 0);
    return drawn < u32(items) ? i32(drawn) : -1;
  }

 private:
  MICA_DEVICE u32 draw() {
    const u64 first = epoch << kCountBits | gridDim.x;
    u64 now = load_relaxed(counter);
    while (now >> kCountBits != epoch) {
      const u64 found = compare_and_swap(counter, now, first + 1);
      if (found == now) return gridDim.x;
      now = found;
    }
    const u32 drawn = u32(atomic_add(counter, 1)) & ((1u << kCountBits) - 1);
    // Every block draws once in vain.
    if (drawn == u32(items) + gridDim.x - 1) store_relaxed(counter, 0);
    return drawn;
  }
};

// Two items ahead.
struct WorkRing {
  static constexpr i32 kSlots = 2;
  static constexpr u32 kBytes = Ring<kSlots>::kBytes + kSlots * 4;
  u32 shared;
  RingPlace<kSlots> place;

  MICA_DEVICE Ring<kSlots> ring() const { return {shared}; }
  MICA_DEVICE u32 slot() const { return shared + Ring<kSlots>::kBytes + place.stage * 4; }

  // By one thread. takers: warps that take each item.
  MICA_DEVICE void init(u32 takers) const { ring().init(1, 32 * takers); }
  // By a warp.
  MICA_DEVICE void announce(i32 item) {
    ring().wait_empty(place);
    if (threadIdx.x % 32 == 0) {
      store_shared_4(slot(), u32(item));
      mbarrier_arrive(ring().full(place.stage));
    }
    place.next();
  }
  MICA_DEVICE i32 take() {
    ring().wait_full(place);
    const i32 item = warp_max(i32(load_shared_4(slot())));
    ring().release_by_thread(place);
    place.next();
    return item;
  }
};

}  // namespace mica
