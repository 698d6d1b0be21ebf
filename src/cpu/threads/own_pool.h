// SPDX-License-Identifier: Apache-2.0
// A thread pool of our own. Workers are started when first needed, sleep when idle, survive fork (the child starts its
// own) and are joined when the library is unloaded.
#pragma once

#include "cpu/threads/threads.h"

namespace mica {

constexpr i32 kMaxThreads = 1024;

// parallel_for, by at most num_threads threads of which the caller is number 0.
void run_on_own_pool(i32 num_threads, i64 count, ParallelBody body, void* context);

}  // namespace mica
