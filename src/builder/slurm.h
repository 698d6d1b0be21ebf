// SPDX-License-Identifier: Apache-2.0
// A command as a Slurm job: script, submission, where it stands, what its end means, what a second try asks for.
// Slurm's programs are found on PATH and started without a shell; what they print is read with suspicion.
//
// A job's folder lies on storage that its node sees too:
//   job.sh        the script
//   job.json      the request and the job's id: what `--attach` reads
//   job-ID.log    all that the job printed, Slurm's own last words too
//   job-ID.end    exit code of the command, written by the script
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "builder/process.h"
#include "builder/state.h"
#include "doctor/verdict.h"

namespace builder {

// As sbatch takes them; empty: not asked for.
struct SlurmWishes {
  std::string partition, memory, time, gres, account;  // "gpu", "64G", "02:00:00", "gpu:1", "lab"
};

struct JobRequest {
  std::string name;                // shown by squeue
  std::string folder;              // absolute
  std::vector<std::string> words;  // the command; "--jobs N" in it follows `jobs`
  Variables variables;             // set for it, beside those of the submission
  std::string work_folder;         // where the command starts; empty: in `folder`
  std::string builds, target;      // folder in which the command notes its progress (state.h), and under which target
  int cores = 1;
  int jobs = 1;            // compilers at the same time
  uint64_t job_bytes = 0;  // memory of one; 0: not known
  SlurmWishes wishes;
};

// What is asked of Slurm: the wish, else jobs times memory per job, a tenth more, and 2 GiB for the rest; 0: nothing.
uint64_t asked_memory_bytes(const JobRequest& request);
// "64G" or "800M" (a number alone is in MiB); nothing for other text.
std::optional<uint64_t> parse_slurm_memory(std::string_view text);
// "90", "1:30:00", "1-12", "1-12:00:00" (a number alone is in minutes); nothing for other text.
std::optional<uint64_t> parse_slurm_seconds(std::string_view text);
std::string slurm_time(uint64_t seconds);  // "1-12:00:00"

// Throws std::runtime_error with one line: the flag, what it got, what it wants.
void check_wishes(const SlurmWishes& wishes);

std::string job_script(const JobRequest& request);

struct Job {
  JobRequest request;
  std::string id;        // digits; empty: the submission was interrupted
  std::string cluster;   // of a federation; empty: the usual one
  double submitted = 0;  // seconds since 1970
  int attempt = 1;
  std::vector<std::string> earlier;  // ids of the attempts before
  std::string log() const { return request.folder + "/job-" + id + ".log"; }
};

// Writes the script, hands it to sbatch and notes the id. Throws std::runtime_error with Slurm's own words.
Job submit_job(const JobRequest& request);
// The next attempt, in the same folder.
Job resubmit_job(const Job& before, const JobRequest& request);
// Throws std::runtime_error with one line if the folder holds no job.
Job read_job(const std::string& folder);

enum class JobPhase { kUnknown, kQueued, kRunning, kEnded };
enum class JobEnd { kNone, kSuccess, kFailed, kMemory, kTime, kNode, kPreempted, kCancelled, kForgotten };
const char* phase_name(JobPhase phase);
const char* end_name(JobEnd end);

struct JobStatus {
  JobPhase phase = JobPhase::kUnknown;
  JobEnd end = JobEnd::kNone;
  std::string state, reason;        // Slurm's words: "PENDING", "Resources"
  std::string node, elapsed, left;  // "node17", "1:02:03"
  int exit_code = -1;               // of the command; -1: not known
  std::optional<BuildState> build;  // how far it is, as the build itself notes it
  std::vector<std::string> log;     // the last lines
  std::string problem;              // why nothing could be found out
};

// A line of the log that Slurm itself wrote.
bool is_slurms_own(std::string_view line);

// One look. Never throws for what Slurm says; `problem` tells.
JobStatus look_at_job(const Job& job);

// Looks until the job ended, or `tell` returns false, or stop_requested(). Patient with a controller that is away.
JobStatus follow_job(const Job& job, const std::function<bool(const JobStatus&)>& tell, double seconds_between = 5);

// Also fine for a job that has ended. Throws std::runtime_error with Slurm's own words.
void cancel_job(const Job& job);

// What the state means, with the words of Slurm and of the log; nothing for a success or a job that runs.
std::vector<doctor::Verdict> explain_job(const Job& job, const JobStatus& status);

struct Retry {
  JobRequest request;
  std::string why;
};
// What a second try should ask for; nothing if it would end the same way. `node_bytes`: the most that a node of the
// partition has; 0: not known.
std::optional<Retry> retry_of(const Job& job, const JobStatus& status, uint64_t node_bytes);
// By sinfo; 0 if it cannot be found out.
uint64_t largest_node_bytes(const std::string& partition);

// In slurm_json.cc.
std::string to_json(const Job& job);
Job job_from_json(std::string_view text, const std::string& origin);  // throws std::runtime_error with one line

}  // namespace builder
