// SPDX-License-Identifier: Apache-2.0
// The thread pool: each index once, thread numbers in range, many callers, calls inside calls.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "cpu/threads.h"

namespace mica {
namespace {

struct Counts {
  i32 num_threads;
  std::vector<std::atomic<i32>> hits;
  std::atomic<i32> bad_thread{0};
  Counts(i32 threads, i64 count) : num_threads(threads), hits(size_t(count)) {}
};

void count_one(void* context, i64 index, i32 thread) {
  Counts& counts = *static_cast<Counts*>(context);
  counts.hits[size_t(index)].fetch_add(1);
  if (thread < 0 || thread >= counts.num_threads) counts.bad_thread.fetch_add(1);
}

void expect_each_once(const Counts& counts) {
  for (size_t n = 0; n < counts.hits.size(); ++n) ASSERT_EQ(counts.hits[n].load(), 1) << n;
  EXPECT_EQ(counts.bad_thread.load(), 0);
}

TEST(Pool, EachIndexOnce) {
  for (const i32 threads : {1, 2, 3, 17})
    for (const i64 count : {0, 1, 2, 5, 1000}) {
      Counts counts(threads, count);
      parallel_for(threads, count, count_one, &counts);
      expect_each_once(counts);
    }
}

TEST(Pool, ManyCallersAtOnce) {
  std::vector<std::thread> callers;
  for (int n = 0; n < 8; ++n)
    callers.emplace_back([n] {
      for (int round = 0; round < 200; ++round) {
        Counts counts(1 + (n + round) % 5, 1 + (7 * n + round) % 40);
        parallel_for(counts.num_threads, i64(counts.hits.size()), count_one, &counts);
        expect_each_once(counts);
      }
    });
  for (std::thread& t : callers) t.join();
}

// A thread number belongs to one thread at a time: scratch memory rests on this.
TEST(Pool, ThreadNumbersAreExclusive) {
  struct Context {
    std::atomic<i32> inside[4] = {};
    std::atomic<i32> shared{0};
  } context;
  parallel_for(
      4, 4000,
      [](void* pointer, i64, i32 thread) {
        Context& c = *static_cast<Context*>(pointer);
        if (c.inside[thread].fetch_add(1) != 0) c.shared.fetch_add(1);
        c.inside[thread].fetch_sub(1);
      },
      &context);
  EXPECT_EQ(context.shared.load(), 0);
}

TEST(Pool, CallsInsideCallsFinish) {
  std::atomic<i32> total{0};
  parallel_for(
      3, 6,
      [](void* outer, i64, i32) {
        parallel_for(
            3, 10, [](void* inner, i64, i32) { static_cast<std::atomic<i32>*>(inner)->fetch_add(1); }, outer);
      },
      &total);
  EXPECT_EQ(total.load(), 60);
}

}  // namespace
}  // namespace mica
