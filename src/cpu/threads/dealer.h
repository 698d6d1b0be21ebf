// SPDX-License-Identifier: Apache-2.0
// Hands the indices of a parallel_for out to threads, in order: a few at a time where there are many, because taking
// one moves a line of memory from core to core, and one at a time where there are few.
#pragma once

#include <atomic>

#include "cpu/threads/threads.h"

namespace mica {

class Dealer {
 public:
  // members: threads that will all call work_in_team; 0: they call work, as many as come.
  Dealer(i64 count, i32 num_threads, i32 members, ParallelBody body, void* context)
      : count_(count), body_(body), context_(context), members_(members) {
    constexpr i64 kHands = 16;  // for each thread, so that they end at about the same time
    hand_ = count / (i64(num_threads) * kHands);
    if (hand_ < 1) hand_ = 1;
    if (members == 0) return;
    // Two hands where each would get three: what is left lets the others make up for one who is late.
    const i64 round = members * hand_;
    own_end_ = (count >= 3 * round ? 2 : 1) * round;
    next_.store(own_end_, std::memory_order_relaxed);
  }

  // Runs what is handed out until nothing is left.
  void work(i32 thread) {
    for (i64 begin = take(); begin < count_; begin = take()) run(begin, thread);
  }

  // The same, where the first hand or two of each member are its own from the start: they do not all reach for the
  // counter at once, and each finds what it had in its caches the last time. come: how many there are after all; those
  // who stay away have their hands played by the others.
  void work_in_team(i32 thread, i32 come) {
    for (i32 member = thread; member < members_; member += come)
      for (i64 begin = member * hand_; begin < own_end_; begin += members_ * hand_) run(begin, thread);
    if (own_end_ < count_) work(thread);  // else there is nothing to reach for
  }

  i32 members() const { return members_; }

  bool is_empty() const { return next_.load(std::memory_order_relaxed) >= count_; }

 private:
  i64 take() { return next_.fetch_add(hand_, std::memory_order_relaxed); }
  void run(i64 begin, i32 thread) {
    for (i64 i = begin; i < begin + hand_ && i < count_; ++i) body_(context_, i, thread);
  }

  alignas(64) std::atomic<i64> next_{0};  // the next index; on a line of its own
  alignas(64) i64 count_;
  i64 hand_, own_end_ = 0;  // below own_end_ every index has its member
  ParallelBody body_;
  void* context_;
  i32 members_;
};

}  // namespace mica
