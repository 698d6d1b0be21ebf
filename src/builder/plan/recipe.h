// SPDX-License-Identifier: Apache-2.0
// What differs from project to project, as data. A project without a row is built by the general rule.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace builder {

struct Recipe {
  const char* package;               // normalised: "flash-attn"; "" in the general rule
  const char* force;                 // variable that keeps setup.py from downloading a wheel, set to TRUE; "": none
  const char* skip;                  // variable that leaves the extension out: never let through
  const char* force_abi;             // variable that overrides the C++ ABI: never let through
  const char* architectures;         // variable that takes "80;90"; "": setup.py has no switch for it
  const char* version_suffix;        // variable for a local version; never let through
  uint64_t job_bytes;                // most memory that one compiler process was seen to take
  int cuda_files;                    // about how many .cu files it has; 0: counted in the source
  int lowest_sm;                     // GPUs older than this are not supported
  std::vector<const char*> imports;  // what setup.py imports besides torch
  std::vector<const char*> modules;  // compiled modules that the wheel must hold; empty: those found in it
  bool compare;                      // attention that can be compared with Mica's
  bool needs_cuda;                   // without nvcc it makes a wheel with nothing inside
  double compile_seconds = 0;        // of one job, for one architecture, as recorded; 0: not known
  uint64_t wheel_bytes = 0;          // for one architecture
};

// Never null: the general rule serves any other extension of torch.
const Recipe& recipe_of(std::string_view package);
const std::vector<Recipe>& recipes();

}  // namespace builder
