// SPDX-License-Identifier: Apache-2.0
// The threads of the CPU backend: each index once, thread numbers in range, many callers, calls inside calls, fork. On
// our own pool, and on that of the OpenMP runtimes whose paths MICA_TEST_OPENMP names (with colons between them).
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "cpu/threads/dealer.h"
#include "cpu/threads/threads.h"
#include "tests/thread_sanitizer.h"

namespace mica {
namespace {

// The runtimes that this run is about, loaded; none: our own pool.
const std::vector<void*>& loaded_runtimes() {
  static const std::vector<void*> handles = [] {
    std::vector<void*> opened;
    const char* paths = std::getenv("MICA_TEST_OPENMP");
    std::istringstream list(paths ? paths : "");
    for (std::string path; std::getline(list, path, ':');) {
      opened.push_back(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
      if (!opened.back()) ADD_FAILURE() << dlerror();
    }
    return opened;
  }();
  return handles;
}

template <class Function>
Function look_up(const char* name) {
  return reinterpret_cast<Function>(dlsym(loaded_runtimes().at(0), name));
}

Threads of(i32 count) {
  loaded_runtimes();
  Threads threads = {};
  EXPECT_EQ(choose_threads(threads), MICA_OK) << last_error();
  EXPECT_EQ(threads.openmp != nullptr, !loaded_runtimes().empty());
  threads.count = count;
  return threads;
}

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
      parallel_for(of(threads), count, count_one, &counts);
      expect_each_once(counts);
    }
}

// A runtime may give a smaller team than was asked for.
TEST(Dealer, PlaysTheHandsOfThoseWhoStayAway) {
  for (const i32 come : {1, 3, 4})
    for (const i64 count : {4, 5, 12, 14, 1000}) {
      Counts counts(4, count);
      Dealer dealer(count, 4, 4, count_one, &counts);
      for (i32 thread = 0; thread < come; ++thread) dealer.work_in_team(thread, come);
      expect_each_once(counts);
    }
}

// What tasks write without atomics is the caller's when the call returns, and what it wrote before is theirs.
TEST(Pool, OrdersMemory) {
  for (int round = 0; round < 100; ++round) {
    std::vector<i64> numbers(50, round);
    parallel_for(
        of(4), i64(numbers.size()), [](void* pointer, i64 index, i32) { static_cast<i64*>(pointer)[index] += index; },
        numbers.data());
    for (size_t n = 0; n < numbers.size(); ++n) ASSERT_EQ(numbers[n], round + i64(n));
  }
}

TEST(Pool, ManyCallersAtOnce) {
  std::vector<std::thread> callers;
  for (int n = 0; n < 8; ++n)
    callers.emplace_back([n] {
      for (int round = 0; round < 50; ++round) {
        Counts counts(1 + (n + round) % 5, 1 + (7 * n + round) % 40);
        parallel_for(of(counts.num_threads), i64(counts.hits.size()), count_one, &counts);
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
      of(4), 4000,
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
      of(3), 6,
      [](void* outer, i64, i32) {
        parallel_for(
            of(3), 10, [](void* inner, i64, i32) { static_cast<std::atomic<i32>*>(inner)->fetch_add(1); }, outer);
      },
      &total);
  EXPECT_EQ(total.load(), 60);
}

// Several threads at once do work: with a task that waits for the others, one thread alone would never end.
TEST(Pool, ThreadsWorkAtTheSameTime) {
  struct Context {
    std::atomic<i32> arrived{0};
  } context;
  parallel_for(
      of(2), 2,
      [](void* pointer, i64, i32) {
        Context& c = *static_cast<Context*>(pointer);
        c.arrived.fetch_add(1);
        while (c.arrived.load() < 2) std::this_thread::yield();
      },
      &context);
  EXPECT_EQ(context.arrived.load(), 2);
}

TEST(Pool, AChildOfForkHasThreadsOfItsOwn) {
  if (kHasThreadSanitizer) GTEST_SKIP() << "fork and the thread sanitizer do not mix";
  Counts before(3, 20);
  const Threads threads = of(3);  // a plan that was made before the fork
  parallel_for(threads, 20, count_one, &before);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    Counts counts(3, 20);
    parallel_for(threads, 20, count_one, &counts);
    Threads chosen = {};
    const bool is_own = choose_threads(chosen) == MICA_OK && !chosen.openmp;
    char whose[128];
    describe_threads(whose, sizeof whose);
    const bool is_said = loaded_runtimes().empty() || std::string(whose) == "its own: this process is a fork";
    const bool is_once = std::all_of(counts.hits.begin(), counts.hits.end(), [](auto& n) { return n.load() == 1; });
    _exit(is_own && is_said && is_once ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Pool, TheEnvironmentChooses) {
  loaded_runtimes();
  Threads threads = {};
  setenv("MICA_CPU_THREADS_FROM", "own", 1);
  EXPECT_EQ(choose_threads(threads), MICA_OK);
  EXPECT_EQ(threads.openmp, nullptr);
  setenv("MICA_CPU_THREADS_FROM", "openmp", 1);
  if (loaded_runtimes().empty()) {
    EXPECT_EQ(choose_threads(threads), MICA_ERROR_INVALID);
    EXPECT_NE(std::string(last_error()).find("no OpenMP runtime is loaded"), std::string::npos) << last_error();
  } else {
    EXPECT_EQ(choose_threads(threads), MICA_OK);
    EXPECT_NE(threads.openmp, nullptr);
  }
  setenv("MICA_CPU_THREADS_FROM", "tbb", 1);
  EXPECT_EQ(choose_threads(threads), MICA_ERROR_INVALID);
  EXPECT_STREQ(last_error(), "MICA_CPU_THREADS_FROM is \"tbb\", want openmp or own");
  unsetenv("MICA_CPU_THREADS_FROM");
}

// A pool that runs its tasks one after another, the last first: no rule forbids it.
TEST(Pool, TheCallersComesFirst) {
  struct Pool {
    std::atomic<i64> tasks{0};
  } pool;
  set_thread_pool(
      [](void* pointer, int64_t count, mica_task task, void* tasks) {
        static_cast<Pool*>(pointer)->tasks.fetch_add(count);
        for (int64_t i = count - 1; i >= 0; --i) task(tasks, i);
      },
      &pool);
  Threads threads = {};
  ASSERT_EQ(choose_threads(threads), MICA_OK);
  threads.count = 3;
  Counts counts(3, 40);
  parallel_for(threads, 40, count_one, &counts);
  expect_each_once(counts);
  EXPECT_EQ(pool.tasks.load(), 3);
  char whose[128];
  describe_threads(whose, sizeof whose);
  EXPECT_STREQ(whose, "the caller's pool");
  set_thread_pool(nullptr, nullptr);
  ASSERT_EQ(choose_threads(threads), MICA_OK);
  EXPECT_EQ(threads.run, nullptr);
}

TEST(OpenMp, IsFoundByItsFunctionsAndNamed) {
  if (loaded_runtimes().empty()) GTEST_SKIP() << "MICA_TEST_OPENMP names no runtime";
  const std::string first = std::string(std::getenv("MICA_TEST_OPENMP")) + ":";
  const std::string path = first.substr(0, first.find(':'));
  char whose[128];
  describe_threads(whose, sizeof whose);
  EXPECT_EQ(std::string(whose), "OpenMP, " + path.substr(path.rfind('/') + 1));
}

TEST(OpenMp, ItsNumberOfThreadsIsTheDefault) {
  if (loaded_runtimes().empty()) GTEST_SKIP() << "MICA_TEST_OPENMP names no runtime";
  const auto set = look_up<void (*)(int)>("omp_set_num_threads");
  if (!set) GTEST_SKIP() << "the runtime has no omp_set_num_threads";
  const int before = look_up<int (*)()>("omp_get_max_threads")();
  set(3);
  EXPECT_EQ(num_threads(), 3);
  set(before);
  EXPECT_EQ(num_threads(), before);
}

// All threads of the region call at once; each does its own work alone.
TEST(OpenMp, InsideItsRegionTheCallerDoesEverything) {
  if (loaded_runtimes().empty()) GTEST_SKIP() << "MICA_TEST_OPENMP names no runtime";
  const auto parallel = look_up<void (*)(void (*)(void*), void*, unsigned, unsigned)>("GOMP_parallel");
  if (!parallel) GTEST_SKIP() << "the runtime has no GOMP_parallel";
  struct Context {
    Threads threads = of(3);
    std::atomic<i32> elsewhere{0}, tasks{0};
    std::atomic<bool> opened{false};  // the sanitizer does not see how the runtime hands the context over
  } context;
  context.opened = true;
  parallel(
      [](void* pointer) {
        Context& c = *static_cast<Context*>(pointer);
        EXPECT_TRUE(c.opened.load());
        struct Inner {
          Context* c;
          std::thread::id caller = std::this_thread::get_id();
        } inner{&c};
        parallel_for(
            c.threads, 10,
            [](void* p, i64, i32) {
              Inner& i = *static_cast<Inner*>(p);
              i.c->tasks.fetch_add(1);
              if (i.caller != std::this_thread::get_id()) i.c->elsewhere.fetch_add(1);
            },
            &inner);
      },
      &context, 2, 0);
  EXPECT_EQ(context.tasks.load(), 20);
  EXPECT_EQ(context.elsewhere.load(), 0);
}

}  // namespace
}  // namespace mica
