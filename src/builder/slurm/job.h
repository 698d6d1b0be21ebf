// SPDX-License-Identifier: Apache-2.0
// A job: what is asked for, and what became of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "builder/run/state.h"
#include "support/process.h"

namespace builder {

using namespace support;

// As sbatch takes them; empty: not asked for.
struct SlurmWishes {
  std::string partition, memory, time, gres, account;  // "gpu", "64G", "02:00:00", "gpu:1", "lab"
  std::string qos, constraint, reservation;
  std::vector<std::string> modules;  // loaded before the command: "cuda/12.8"
  std::vector<std::string> lines;    // options of sbatch that have no field here: "--exclusive", "--mail-user=ada"
};

struct JobRequest {
  std::string name;                // shown by squeue
  std::string folder;              // absolute
  std::vector<std::string> words;  // the command, to which the script adds --jobs
  Variables variables;             // set for it, beside those of the submission
  std::string work_folder;         // where the command starts; empty: in `folder`
  std::string out, publish;        // where the wheel goes, and the shelf that the job puts it on; empty: none
  std::string builds, target;      // folder in which the command notes its progress (state.h), and under which target
  std::string python;              // and for which Python: tasks of an array share both
  int cores = 1;
  int jobs = 1;            // compilers at the same time
  uint64_t job_bytes = 0;  // memory of one; 0: not known
  SlurmWishes wishes;
};

struct Job {
  JobRequest request;
  std::string id;        // digits, of a task "123_4"; empty: the submission was interrupted
  std::string cluster;   // of a federation; empty: the usual one
  double submitted = 0;  // seconds since 1970
  int attempt = 1;
  std::vector<std::string> earlier;  // ids of the attempts before
  std::string log() const { return request.folder + "/job-" + id + ".log"; }
};

// How `mica build` in the job says that it ended (MICA_BUILD_OUTCOME).
struct JobOutcome {
  std::string status, error;       // "built", "failed", "refused", "interrupted"; one line
  std::vector<std::string> codes;  // of its verdicts
};

enum class JobPhase { kUnknown, kQueued, kRunning, kEnded };
enum class JobEnd { kNone, kSuccess, kFailed, kMemory, kTime, kNode, kPreempted, kCancelled, kForgotten };
struct JobStatus {
  JobPhase phase = JobPhase::kUnknown;
  JobEnd end = JobEnd::kNone;
  std::string state, reason;        // Slurm's words: "PENDING", "Resources"
  std::string node, elapsed, left;  // "node17", "1:02:03"
  int exit_code = -1;               // of the command; -1: not known
  std::optional<BuildState> build;  // how far it is, as the build itself notes it
  std::optional<JobOutcome> outcome;
  std::vector<std::string> log;  // the last lines
  std::string problem;           // why nothing could be found out
};

}  // namespace builder
