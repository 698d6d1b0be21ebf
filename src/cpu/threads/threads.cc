// SPDX-License-Identifier: Apache-2.0
#include "cpu/threads/threads.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/status.h"
#include "cpu/threads/dealer.h"
#include "cpu/threads/openmp.h"
#include "cpu/threads/own_pool.h"

namespace mica {
namespace {

std::atomic<i32> requested{0};

// The caller's pool: two words that belong together.
struct Pool {
  mica_run_tasks run;
  void* pool;
};
pthread_rwlock_t pool_lock = PTHREAD_RWLOCK_INITIALIZER;
Pool callers_pool = {nullptr, nullptr};

Pool current_pool() {
  pthread_rwlock_rdlock(&pool_lock);
  const Pool pool = callers_pool;
  pthread_rwlock_unlock(&pool_lock);
  return pool;
}

// NOTE: a child of fork finds the lock as it was.
__attribute__((constructor)) void keep_lock_over_forks() {
  pthread_atfork([] { pthread_rwlock_wrlock(&pool_lock); }, [] { pthread_rwlock_unlock(&pool_lock); },
                 [] { pool_lock = PTHREAD_RWLOCK_INITIALIZER; });
}

const char* asked_source() {
  const char* from = std::getenv("MICA_CPU_THREADS_FROM");
  return from ? from : "";
}

const OpenMp* openmp_if_wanted() { return std::strcmp(asked_source(), "own") == 0 ? nullptr : find_openmp(); }

i32 clamp_threads(i64 count) { return i32(count < 1 ? 1 : count > kMaxThreads ? kMaxThreads : count); }

// MICA_NUM_THREADS if it is set, else as many as the runtime would give, else as many CPUs as the process may run on.
i32 available_threads(const OpenMp* openmp) {
  if (const char* text = std::getenv("MICA_NUM_THREADS")) {
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (end != text && *end == 0 && value >= 1 && value <= kMaxThreads) return i32(value);
  }
  if (openmp) return clamp_threads(openmp_max_threads(*openmp));
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? clamp_threads(CPU_COUNT(&set)) : 1;
}

i32 count_of(const OpenMp* openmp) {
  const i32 count = requested.load(std::memory_order_relaxed);
  return count > 0 ? count : available_threads(openmp);
}

// One call of the caller's pool stands for a thread: it takes indices until there are none, so that each thread's
// number is held by one at a time however the pool goes about it.
struct Crew {
  Dealer dealer;
  i32 members;
};
void work_in_crew(void* crew, int64_t thread) {
  Crew& c = *static_cast<Crew*>(crew);
  c.dealer.work_in_team(i32(thread), c.members);
}

}  // namespace

void set_num_threads(i32 count) { requested.store(count, std::memory_order_relaxed); }

void set_thread_pool(mica_run_tasks run, void* pool) {
  pthread_rwlock_wrlock(&pool_lock);
  callers_pool = Pool{run, pool};
  pthread_rwlock_unlock(&pool_lock);
}

i32 num_threads() { return count_of(current_pool().run ? nullptr : openmp_if_wanted()); }

mica_status choose_threads(Threads& threads) {
  const char* from = asked_source();
  const bool wants_openmp = std::strcmp(from, "openmp") == 0;
  if (*from && !wants_openmp && std::strcmp(from, "own") != 0)
    return fail(MICA_ERROR_INVALID, "MICA_CPU_THREADS_FROM is \"%s\", want openmp or own", from);
  const Pool pool = current_pool();
  const OpenMp* openmp = pool.run ? nullptr : openmp_if_wanted();
  if (wants_openmp && !openmp && !pool.run && !is_forked())
    return fail(MICA_ERROR_INVALID,
                "MICA_CPU_THREADS_FROM is openmp, but no OpenMP runtime is loaded: load one first (libgomp, libomp or "
                "libiomp5; PyTorch brings one), or want own");
  threads = Threads{count_of(openmp), pool.run, pool.pool, openmp};
  return MICA_OK;
}

void describe_threads(char* text, size_t text_bytes) {
  const OpenMp* openmp = openmp_if_wanted();
  if (current_pool().run)
    std::snprintf(text, text_bytes, "the caller's pool");
  else if (openmp)
    std::snprintf(text, text_bytes, "OpenMP, %s", openmp_name(*openmp));
  else
    std::snprintf(text, text_bytes, "its own: %s",
                  std::strcmp(asked_source(), "own") == 0 ? "MICA_CPU_THREADS_FROM is own" : why_no_openmp());
}

void parallel_for(const Threads& threads, i64 count, ParallelBody body, void* context) {
  const i32 num_threads = i32(threads.count < count ? threads.count : count);
  const bool uses_openmp = !threads.run && threads.openmp && !is_forked();
  if (num_threads <= 1 || (uses_openmp && is_in_parallel_region())) {
    for (i64 i = 0; i < count; ++i) body(context, i, 0);
  } else if (threads.run) {
    Crew crew{Dealer(count, num_threads, num_threads, body, context), num_threads};
    threads.run(threads.pool, num_threads, work_in_crew, &crew);
  } else if (uses_openmp) {
    run_on_openmp(*threads.openmp, num_threads, count, body, context);
  } else {
    run_on_own_pool(num_threads, count, body, context);
  }
}

}  // namespace mica
