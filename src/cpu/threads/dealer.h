// SPDX-License-Identifier: Apache-2.0
// Hands the indices of a parallel_for out to threads, in order: a few at a time where there are many, because taking
// one moves a line of memory from core to core, and one at a time where there are few.
#pragma once

#include <atomic>

#include "cpu/threads/threads.h"

namespace mica {

class Dealer {
 public:
  Dealer(i64 count, i32 num_threads, ParallelBody body, void* context) : count_(count), body_(body), context_(context) {
    constexpr i64 kHands = 16;  // for each thread, so that they end at about the same time
    hand_ = count / (i64(num_threads) * kHands);
    if (hand_ < 1) hand_ = 1;
  }

  // Runs what is handed out until nothing is left.
  void work(i32 thread) {
    for (i64 begin = take(); begin < count_; begin = take())
      for (i64 i = begin; i < begin + hand_ && i < count_; ++i) body_(context_, i, thread);
  }

  bool is_empty() const { return next_.load(std::memory_order_relaxed) >= count_; }

 private:
  i64 take() { return next_.fetch_add(hand_, std::memory_order_relaxed); }

  i64 count_, hand_;
  ParallelBody body_;
  void* context_;
  alignas(64) std::atomic<i64> next_{0};  // the next index; on a line of its own
};

}  // namespace mica
