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

#include <map>
#include <string>
#include <vector>

#include "builder/plan/plan.h"
#include "builder/run/source.h"
#include "support/process.h"

namespace builder {

using namespace support;

struct Tools {
  std::vector<std::string> missing;             // what setup.py imports and the Python does not have, as pip takes it
  std::map<std::string, std::string> versions;  // of those that are there
};

struct Workshop {
  std::string folder;
  std::string python;  // program
  std::string wheels;  // where wheels of tools may lie, so that no network is needed; empty: nowhere

  std::string path(const char* name) const { return folder + "/" + name; }
  std::string source_root() const;  // the folder below source/ that holds setup.py; empty if there is none yet

  // Makes the folder and writes the driver.
  void open() const;
  // The environment of the plan on top of this process's.
  Variables variables(const Plan& plan) const;
  Command driver(std::vector<std::string> words, const Plan& plan) const;
  // pip of that Python; where it has none (uv makes such environments), pip of an environment of this folder.
  Command pip(std::vector<std::string> words, const Plan& plan, const doctor::TorchFacts& torch) const;

  // Copies or unpacks the source unless that was done. Throws std::runtime_error.
  void bring_source(const Source& source, const Plan& plan) const;
  // Asks the Python. Throws std::runtime_error.
  Tools look_at_tools(const Plan& plan, const doctor::TorchFacts& torch) const;
  // The same, and what was missing is in tools/ now. Throws std::runtime_error.
  Tools bring_tools(const Plan& plan, const doctor::TorchFacts& torch) const;
  // Puts wheels of what is missing into `wheels`, for a machine without a network. Throws std::runtime_error.
  void keep_tools(const Plan& plan, const doctor::TorchFacts& torch) const;
};

constexpr double kPipFetchSeconds = 1800;  // for pip that fetches

// Its standard output. Throws std::runtime_error with `what` and the telling line of its errors.
std::string run_or_throw(const Command& command, double limit_seconds, const std::string& what);

// A package's source archive, by pip; returns its path. Throws std::runtime_error.
std::string fetch_package(const Source& source, const Workshop& workshop, const Plan& plan,
                          const doctor::TorchFacts& torch, const std::string& into);

}  // namespace builder
