// SPDX-License-Identifier: Apache-2.0
// What is remembered of every element of a block's shared memory, to find two threads that touch it, one of them
// writing, with no barrier in between.
#pragma once

#include <algorithm>
#include <vector>

#include "core/types.h"

namespace mica::emulation {

class Shadow {
 public:
  void begin(u32 bytes) {
    block_epoch_ = 1;
    std::fill(std::begin(warp_epoch_), std::end(warp_epoch_), 1u);
    std::fill(std::begin(meetings_), std::end(meetings_), 0u);
    for (auto& row : seen_) std::fill(std::begin(row), std::end(row), 0u);
    words_.assign(bytes / kUnit + 1, Word{});
  }
  void block_synced() { ++block_epoch_; }
  void warp_synced(u32 warp) { ++warp_epoch_[warp]; }
  // These warps met at a named barrier: what one of them did before it is done for the others.
  void warps_met(u32 warps) {
    for (u32 w = 0; w < kMaxWarps; ++w)
      if (warps >> w & 1) {
        ++meetings_[w];
        warp_synced(w);
      }
    for (u32 a = 0; a < kMaxWarps; ++a)
      for (u32 b = 0; b < kMaxWarps; ++b)
        if ((warps >> a & 1) && (warps >> b & 1)) seen_[a][b] = meetings_[b];
  }

  // Null, or which kind of race it is.
  const char* note(u32 offset, u32 bytes, bool write, u32 thread) {
    const char* race = nullptr;
    for (u32 w = offset / kUnit; w <= (offset + bytes - 1) / kUnit; ++w)
      if (const char* found = note_word(words_[w], write, thread)) race = found;
    return race;
  }

 private:
  static constexpr u32 kWarp = 32, kMaxWarps = 32, kUnit = 2;  // bytes of the smallest element
  // Readers of several threads of one warp, or of several warps, are remembered as such.
  struct Touch {
    u32 block_epoch = 0, warp_epoch = 0, meetings = 0;
    u16 thread = 0;
    bool other_lanes = false, other_warps = false;
  };
  struct Word {
    Touch write, read;
  };

  // Whether a touch may still be under way when `thread` comes.
  bool concerns(const Touch& t, u32 thread) const {
    if (t.block_epoch != block_epoch_) return false;
    if (t.other_warps) return true;
    if (t.thread / kWarp != thread / kWarp) return t.meetings >= seen_[thread / kWarp][t.thread / kWarp];
    return (t.other_lanes || t.thread != thread) && t.warp_epoch == warp_epoch_[thread / kWarp];
  }

  const char* note_word(Word& word, bool write, u32 thread) {
    const u32 warp = thread / kWarp;
    const Touch now = {block_epoch_, warp_epoch_[warp], meetings_[warp], u16(thread), false, false};
    const bool after_write = concerns(word.write, thread), after_read = write && concerns(word.read, thread);
    if (write) {
      word.write = now;
    } else if (word.read.block_epoch != block_epoch_) {
      word.read = now;
    } else {
      word.read.other_warps |= word.read.thread / kWarp != warp;
      word.read.other_lanes |= word.read.thread != thread && word.read.warp_epoch == now.warp_epoch;
      word.read.warp_epoch = now.warp_epoch;
      word.read.meetings = now.meetings;
    }
    if (after_write)
      return write ? "a race: writes what another thread wrote" : "a race: reads what another thread wrote";
    return after_read ? "a race: writes what another thread reads" : nullptr;
  }

  u32 block_epoch_ = 1, warp_epoch_[kMaxWarps];
  u32 meetings_[kMaxWarps];         // at named barriers, of each warp
  u32 seen_[kMaxWarps][kMaxWarps];  // [a][b]: how many meetings of b lie behind a
  std::vector<Word> words_;
};

}  // namespace mica::emulation
