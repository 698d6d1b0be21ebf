// SPDX-License-Identifier: Apache-2.0
// The script of a job, and the units that Slurm counts in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "builder/slurm/job.h"

namespace builder {

// What is asked of Slurm: the wish, else jobs times memory per job, a tenth more, and 2 GiB for the rest; 0: nothing.
uint64_t asked_memory_bytes(const JobRequest& request);
// "64G" or "800M" (a number alone is in MiB); nothing for other text.
std::optional<uint64_t> parse_slurm_memory(std::string_view text);
// "90", "1:30:00", "1-12", "1-12:00:00" (a number alone is in minutes); nothing for other text.
std::optional<uint64_t> parse_slurm_seconds(std::string_view text);
std::string slurm_time(uint64_t seconds);  // "1-12:00:00"

// Throws std::runtime_error with one line: the flag, what it got, what it wants.
void check_wishes(const SlurmWishes& wishes);

// A user's variables ("SBATCH_PARTITION") for options that a script has itself. sbatch lets the variable win; what was
// asked of mica shall.
std::vector<std::string> overriding_variables(const std::string& script);

std::string job_script(const JobRequest& request);
// Several commands as one array of jobs, a task for each; all ask for the same. Task 3 works in the folder 3 below the
// one that it is submitted from.
std::string array_script(const std::vector<JobRequest>& tasks);

}  // namespace builder
