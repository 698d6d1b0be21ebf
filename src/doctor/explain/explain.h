// SPDX-License-Identifier: Apache-2.0
// From the text of a failure to its first cause.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "doctor/facts/environment.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

struct Explanation {
  // The first is the first cause; then what else the text shows. Empty if nothing in it is known.
  std::vector<Verdict> verdicts;
  bool cause_found = false;   // else there are only hints and symptoms, or nothing
  bool success_seen = false;  // the text ends well
};

// `target` makes the advice particular; nullptr: nothing is known of where the text comes from.
Explanation explain(std::string_view text, const Environment* target = nullptr);

// For a text that people paste, with the environment of where mica runs. A text that names another Python, or a folder
// of packages that is not here, is explained for there, and then for here where that differs.
Explanation explain_pasted(std::string_view text, const Environment& here);

// The line that looks most like an error, for text that is not known; empty if none does.
std::string likely_error_line(std::string_view text);

}  // namespace doctor
