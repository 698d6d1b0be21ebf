// SPDX-License-Identifier: Apache-2.0
#include "jupyter/notebook.h"

#include <unistd.h>

#include <filesystem>
#include <stdexcept>

#include "doctor/explain/explain.h"
#include "jupyter/asked.h"
#include "jupyter/programs.h"
#include "support/temporary_folder.h"
#include "support/text.h"

namespace jupyter {

using namespace support;

NotebookAnswer run_notebook(const NotebookRequest& request) {
  if (access(request.notebook.c_str(), R_OK) != 0)
    throw std::runtime_error(printable(request.notebook) + " cannot be read");
  const TemporaryFolder runtime(std::filesystem::temp_directory_path().string(), "mica-notebook.");
  const std::string path = std::filesystem::absolute(request.notebook).string();
  const Said said = ask({request.python, "-c", kNotebookProgram, path, request.kernel,
                         std::to_string(request.limit_seconds), runtime.path()},
                        request.limit_seconds + 30);
  if (said.answer.empty()) throw std::runtime_error(printable(request.notebook) + " could not be run: " + said.why_not);
  return parse_notebook_answer(said.answer);
}

std::vector<doctor::Verdict> judge_notebook(const NotebookRequest& request, const NotebookAnswer& answer,
                                            const doctor::Environment& here) {
  if (answer.failed_cell == 0) return {};
  std::vector<doctor::Verdict> out = {doctor::make_verdict(
      {.code = "JUPYTER_CELL_FAILED",
       .subject = printable(base_name(request.notebook)) + ", code cell " + std::to_string(answer.failed_cell),
       .message = printable(answer.error, 500),
       .cause = "The cells before it ran; those behind it were not tried.",
       .fix = "see what follows, then the same command again",
       .evidence = {"the cell begins: " + printable(answer.first_line, 200)}})};
  const doctor::Explanation why = doctor::explain(answer.traceback, &here);
  out.insert(out.end(), why.verdicts.begin(), why.verdicts.end());
  return out;
}

}  // namespace jupyter
