// SPDX-License-Identifier: Apache-2.0
// Kernels that run now, and which of them still hold compiled modules that were replaced on disk since.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "doctor/verdict/verdict.h"
#include "support/files.h"

namespace jupyter {

struct RunningKernel {
  int process = 0;
  std::string connection_file;        // what Jupyter knows it by
  std::string program;                // its Python
  std::vector<std::string> replaced;  // files of packages that it has mapped and that are gone from disk
};

// Files of packages in the text of /proc/PID/maps that are gone, each once. A file that was moved away before it was
// removed is known by the folder alone.
std::vector<std::string> replaced_files(std::string_view maps);

// Every process of this user that was started as a kernel of Python's.
std::vector<RunningKernel> running_kernels(const support::Files& files);

// JUPYTER_KERNEL_OLD if it holds something that was replaced.
std::vector<doctor::Verdict> judge_running(const RunningKernel& kernel);

struct Restarted {
  bool ended = false;
  int process = 0;  // that Jupyter started in its place, with the same connection file; 0: none came
};
// Ends the process, where this user may; Jupyter's server starts another in its place, which is waited for.
Restarted restart_kernel(const RunningKernel& kernel, double limit_seconds);

}  // namespace jupyter
