// SPDX-License-Identifier: Apache-2.0
// A runtime with LLVM's entry alone, as one built without libgomp's names would be: regions of four threads.
#include <thread>
#include <vector>

namespace {
thread_local int thread_num = 0, num_threads = 1, level = 0;
int next_team = 0;  // what __kmpc_push_num_threads asked for; 0: nothing
}  // namespace

extern "C" {

#define EXPORT __attribute__((visibility("default")))

EXPORT int omp_get_max_threads() { return 4; }
EXPORT int omp_get_thread_num() { return thread_num; }
EXPORT int omp_get_num_threads() { return num_threads; }
EXPORT int omp_get_level() { return level; }
EXPORT int __kmpc_global_thread_num(void*) { return 0; }
EXPORT void __kmpc_push_num_threads(void*, int, int count) { __atomic_store_n(&next_team, count, __ATOMIC_RELAXED); }

EXPORT void __kmpc_fork_call(void*, int, void (*body)(int*, int*, void*), void* argument) {
  const int asked = __atomic_exchange_n(&next_team, 0, __ATOMIC_RELAXED), team = asked > 0 ? asked : 4;
  const auto member = [=](int number) {
    const int before = thread_num, team_before = num_threads;
    thread_num = number;
    num_threads = team;
    ++level;
    body(&thread_num, &thread_num, argument);
    --level;
    thread_num = before;
    num_threads = team_before;
  };
  std::vector<std::thread> threads;
  for (int n = 1; n < team; ++n) threads.emplace_back(member, n);
  member(0);
  for (std::thread& thread : threads) thread.join();
}

}  // extern "C"
