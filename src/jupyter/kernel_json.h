// SPDX-License-Identifier: Apache-2.0
// Jupyter's kernel.json as it is written (doctor/system/kernel_spec_json.h reads it), and what a kernel answers when it
// is asked what it can import.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace jupyter {

// `own`: what ipykernel itself would write (JSON); name and variables are put into it. Ends with a line end.
std::string kernel_json_text(std::string_view own, const std::string& display_name,
                             const std::map<std::string, std::string>& env);
// The same but for blanks and the order of keys.
bool same_kernel_json(std::string_view a, std::string_view b);

struct KernelImport {
  std::string module, version;
  std::string error;  // the last lines of the traceback; empty: it was imported
};

// What a kernel said that was really started.
struct KernelAnswer {
  bool started = false;
  std::string error;               // why not
  std::vector<std::string> words;  // last lines that the kernel's process wrote itself
  std::string executable, python_version;
  std::vector<KernelImport> imports;
  std::string cuda;               // of torch; empty: none, or a build for the CPU
  std::vector<std::string> gpus;  // that torch sees
};
// Throws std::runtime_error with one line if it is no answer.
KernelAnswer parse_kernel_answer(std::string_view text);

// What became of a notebook's cells.
struct NotebookAnswer {
  int cells = 0;        // of code
  int failed_cell = 0;  // counted from 1; 0: none
  std::string kernel, error, first_line, traceback;
};
NotebookAnswer parse_notebook_answer(std::string_view text);

// Of the question to a Python whether it can be a kernel.
struct KernelProbe {
  bool has_ipykernel = false;
  std::string error;      // of the import
  std::string spec;       // JSON: what ipykernel would write
  std::string resources;  // folder with the logos
};
KernelProbe parse_kernel_probe(std::string_view text);

}  // namespace jupyter
