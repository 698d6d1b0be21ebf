// SPDX-License-Identifier: Apache-2.0
// On whose threads the CPU backend computes: those of an OpenMP runtime that the process has loaded, a pool of our own,
// or the caller's (mica_set_thread_pool). A plan keeps what was chosen when it was made.
#pragma once

#include <cstddef>

#include "core/types.h"
#include "mica/mica.h"

namespace mica {

struct OpenMp;

struct Threads {
  i32 count;             // at most so many at a time
  mica_run_tasks run;    // the caller's pool; null: none
  void* pool;            // its first argument
  const OpenMp* openmp;  // null: our own pool, where there is no pool of the caller's
};

// 0: as many as the process may use. For threads that are chosen afterwards, as is the caller's pool.
void set_num_threads(i32 count);
void set_thread_pool(mica_run_tasks run, void* pool);

// How many threads choose_threads would choose.
i32 num_threads();

// Fails where MICA_CPU_THREADS_FROM asks for what is not there or does not exist. Allocates where a library was loaded
// since the last time.
mica_status choose_threads(Threads& threads);

// Whose threads these are, such as "OpenMP, libgomp.so.1" or "its own: no OpenMP runtime is loaded".
void describe_threads(char* text, size_t text_bytes);

// Called with each index in [0, count) once, and the number of the thread that runs it, in [0, threads.count).
using ParallelBody = void (*)(void* context, i64 index, i32 thread);

// Returns when all calls have returned. The caller takes part; indices are handed out in order. Any number of threads
// may call this at once. Inside a parallel region of OpenMP, whose threads are busy, the caller does everything.
void parallel_for(const Threads& threads, i64 count, ParallelBody body, void* context);

}  // namespace mica
