// SPDX-License-Identifier: Apache-2.0
// OpenMP runtimes that the process has loaded, whatever wheels call their files: libgomp, LLVM's libomp, Intel's
// libiomp5. Never linked: found among the loaded objects, used through the functions that they export.
#pragma once

#include "cpu/threads/threads.h"

namespace mica {

// The runtime whose threads PyTorch computes on, where PyTorch is loaded, else the one that was loaded first; null:
// none is loaded, or this process is a fork, in which a runtime may wait for threads that the parent had.
const OpenMp* find_openmp();

// Why find_openmp gives null.
const char* why_no_openmp();

// The file's name without its folder.
const char* openmp_name(const OpenMp& openmp);

// How many threads a parallel region that the calling thread opens would have.
i32 openmp_max_threads(const OpenMp& openmp);

// Whether the calling thread is inside a parallel region of any runtime that was found.
bool is_in_parallel_region();

// Whether the process is a fork, of one that loaded this library or of one that did not.
bool is_forked();

// parallel_for, on the team that the runtime would give the calling thread anyway (of another size only if num_threads
// is more than that: libgomp ends and starts threads when the size of its team changes).
void run_on_openmp(const OpenMp& openmp, i32 num_threads, i64 count, ParallelBody body, void* context);

}  // namespace mica
