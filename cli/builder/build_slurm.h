// SPDX-License-Identifier: Apache-2.0
// `mica build --slurm`: the same build as a job of Slurm.
#pragma once

#include <string>

#include "builder/run/build.h"
#include "builder/run/prepare.h"
#include "builder/slurm/job.h"
#include "builder/slurm/slurm.h"
#include "cli/flags.h"

namespace cli {

struct SlurmOptions {
  bool slurm = false, print = false, cancel = false;
  builder::SlurmWishes wishes;
  int retries = 2;
  std::vector<std::string> pythons;  // more than one: an array of jobs, a task for each
  std::string publish;               // folder that the job puts the finished wheel into
};

void add_slurm_flags(Command& verb, SlurmOptions& options);

struct SlurmEnd {
  int exit_code = 0;
  std::string wheel, python;  // what was built, and the Python that it is for; empty: nothing was
};

// Submits the build, or follows the job that is there already, and says how it ended.
SlurmEnd run_in_slurm(const builder::BuildRequest& request, const SlurmOptions& options, bool attach, bool json,
                      const builder::Listener& listener);

// The folder of a job of this target (of any, if empty) that was submitted from here; empty: none.
std::string find_job_folder(const builder::BuildRequest& request);

}  // namespace cli
