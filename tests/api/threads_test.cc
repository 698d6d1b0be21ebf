// SPDX-License-Identifier: Apache-2.0
// One library, many threads, and fork.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/api/description.h"
#include "tests/thread_sanitizer.h"

namespace mica::testing_api {
namespace {

TEST(Threads, OnePlanServesManyAtOnce) {
  const mica_attention a = describe({.batch = 1, .len_q = 40, .len_k = 60, .dim = 32, .dim_v = 32});
  mica_plan* plan = nullptr;
  ASSERT_EQ(mica_plan_create(&a, MICA_FORWARD, &plan), MICA_OK);
  std::vector<std::vector<float>> expected;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    Call call(a, seed * 10);
    ASSERT_EQ(call.execute(plan), MICA_OK);
    expected.push_back(call.o);
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < 6; ++seed)
    threads.emplace_back([&, seed] {
      for (int n = 0; n < 20; ++n) {
        Call call(a, seed * 10);
        if (call.execute(plan) != MICA_OK || !same_bits(call.o, expected[seed])) ++wrong;
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  mica_plan_destroy(plan);
}

TEST(Threads, DifferentProblemsAndErrorsAtOnce) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&wrong, t] {
      const Sizes sizes = {.batch = 1 + t % 3, .len_q = 10 + 7 * t, .len_k = 30 + 11 * t, .dim = 8 + 4 * t};
      Call first(describe_backward(sizes), uint32_t(t));
      if (!first.run(MICA_FORWARD).empty() || !first.run(MICA_BACKWARD).empty()) ++wrong;
      for (int n = 0; n < 10; ++n) {
        Call call(describe_backward(sizes), uint32_t(t));
        if (!call.run(MICA_FORWARD).empty() || !call.run(MICA_BACKWARD).empty()) ++wrong;
        if (!same_bits(call.o, first.o) || !same_bits(call.dq, first.dq)) ++wrong;
        // The message belongs to the thread.
        mica_attention bad = describe(sizes);
        bad.q.shape[1] = -1 - t;
        mica_plan* plan = nullptr;
        const std::string message = "q.shape[1] is " + std::to_string(-1 - t) + ", want 0 or more";
        if (mica_plan_create(&bad, MICA_FORWARD, &plan) != MICA_ERROR_INVALID || message != mica_last_error()) ++wrong;
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Threads, ChangingTheirNumberWhileOthersCompute) {
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    for (int n = 0; !stop; ++n) {
      mica_set_num_threads(1 + n % 4);
      std::this_thread::yield();
    }
  });
  Call first(describe({.len_q = 50, .len_k = 50}));
  EXPECT_EQ(first.run(MICA_FORWARD), "");
  for (int n = 0; n < 50; ++n) {
    Call call(describe({.len_q = 50, .len_k = 50}));
    EXPECT_EQ(call.run(MICA_FORWARD), "");
    EXPECT_TRUE(same_bits(call.o, first.o));
  }
  stop = true;
  changer.join();
  mica_set_num_threads(0);
}

// Runs in a child; its exit status says whether the bits were the same.
int computed_in_child(const std::vector<float>& expected, const mica_attention& a) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(250);  // a child that hangs dies of it, before ctest ends its parent
    Call call(a);
    const bool is_right = call.run(MICA_FORWARD).empty() && same_bits(call.o, expected);
    _exit(is_right ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

// Pools of a caller's that run tasks in the caller's thread from the first or from the last on, and all at once.
void run_in_order(void*, int64_t count, mica_task task, void* tasks) {
  for (int64_t i = 0; i < count; ++i) task(tasks, i);
}
void run_backwards(void*, int64_t count, mica_task task, void* tasks) {
  for (int64_t i = count - 1; i >= 0; --i) task(tasks, i);
}
void run_at_once(void* most, int64_t count, mica_task task, void* tasks) {
  auto& seen = *static_cast<std::atomic<int64_t>*>(most);
  if (count > seen) seen = count;
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < count; ++i) threads.emplace_back(task, tasks, i);
  for (std::thread& thread : threads) thread.join();
}

TEST(CallersPool, HoweverItRunsTasksTheBitsAreTheSame) {
  // Keys that are split, and gradients.
  const mica_attention decode = describe({.batch = 1, .len_q = 1, .len_k = 1500, .dim = 32, .dim_v = 32});
  const mica_attention train = describe_backward({.batch = 3, .len_q = 70, .len_k = 90, .dim = 32});
  Call one(decode, 1), many(train, 2);
  ASSERT_EQ(one.run(MICA_FORWARD), "");
  ASSERT_EQ(many.run(MICA_FORWARD) + many.run(MICA_BACKWARD), "");
  std::atomic<int64_t> most{0};
  ASSERT_EQ(mica_set_num_threads(4), MICA_OK);
  for (const mica_run_tasks run : {run_in_order, run_backwards, run_at_once}) {
    ASSERT_EQ(mica_set_thread_pool(run, &most), MICA_OK);
    EXPECT_STREQ(mica_threads_from(), "the caller's pool");
    Call again(decode, 1), gradients(train, 2);
    EXPECT_EQ(again.run(MICA_FORWARD), "");
    EXPECT_EQ(gradients.run(MICA_FORWARD) + gradients.run(MICA_BACKWARD), "");
    EXPECT_TRUE(same_bits(again.o, one.o));
    EXPECT_TRUE(same_bits(gradients.o, many.o) && same_bits(gradients.dq, many.dq));
  }
  EXPECT_EQ(mica_set_thread_pool(nullptr, nullptr), MICA_OK);
  EXPECT_EQ(mica_set_num_threads(0), MICA_OK);
  EXPECT_GT(most, 1);
  EXPECT_LE(most, 4);
}

TEST(Fork, AChildComputesTheSameBitsAfterTheParentUsedTheLibrary) {
  if (kHasThreadSanitizer) GTEST_SKIP() << "fork and the thread sanitizer do not mix";
  const mica_attention a = describe({.batch = 3, .len_q = 100, .len_k = 120, .dim = 64, .dim_v = 64});
  for (const int threads : {1, 2, 4}) {
    mica_set_num_threads(threads);
    Call call(a);
    ASSERT_EQ(call.run(MICA_FORWARD), "");
    EXPECT_EQ(computed_in_child(call.o, a), 0) << threads << " threads";
    // And so does the parent afterwards.
    Call again(a);
    ASSERT_EQ(again.run(MICA_FORWARD), "");
    EXPECT_TRUE(same_bits(again.o, call.o));
  }
  mica_set_num_threads(0);
}

TEST(Fork, WhileOtherThreadsCompute) {
  if (kHasThreadSanitizer) GTEST_SKIP() << "fork and the thread sanitizer do not mix";
  const mica_attention a = describe({.batch = 2, .len_q = 60, .len_k = 60, .dim = 32, .dim_v = 32});
  mica_set_num_threads(2);
  Call call(a);
  ASSERT_EQ(call.run(MICA_FORWARD), "");
  // The busy thread plans and computes again and again, but allocates only before the first fork: a child must wait for
  // none of the library's locks, while those of the address sanitizer's allocator may stay locked in it for ever.
  Call other(a);
  ASSERT_EQ(other.run(MICA_FORWARD), "");
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) other.run(MICA_FORWARD);
  });
  for (int n = 0; n < 10; ++n) EXPECT_EQ(computed_in_child(call.o, a), 0) << n;
  stop = true;
  busy.join();
  mica_set_num_threads(0);
}

}  // namespace
}  // namespace mica::testing_api
