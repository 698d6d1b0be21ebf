// SPDX-License-Identifier: Apache-2.0
// Jupyter's kernels as they lie on disk. Nothing that is found is started or imported.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/report/report.h"
#include "doctor/system/kernel_spec_json.h"
#include "doctor/system/survey.h"
#include "jupyter/kernel_json.h"

namespace jupyter {

struct Kernel {
  std::string name;    // as Jupyter calls it: the folder's, in lower case
  std::string folder;  // .../kernels/NAME
  std::string scope;   // who sees it: "user", "system", "JUPYTER_PATH", "environment /venv"
  std::optional<doctor::KernelSpec> spec;
  std::string program;                          // the interpreter; empty if it is not known
  std::optional<doctor::PythonInstall> python;  // that it starts, directly or behind other words
  std::vector<doctor::Verdict> verdicts;        // of the kernel itself
  std::vector<doctor::Judged> judged;           // of what is installed for its Python
  bool stale = false;                           // the interpreter or the folder is gone
};

// Every kernel that any Jupyter here could offer, judged by the doctor. Adds Pythons that the survey missed.
std::vector<Kernel> list_kernels(doctor::Survey& survey);

// Where `jupyter kernelspec install --user` writes: .../share/jupyter.
std::string user_jupyter_folder(const doctor::Outlook& outlook);
// Letters, digits, dots, dashes and underscores.
bool is_kernel_name(std::string_view name);
// The one command that installs ipykernel for this Python.
std::string ipykernel_command(const doctor::Outlook& outlook, const doctor::PythonInstall& python);

}  // namespace jupyter
