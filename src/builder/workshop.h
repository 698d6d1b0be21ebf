// SPDX-License-Identifier: Apache-2.0
// A build's own folder, and the programs that are run in it.
//
//   driver.py       carried by the command (driver.py of this folder)
//   source/         the unpacked source; objects are built inside
//   tools/          what setup.py imports and the Python does not have
//   wheel/          what came out
//   check/          the wheel unpacked, for the import
//   build.log       everything that was printed, of all attempts
//   state.json      where it stands
#pragma once

#include <string>
#include <vector>

#include "builder/plan.h"
#include "builder/process.h"
#include "builder/source.h"

namespace builder {

struct Workshop {
  std::string folder;
  std::string python;  // program

  std::string path(const char* name) const { return folder + "/" + name; }
  std::string source_root() const;  // the folder below source/ that holds setup.py; empty if there is none yet

  // Makes the folder and writes the driver.
  void open() const;
  // The environment of the plan on top of this process's.
  Variables variables(const Plan& plan) const;
  Command driver(std::vector<std::string> words, const Plan& plan) const;

  // Copies or unpacks the source unless that was done. Throws std::runtime_error.
  void bring_source(const Source& source, const Plan& plan) const;
  // Names of packages that were missing and are in tools/ now. Throws std::runtime_error.
  std::vector<std::string> bring_tools(const Plan& plan, const std::string& torch_version) const;
};

// A package's source archive, by pip; returns its path. Throws std::runtime_error.
std::string fetch_package(const Source& source, const Workshop& workshop, const Plan& plan, const std::string& into);

}  // namespace builder
