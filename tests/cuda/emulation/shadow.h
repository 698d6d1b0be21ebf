// SPDX-License-Identifier: Apache-2.0
// What is remembered of every element of a block's shared memory, to find two threads that touch it, one of them
// writing, with nothing that orders the two: a barrier of the block, of some warps, or one in shared memory.
#pragma once

#include <algorithm>
#include <vector>

#include "core/types.h"

namespace mica::emulation {

constexpr u32 kShadowWarps = 16;  // of a block

// Per warp, how many of its steps lie behind.
struct Clock {
  u32 of_warp[kShadowWarps] = {};
  void join(const Clock& other) {
    for (u32 w = 0; w < kShadowWarps; ++w) of_warp[w] = std::max(of_warp[w], other.of_warp[w]);
  }
};

class Shadow {
 public:
  void begin(u32 bytes) {
    block_epoch_ = 1;
    std::fill(std::begin(warp_epoch_), std::end(warp_epoch_), 1u);
    std::fill(std::begin(steps_), std::end(steps_), 0u);
    std::fill(std::begin(behind_), std::end(behind_), Clock{});
    words_.assign(bytes / kUnit + 1, Word{});
  }
  void block_synced() { ++block_epoch_; }
  void warp_synced(u32 warp) { ++warp_epoch_[warp]; }
  // These warps met at a named barrier: what one of them did before it is done for the others.
  void warps_met(u32 warps) {
    Clock all;
    for (u32 w = 0; w < kShadowWarps; ++w)
      if (warps >> w & 1) hand_over(w, all);
    for (u32 w = 0; w < kShadowWarps; ++w)
      if (warps >> w & 1) take_over(w, all);
  }
  // A barrier in shared memory: who arrives leaves what it did there, who waits takes it.
  void hand_over(u32 warp, Clock& clock) {
    warp_synced(warp);
    behind_[warp].of_warp[warp] = ++steps_[warp];
    clock.join(behind_[warp]);
  }
  void take_over(u32 warp, const Clock& clock) { behind_[warp].join(clock); }

  // Null, or which kind of race it is.
  const char* note(u32 offset, u32 bytes, bool write, u32 thread) {
    const char* race = nullptr;
    for (u32 w = offset / kUnit; w <= (offset + bytes - 1) / kUnit; ++w)
      if (const char* found = note_word(words_[w], write, thread)) race = found;
    return race;
  }

 private:
  static constexpr u32 kWarp = 32, kUnit = 2;  // bytes of the smallest element
  struct Touch {
    u32 block_epoch = 0, warp_epoch = 0, step = 0;
    u16 thread = 0;
    bool other_lanes = false;  // readers: several lanes of the warp
  };
  struct Word {
    Touch write, read;                    // the last ones
    u32 readers_step[kShadowWarps] = {};  // in the block epoch of `read`: 1 + the step, 0: none
  };

  // Whether a touch may still be under way when `thread` comes.
  bool concerns(const Touch& t, u32 thread) const {
    if (t.block_epoch != block_epoch_) return false;
    const u32 own = thread / kWarp, other = t.thread / kWarp;
    if (own != other) return t.step >= behind_[own].of_warp[other];
    return (t.other_lanes || t.thread != thread) && t.warp_epoch == warp_epoch_[own];
  }
  bool concerns_readers(const Word& word, u32 thread) const {
    if (word.read.block_epoch != block_epoch_) return false;
    const u32 own = thread / kWarp;
    for (u32 w = 0; w < kShadowWarps; ++w)
      if (w != own && word.readers_step[w] > behind_[own].of_warp[w]) return true;
    return word.read.thread / kWarp == own && concerns(word.read, thread);
  }

  const char* note_word(Word& word, bool write, u32 thread) {
    const u32 warp = thread / kWarp;
    Touch now = {block_epoch_, warp_epoch_[warp], steps_[warp], u16(thread), false};
    const bool after_write = concerns(word.write, thread), after_read = write && concerns_readers(word, thread);
    if (write) {
      word.write = now;
    } else {
      if (word.read.block_epoch != block_epoch_)
        std::fill(std::begin(word.readers_step), std::end(word.readers_step), 0u);
      else if (word.read.thread / kWarp == warp && word.read.warp_epoch == now.warp_epoch)
        now.other_lanes = word.read.other_lanes || word.read.thread != thread;
      word.read = now;
      word.readers_step[warp] = 1 + now.step;
    }
    if (after_write)
      return write ? "a race: writes what another thread wrote" : "a race: reads what another thread wrote";
    return after_read ? "a race: writes what another thread reads" : nullptr;
  }

  u32 block_epoch_ = 1, warp_epoch_[kShadowWarps];
  u32 steps_[kShadowWarps];     // barriers that each warp has handed something over at
  Clock behind_[kShadowWarps];  // what is ordered before each warp
  std::vector<Word> words_;
};

}  // namespace mica::emulation
