// SPDX-License-Identifier: Apache-2.0
// Every Python of a system, read from its files and never started.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/facts/environment.h"
#include "doctor/system/outlook.h"

namespace doctor {

struct InstalledPackage {
  std::string name;       // normalised: "flash-attn"
  std::string version;    // "2.8.3"
  std::string site;       // the site-packages it lies in
  std::string dist_info;  // folder name there
};

struct PythonInstall {
  PythonFacts facts;
  std::string program;                // as found: /venv/bin/python
  std::string prefix;                 // sys.prefix: /venv
  std::string base_prefix;            // of the Python that a virtual environment was made from; else the same
  std::string kind;                   // "system", "virtual environment", "conda", "pyenv", "uv"
  std::vector<std::string> found_by;  // "PATH", "VIRTUAL_ENV", "Jupyter kernel torch-gpu"
  bool is_active = false;             // what `python` (or python3) would start
  std::vector<InstalledPackage> packages;
  std::optional<TorchFacts> torch;
  std::vector<std::string> problems;

  const InstalledPackage* package(const std::string& name) const;
  std::string pip() const { return program + " -m pip"; }
};

// The one program; nothing if it is no Python's.
std::optional<PythonInstall> read_python(const Outlook& outlook, const std::string& program,
                                         const std::string& machine);
// All that PATH, variables, conda, pyenv, uv, the usual folders and Jupyter's kernels lead to; the active one first.
std::vector<PythonInstall> read_pythons(const Outlook& outlook, const std::string& machine);

}  // namespace doctor
