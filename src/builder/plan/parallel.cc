// SPDX-License-Identifier: Apache-2.0
#include "builder/plan/parallel.h"

#include <algorithm>
#include <cstdio>

namespace builder {

std::string gigabytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB", double(bytes) / double(uint64_t(1) << 30));
  return text;
}

ParallelChoice choose_jobs(const Parallelism& p) {
  ParallelChoice out;
  const int cores = std::max(1, p.cores);
  const bool memory_known = p.memory_bytes > 0 && p.job_bytes > 0;
  const uint64_t budget = p.memory_bytes / 10 * 9;
  const int fitting = memory_known ? int(std::min<uint64_t>(budget / p.job_bytes, 4096)) : 4096;
  const std::string each = gigabytes(p.job_bytes) + " for each job";
  if (p.wanted_jobs > 0) {
    out.jobs = p.wanted_jobs;
    out.why = "asked for";
    if (memory_known && p.wanted_jobs > std::max(1, fitting))
      out.warning = std::to_string(p.wanted_jobs) + " jobs may take " +
                    gigabytes(p.job_bytes * uint64_t(p.wanted_jobs)) + ", and " + gigabytes(p.memory_bytes) +
                    " are left (" + p.memory_from + ")";
    return out;
  }
  out.jobs = std::max(1, std::min(cores, fitting));
  if (p.files > 0 && p.files < out.jobs) {
    out.jobs = p.files;
    out.why = std::to_string(p.files) + (p.files == 1 ? " file" : " files") + " to compile with nvcc";
    const int threads = std::clamp(cores / p.files, 1, std::max(1, p.architectures));
    out.nvcc_threads = std::clamp(fitting / p.files, 1, threads);
    return out;
  }
  const std::string here = std::to_string(cores) + (cores == 1 ? " core" : " cores");
  if (!memory_known)
    out.why = here + "; memory is not known";
  else if (fitting < cores)
    out.why = gigabytes(p.memory_bytes) + " of memory (" + p.memory_from + ") at " + each + "; " + here;
  else
    out.why = here + "; " + gigabytes(p.memory_bytes) + " of memory (" + p.memory_from + ") hold " + each;
  if (memory_known && fitting < 1)
    out.warning = "one job may take " + gigabytes(p.job_bytes) + ", and " + gigabytes(p.memory_bytes) + " are left (" +
                  p.memory_from + ")";
  return out;
}

int fewer_jobs(int jobs) { return jobs > 1 ? jobs / 2 : 0; }

}  // namespace builder
