// SPDX-License-Identifier: Apache-2.0
// How many compilers run at the same time.
#pragma once

#include <cstdint>
#include <string>

namespace builder {

struct Parallelism {
  int cores = 1;
  uint64_t memory_bytes = 0;  // 0: not known
  std::string memory_from;
  uint64_t job_bytes = 0;
  int files = 0;  // 0: not known
  int architectures = 1;
  int wanted_jobs = 0;  // 0: chosen here
};

struct ParallelChoice {
  int jobs = 1, nvcc_threads = 1;
  std::string why, warning;
};

// As many as there are cores, and as memory holds with a tenth to spare. Threads inside nvcc (one architecture each)
// only where files are fewer than cores: a job more does the same work in the same memory.
ParallelChoice choose_jobs(const Parallelism& p);

// After a compiler was killed for memory; 0: there is no smaller number.
int fewer_jobs(int jobs);

std::string gigabytes(uint64_t bytes);  // "7.0 GiB"

}  // namespace builder
