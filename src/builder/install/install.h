// SPDX-License-Identifier: Apache-2.0
// Wheels put into a Python: unpacked beside it and imported there first, then exchanged for what they replace as a
// whole, imported once more in a new process, and taken back if anything fails or the program is killed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "doctor/system/python_env.h"

namespace builder {

struct InstallRequest {
  doctor::PythonInstall python;
  std::vector<std::string> wheels;               // files
  std::function<void(const std::string&)> say;   // a line about what is being done; may be empty
  std::function<void(const std::string&)> step;  // after each step, for tests that end the program there
};

struct InstallOutcome {
  bool installed = false;
  std::string site;                   // where it went
  std::vector<std::string> replaced;  // "flash-attn 2.8.1"
  std::vector<std::string> imported;  // modules that a new process imported
  std::string error;                  // of what was taken back: why
  std::string log;                    // what the failing program said
};

// The folder of packages that pip would use, and the one of the swap in it.
std::string site_of(const doctor::PythonInstall& python);
std::string swap_folder_of(const doctor::PythonInstall& python);

// Undoes what a killed installation left. Whether there was anything.
bool undo_unfinished(const doctor::PythonInstall& python);

InstallOutcome install_wheels(const InstallRequest& request);

}  // namespace builder
