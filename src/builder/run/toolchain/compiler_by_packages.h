// SPDX-License-Identifier: Apache-2.0
// A g++ without root: the distribution's own packages unpacked into a folder, or packages of a folder that is a channel
// of conda.
#pragma once

#include <optional>
#include <string>

#include "builder/run/workshop.h"

namespace builder {

struct CompilerWish {
  int most_gcc = 0;           // major version that nvcc takes; 0: any
  std::string folder;         // where toolchains lie
  std::string conda_channel;  // a folder with linux-64/repodata.json; empty: the distribution's packages
};

// What can be had; nothing where neither apt nor a channel has one. `fetched_by` is empty if an earlier build left it.
// Where apt has no lists of packages, they are fetched into the wish's folder if `fetches_lists`; else nothing is
// changed, and which g++ they would offer stays open.
std::optional<HostCompiler> compiler_of_packages(const CompilerWish& wish, bool fetches_lists);

// Brings it. `shop` gives the Python that reads a channel. Throws std::runtime_error.
HostCompiler bring_compiler(HostCompiler compiler, const CompilerWish& wish, const Workshop& shop);

}  // namespace builder
