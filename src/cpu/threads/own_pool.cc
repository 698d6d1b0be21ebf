// SPDX-License-Identifier: Apache-2.0
#include "cpu/threads/own_pool.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <new>

#include "cpu/threads/dealer.h"

namespace mica {
namespace {

constexpr i64 kSpinNanoseconds = 50'000;  // before a waiting thread sleeps

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

i64 nanoseconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return i64(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

template <class Condition>
bool spin_until(const Condition& condition) {
  const i64 deadline = nanoseconds() + kSpinNanoseconds;
  do {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return true;
      relax();
    }
  } while (nanoseconds() < deadline);
  return false;
}

// Lives on the stack of the thread that called run_on_own_pool.
struct Job {
  Dealer dealer;
  i32 max_threads;
  Job* next_job;
  i32 joined;               // threads that took part so far; guarded by the pool's mutex
  std::atomic<i32> active;  // workers inside; changed under the mutex
};

class Pool {
 public:
  void run(Job& job) {
    pthread_mutex_lock(&mutex_);
    if (!stopping_) start_workers(job.max_threads - 1);
    Job** end = &jobs_;
    while (*end) end = &(*end)->next_job;
    *end = &job;
    generation_.fetch_add(1, std::memory_order_release);
    if (sleeping_ > 0) pthread_cond_broadcast(&wake_);
    pthread_mutex_unlock(&mutex_);

    job.dealer.work(0);

    spin_until([&] { return job.active.load(std::memory_order_relaxed) == 0; });
    pthread_mutex_lock(&mutex_);
    Job** link = &jobs_;
    while (*link != &job) link = &(*link)->next_job;
    *link = job.next_job;
    while (job.active.load(std::memory_order_relaxed) != 0) pthread_cond_wait(&done_, &mutex_);
    pthread_mutex_unlock(&mutex_);
  }

  void stop() {
    pthread_mutex_lock(&mutex_);
    stopping_ = true;
    generation_.fetch_add(1, std::memory_order_release);
    pthread_cond_broadcast(&wake_);
    const i32 count = num_workers_;
    pthread_mutex_unlock(&mutex_);
    for (i32 i = 0; i < count; ++i) pthread_join(workers_[i], nullptr);
    num_workers_ = 0;
  }

  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  void start_workers(i32 wanted) {
    sigset_t all, before;
    if (wanted > kMaxThreads) wanted = kMaxThreads;
    if (num_workers_ >= wanted) return;
    // Signals belong to the caller's threads.
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (num_workers_ < wanted) {
      // Fewer workers than wanted still finish every job: callers take part.
      if (pthread_create(&workers_[num_workers_], nullptr, &Pool::worker, this) != 0) break;
      ++num_workers_;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  static void* worker(void* pool) {
    static_cast<Pool*>(pool)->serve();
    return nullptr;
  }

  Job* find_job() {
    for (Job* job = jobs_; job; job = job->next_job)
      if (job->joined < job->max_threads && !job->dealer.is_empty()) return job;
    return nullptr;
  }

  void serve() {
    pthread_mutex_lock(&mutex_);
    for (;;) {
      if (Job* job = find_job()) {
        const i32 thread = job->joined++;
        job->active.fetch_add(1, std::memory_order_relaxed);
        pthread_mutex_unlock(&mutex_);
        job->dealer.work(thread);
        pthread_mutex_lock(&mutex_);
        if (job->active.fetch_sub(1, std::memory_order_release) == 1) pthread_cond_broadcast(&done_);
        continue;
      }
      if (stopping_) break;
      const u64 seen = generation_.load(std::memory_order_relaxed);
      pthread_mutex_unlock(&mutex_);
      const bool woken = spin_until([&] { return generation_.load(std::memory_order_acquire) != seen; });
      pthread_mutex_lock(&mutex_);
      if (woken || generation_.load(std::memory_order_relaxed) != seen) continue;
      ++sleeping_;
      pthread_cond_wait(&wake_, &mutex_);
      --sleeping_;
    }
    pthread_mutex_unlock(&mutex_);
  }

  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t wake_ = PTHREAD_COND_INITIALIZER;
  pthread_cond_t done_ = PTHREAD_COND_INITIALIZER;
  Job* jobs_ = nullptr;
  i32 num_workers_ = 0;
  i32 sleeping_ = 0;
  bool stopping_ = false;
  std::atomic<u64> generation_{0};
  pthread_t workers_[kMaxThreads];
};

// Storage of our own: a child of fork builds a fresh pool in the same place, and no destructor runs while other
// threads may still compute.
alignas(Pool) unsigned char pool_storage[sizeof(Pool)];
Pool& pool() { return *reinterpret_cast<Pool*>(pool_storage); }

__attribute__((constructor)) void start_pool() {
  new (pool_storage) Pool;
  pthread_atfork([] { pool().lock(); }, [] { pool().unlock(); }, [] { new (pool_storage) Pool; });
}

__attribute__((destructor)) void stop_pool() { pool().stop(); }

}  // namespace

void run_on_own_pool(i32 num_threads, i64 count, ParallelBody body, void* context) {
  Job job{Dealer(count, num_threads, 0, body, context), num_threads, nullptr, 1, {0}};
  pool().run(job);
}

}  // namespace mica
