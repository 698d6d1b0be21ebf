// SPDX-License-Identifier: Apache-2.0
// A Python registered as a kernel of Jupyter, and started once to see that it is one.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "doctor/system/outlook.h"
#include "doctor/verdict/verdict.h"
#include "jupyter/kernel_json.h"

namespace jupyter {

struct KernelRequest {
  std::string python;  // a program, or the folder of an environment
  std::string name, display_name;
  std::string prefix;  // PREFIX/share/jupyter/kernels; empty: the user's own folder
  std::map<std::string, std::string> env;
  bool replace = false;  // over a different kernel of that name
  double limit_seconds = 180;
};

struct KernelInstalled {
  std::string name, folder, python;
  std::string placed;  // "new", "same", "replaced"; empty: nothing was written, or it was taken back
  KernelAnswer answer;
  std::vector<doctor::Verdict> verdicts;
};

// Throws std::runtime_error with one line for a request that cannot be served. Where ipykernel is missing, or the
// kernel does not start, the verdicts say so and the disk is as before.
KernelInstalled install_kernel(const doctor::Outlook& outlook, const KernelRequest& request);

}  // namespace jupyter
