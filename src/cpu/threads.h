// SPDX-License-Identifier: Apache-2.0
// A thread pool of our own. Workers are started when first needed, sleep when idle, survive fork (the child starts its
// own) and are joined when the library is unloaded.
#pragma once

#include "core/types.h"

namespace mica {

// How many threads the process may use: MICA_NUM_THREADS if set, else its affinity.
i32 available_threads();

// Called with each index in [0, count) once, and the number of the thread that runs it, in [0, num_threads).
using ParallelBody = void (*)(void* context, i64 index, i32 thread);

// Returns when all calls have returned. The caller is thread 0 and takes part; indices are handed out in order. Any
// number of threads may call this at once.
void parallel_for(i32 num_threads, i64 count, ParallelBody body, void* context);

}  // namespace mica
