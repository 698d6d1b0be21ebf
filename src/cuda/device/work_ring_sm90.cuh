// SPDX-License-Identifier: Apache-2.0
// Work that is dealt out while a persistent kernel runs: blocks draw from a counter in global memory, and one warp of a
// block tells the others through shared memory.
#pragma once

#include "device/ptx_draw.cuh"
#include "device/ring_sm90.cuh"

namespace mica {

// Items below `first` are the blocks' own: their index, and in calls of short items the one a grid further. Those from
// `first` on are drawn. The counter is an epoch (40 bits), which no
// two calls share, and a count: what lies in the workspace before the call has another epoch, and the last draw of a
// call leaves epoch 0, so that the call can be repeated as it is. No two launches use a workspace at the same time.
struct WorkCounter {
  static constexpr i32 kCountBits = 24;
  u64* counter;  // null: there is nothing beyond the first items
  u64 epoch;
  i32 items;
  u32 first = gridDim.x;
  // Whether a block's first draw takes what lies there for a smaller epoch, as the last call left it, and looks at the
  // answer: it waits for memory once, not three times.
  bool is_hasty = false;
  bool has_drawn = false;
  u64 drawn = 0;  // by lane 0

  // By a warp: asks for the next item, which takes as long as memory is far away, and has it, or -1.
  MICA_DEVICE void ask() {
    if (counter && threadIdx.x % 32 == 0) {
      if (!has_drawn && is_hasty)
        raise_to(counter, begin());
      else if (!has_drawn)
        set_up();
      drawn = draw_from(counter);
    }
    has_drawn = true;
  }
  MICA_DEVICE i32 answer() {
    if (!counter) return -1;
    if (is_hasty && threadIdx.x % 32 == 0 && drawn >> kCountBits != epoch) {
      set_up();
      drawn = draw_from(counter);
    }
    const u32 item = __shfl_sync(0xffffffffu, u32(drawn) & ((1u << kCountBits) - 1), 0);
    // Every block draws once in vain.
    if (threadIdx.x % 32 == 0 && item == u32(items) + gridDim.x - 1) store_relaxed(counter, 0);
    return item < u32(items) ? i32(item) : -1;
  }
  // By a warp that has drawn: until all items before this one are drawn.
  MICA_DEVICE void await_drawn(i32 item) const {
    if (counter && threadIdx.x % 32 == 0)
      while (i32(u32(load_relaxed(counter)) & ((1u << kCountBits) - 1)) < item) __nanosleep(40);
    __syncwarp();
  }

 private:
  MICA_DEVICE u64 begin() const { return epoch << kCountBits | first; }
  MICA_DEVICE void set_up() const {
    u64 now = load_relaxed(counter);
    while (now >> kCountBits != epoch) {
      const u64 found = compare_and_swap(counter, now, begin());
      if (found == now) break;
      now = found;
    }
  }
};

// Two items of `item_bytes`: one warp announces them part by part, the others read the parts they want, when they want
// them. A part is a struct of 16-byte pieces at a multiple of 16.
template <u32 item_bytes>
struct WorkRing {
  static constexpr i32 kSlots = 2;
  static constexpr u32 kBytes = Ring<kSlots>::kBytes + kSlots * item_bytes;
  u32 shared;
  RingPlace<kSlots> place;

  MICA_DEVICE Ring<kSlots> ring() const { return {shared}; }
  MICA_DEVICE u32 slot() const { return slot(place.stage); }
  MICA_DEVICE u32 slot(i32 stage) const { return shared + Ring<kSlots>::kBytes + stage * item_bytes; }

  // By one thread. takers: warps that take each item.
  MICA_DEVICE void init(u32 takers) const { ring().init(1, 32 * takers); }

  // By a warp, in this order.
  MICA_DEVICE void wait_empty() const { ring().wait_empty(place); }
  template <class Part>
  MICA_DEVICE void store(u32 offset, const Part& part) const {
    store_at(slot() + offset, part);
  }
  MICA_DEVICE void announce() {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(ring().full(place.stage));
    place.next();
  }
  // A part of the item in a slot after it was announced, which nobody reads before another barrier.
  template <class Part>
  MICA_DEVICE void store_item(i32 stage, u32 offset, const Part& part) const {
    store_at(slot(stage) + offset, part);
  }
  template <class Part>
  MICA_DEVICE Part load_item(i32 stage, u32 offset) const {
    return load_at<Part>(slot(stage) + offset);
  }

  // By each thread of a taking warp, in this order.
  MICA_DEVICE void wait_full() const { ring().wait_full(place); }
  template <class Part>
  MICA_DEVICE Part load(u32 offset) const {
    return load_at<Part>(slot() + offset);
  }
  MICA_DEVICE void release() {
    ring().release_by_thread(place);
    place.next();
  }

 private:
  template <class Part>
  union Words {
    static_assert(sizeof(Part) % 16 == 0 && item_bytes % 16 == 0);
    Part part;
    u32 word[sizeof(Part) / 16][4];
  };
  template <class Part>
  static MICA_DEVICE Part load_at(u32 address) {
    Words<Part> words;
#pragma unroll
    for (u32 i = 0; i < sizeof(Part) / 16; ++i) load_shared_16(words.word[i], address + i * 16);
    return words.part;
  }
  template <class Part>
  static MICA_DEVICE void store_at(u32 address, const Part& part) {
    if (threadIdx.x % 32 == 0) {
      Words<Part> words;
      words.part = part;
#pragma unroll
      for (u32 i = 0; i < sizeof(Part) / 16; ++i) store_shared_16(address + i * 16, words.word[i]);
    }
  }
};

}  // namespace mica
