// SPDX-License-Identifier: Apache-2.0
// A notebook run from its first cell to its last in a kernel of its own, or to the cell that fails.
#pragma once

#include <string>
#include <vector>

#include "doctor/facts/environment.h"
#include "doctor/verdict/verdict.h"
#include "jupyter/kernel_json.h"

namespace jupyter {

struct NotebookRequest {
  std::string notebook;
  std::string python;  // program that has jupyter_client
  std::string kernel;  // its name; empty: the one that the notebook names, else that Python's own
  double limit_seconds = 3600;
};

// Throws std::runtime_error with one line if it could not be tried.
NotebookAnswer run_notebook(const NotebookRequest& request);

// JUPYTER_CELL_FAILED, and what its error means.
std::vector<doctor::Verdict> judge_notebook(const NotebookRequest& request, const NotebookAnswer& answer,
                                            const doctor::Environment& here);

}  // namespace jupyter
