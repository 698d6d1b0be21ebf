// SPDX-License-Identifier: Apache-2.0
// What is remembered of every element of a block's shared memory, to find two threads that touch it, one of them
// writing, with nothing that orders the two: a barrier of the block, of some warps, or one in shared memory. The copy
// engine is an actor beside the warps: what it reads or writes is under way from the request until it was waited for.
#pragma once

#include <algorithm>
#include <vector>

#include "core/types.h"

namespace mica::emulation {

constexpr u32 kShadowWarps = 20;  // of a block
constexpr u32 kShadowLoads = 64;  // barriers of a block that count bytes
// Who acts: the warps; the copy engine when it reads for each of them; the same when it writes for each barrier.
constexpr u32 kEngineReads = kShadowWarps, kEngineWrites = 2 * kShadowWarps;
constexpr u32 kShadowActors = kEngineWrites + kShadowLoads;

// Per actor, how many of its steps lie behind.
struct Clock {
  u32 of[kShadowActors] = {};
  void join(const Clock& other) {
    for (u32 a = 0; a < kShadowActors; ++a) of[a] = std::max(of[a], other.of[a]);
  }
};

class Shadow {
 public:
  void begin(u32 bytes) {
    block_epoch_ = 1;
    std::fill(std::begin(warp_epoch_), std::end(warp_epoch_), 1u);
    std::fill(std::begin(steps_), std::end(steps_), 0u);
    std::fill(std::begin(behind_), std::end(behind_), Clock{});
    std::fill(std::begin(peer_behind_), std::end(peer_behind_), Clock{});
    std::fill(std::begin(fences_), std::end(fences_), u16(0));
    words_.assign(bytes / kUnit + 1, Word{});
  }
  void block_synced() {
    ++block_epoch_;
    Clock all;
    for (const Clock& clock : behind_) all.join(clock);
    std::fill(std::begin(behind_), std::end(behind_), all);
    for (u32 w = 0; w < kShadowWarps; ++w) warp_synced(w);
  }
  void warp_synced(u32 warp) { ++warp_epoch_[warp]; }
  // A barrier: who arrives leaves what it did there, who waits takes it.
  void hand_over(u32 warp, Clock& clock) {
    warp_synced(warp);
    behind_[warp].of[warp] = ++steps_[warp];
    clock.join(behind_[warp]);
  }
  void take_over(u32 warp, const Clock& clock) { behind_[warp].join(clock); }
  // The same in a cluster. peer: what the other block of it did, and at a barrier of that one's, the other way round.
  void hand_over(u32 warp, Clock& clock, Clock& peer) {
    hand_over(warp, clock);
    peer.join(peer_behind_[warp]);
  }
  void hand_over_to_peer(u32 warp, Clock& clock, Clock& peer) {
    hand_over(warp, peer);
    clock.join(peer_behind_[warp]);
  }
  void take_over(u32 warp, const Clock& clock, const Clock& peer) {
    behind_[warp].join(clock);
    peer_behind_[warp].join(peer);
  }
  const Clock& peer_behind(u32 warp) const { return peer_behind_[warp]; }
  // A barrier of both blocks, after block_synced.
  void peer_synced(const Shadow& peer) { std::fill(std::begin(peer_behind_), std::end(peer_behind_), peer.behind_[0]); }

  // What the copy engine did as this actor up to now is done for those who take the clock over.
  void engine_done(u32 actor, Clock& clock) { clock.of[actor] = ++steps_[actor]; }

  // fence.proxy.async by a thread: wgmma and the copy engine see what it wrote before.
  void fenced(u32 thread) { ++fences_[thread]; }
  u16 fences(u32 thread) const { return fences_[thread]; }
  // Whether an ordinary thread wrote there and has made no fence since.
  bool is_unfenced(u32 offset, u32 bytes) const {
    for (u32 w = offset / kUnit; w <= (offset + bytes - 1) / kUnit; ++w) {
      const Touch& t = words_[w].write;
      if (t.block_epoch != 0 && !is_engine(t) && fences_[t.thread] == t.fences) return true;
    }
    return false;
  }

  // Null, or which kind of race it is.
  const char* note(u32 offset, u32 bytes, bool write, u32 thread) {
    return note_as(thread / kWarp, offset, bytes, write, thread);
  }
  // The same for what the copy engine does at a thread's request: ordered behind that thread, done when engine_done
  // says so.
  const char* note_as(u32 actor, u32 offset, u32 bytes, bool write, u32 thread) {
    const char* race = nullptr;
    for (u32 w = offset / kUnit; w <= (offset + bytes - 1) / kUnit; ++w)
      if (const char* found = note_word(words_[w], write, thread, actor)) race = found;
    return race;
  }
  // What the copy engine writes for the other block of the cluster, which has that much of this one's behind it.
  const char* note_for_peer(u32 actor, u32 offset, u32 bytes, const Clock& behind) {
    const char* race = nullptr;
    for (u32 w = offset / kUnit; w <= (offset + bytes - 1) / kUnit; ++w) {
      Word& word = words_[w];
      if (is_ahead(word.write, behind) || is_ahead(word.engine_read, behind)) race = kWriteRace;
      if (word.read.block_epoch == block_epoch_)
        for (u32 r = 0; r < kShadowWarps; ++r)
          if (word.readers_step[r] > behind.of[r]) race = kWriteRace;
      word.write = {block_epoch_, 0, steps_[actor], u16(actor * kWarp), 0, 0, false};
    }
    return race;
  }

 private:
  static constexpr const char* kWriteRace = "a race: writes what a thread of the other block still uses";
  static constexpr u32 kWarp = 32, kUnit = 2;  // bytes of the smallest element
  struct Touch {
    u32 block_epoch = 0, warp_epoch = 0, step = 0;
    u16 thread = 0;            // the copy engine: 32 times its actor
    u16 fences = 0;            // writers: that the thread had made
    u8 lane = 0;               // the copy engine: that asked
    bool other_lanes = false;  // readers: several lanes of the warp
  };
  struct Word {
    Touch write, read;                    // the last ones
    Touch engine_read;                    // the last by the copy engine
    u32 readers_step[kShadowWarps] = {};  // in the block epoch of `read`: 1 + the step, 0: none
  };
  static bool is_engine(const Touch& t) { return t.thread >= kShadowWarps * kWarp; }
  bool is_ahead(const Touch& t, const Clock& behind) const {
    return t.block_epoch != 0 && (is_engine(t) || t.block_epoch == block_epoch_) &&
           t.step >= behind.of[t.thread / kWarp];
  }
  // No barrier of the block ends what the copy engine does. Who waited for a store was the lane that asked: others of
  // its warp need a barrier of the warp after it.
  bool concerns_engine(const Touch& t, u32 thread) const {
    if (t.block_epoch == 0) return false;
    const u32 own = thread / kWarp, actor = t.thread / kWarp;
    if (actor == kEngineReads + own && t.warp_epoch == warp_epoch_[own] && t.lane != thread % kWarp) return true;
    return t.step >= behind_[own].of[actor];
  }

  // Whether a touch may still be under way when `thread` comes.
  bool concerns(const Touch& t, u32 thread) const {
    if (is_engine(t)) return concerns_engine(t, thread);
    if (t.block_epoch != block_epoch_) return false;
    const u32 own = thread / kWarp, other = t.thread / kWarp;
    if (own != other) return t.step >= behind_[own].of[other];
    return (t.other_lanes || t.thread != thread) && t.warp_epoch == warp_epoch_[own];
  }
  bool concerns_readers(const Word& word, u32 thread) const {
    if (concerns_engine(word.engine_read, thread)) return true;
    if (word.read.block_epoch != block_epoch_) return false;
    const u32 own = thread / kWarp;
    for (u32 w = 0; w < kShadowWarps; ++w)
      if (w != own && word.readers_step[w] > behind_[own].of[w]) return true;
    return word.read.thread / kWarp == own && concerns(word.read, thread);
  }

  const char* note_word(Word& word, bool write, u32 thread, u32 actor) {
    const u32 warp = thread / kWarp;
    const bool by_engine = actor != warp;
    Touch now = {block_epoch_,    warp_epoch_[warp],  steps_[actor], u16(by_engine ? actor * kWarp : thread),
                 fences_[thread], u8(thread % kWarp), false};
    const bool after_write = concerns(word.write, thread), after_read = write && concerns_readers(word, thread);
    if (write) {
      word.write = now;
    } else if (by_engine) {
      word.engine_read = now;
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
  u32 steps_[kShadowActors];          // barriers that each actor has handed something over at
  Clock behind_[kShadowWarps];        // what is ordered before each warp
  Clock peer_behind_[kShadowWarps];   // the same of the other block of a cluster
  u16 fences_[kShadowWarps * kWarp];  // that each thread has made
  std::vector<Word> words_;
};

}  // namespace mica::emulation
