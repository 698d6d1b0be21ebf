// SPDX-License-Identifier: Apache-2.0
// Bench suites are data: {"name", "about", "cases": [{option: value or list of values}]}. A list is a choice, and a
// case stands for every combination of its choices; of window and varlen, whose values are lists, a list of lists is.
// "peers", "beside" and "latent" of a case are for bench/compare.py and are ignored here.
#pragma once

#include <string>
#include <vector>

#include "cli/attention/problem.h"

namespace cli {

struct Suite {
  std::string name, about;
  std::vector<ProblemSpec> cases;
};

// A path to a JSON file, or "": the suite that is built in (bench/suites/cpu.json). Throws std::runtime_error, in one
// line, for a file that is no suite.
Suite load_suite(const std::string& path);

}  // namespace cli
