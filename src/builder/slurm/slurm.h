// SPDX-License-Identifier: Apache-2.0
// A command as a Slurm job: script, submission, where it stands, what its end means, what a second try asks for.
// Slurm's programs are found on PATH and started without a shell; what they print is read with suspicion.
//
// A job's folder lies on storage that its node sees too:
//   job.sh        the script
//   job.json      the request and the job's id: what `--attach` reads
//   job-ID.log    all that the job printed, Slurm's own last words too
//   job-ID.end    exit code of the command, written by the script
//   job-ID.json   how the build in it ended, written by `mica build`
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "builder/slurm/job.h"

namespace builder {

// Writes the script, hands it to sbatch and notes the id. Throws std::runtime_error with Slurm's own words.
Job submit_job(const JobRequest& request);
// Several as one array, a job for each task: their folders are FOLDER/0, FOLDER/1, ... A second try of one is a job of
// its own.
std::vector<Job> submit_array(const std::string& folder, std::vector<JobRequest> tasks);
// The next attempt, in the same folder.
Job resubmit_job(const Job& before, const JobRequest& request);
// Throws std::runtime_error with one line if the folder holds no job.
Job read_job(const std::string& folder);

const char* phase_name(JobPhase phase);
const char* end_name(JobEnd end);

// A line of the log that Slurm itself wrote.
bool is_slurms_own(std::string_view line);

// One look. Never throws for what Slurm says; `problem` tells.
JobStatus look_at_job(const Job& job);

// Looks until the job ended, or `tell` returns false, or stop_requested(). Patient with a controller that is away.
JobStatus follow_job(const Job& job, const std::function<bool(const JobStatus&)>& tell, double seconds_between = 5);

// Also fine for a job that has ended. Throws std::runtime_error with Slurm's own words.
void cancel_job(const Job& job);

// By sinfo; 0 if it cannot be found out.
uint64_t largest_node_bytes(const std::string& partition);

}  // namespace builder
