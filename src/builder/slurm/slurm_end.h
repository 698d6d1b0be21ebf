// SPDX-License-Identifier: Apache-2.0
// What the end of a job means, and what a second try asks for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "builder/slurm/job.h"
#include "doctor/verdict/verdict.h"

namespace builder {

// What the state means, with the words of Slurm and of the log; nothing for a success or a job that runs.
std::vector<doctor::Verdict> explain_job(const Job& job, const JobStatus& status);

struct Retry {
  JobRequest request;
  std::string why;
};
// What a second try should ask for; nothing if it would end the same way. `node_bytes`: the most that a node of the
// partition has; 0: not known.
std::optional<Retry> retry_of(const Job& job, const JobStatus& status, uint64_t node_bytes);

}  // namespace builder
