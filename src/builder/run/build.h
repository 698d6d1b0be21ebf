// SPDX-License-Identifier: Apache-2.0
// Building another project's extension after it was prepared: compile, judge, hand out.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "builder/run/prepare.h"
#include "builder/run/state.h"
#include "doctor/verdict/verdict.h"

namespace builder {

enum class BuildStatus { kBuilt, kRefused, kFailed, kInterrupted };

struct BuildOutcome {
  BuildStatus status = BuildStatus::kFailed;
  std::string wheel, record;  // in the out folder
  std::string published;      // the shelf that it was put on; empty: none
  std::string sha256;
  std::string log;
  std::string error;                      // the one line that matters
  std::vector<doctor::Verdict> verdicts;  // of the wheel, or of the failure
  std::vector<std::string> imported;      // modules that were imported in a process of their own
  std::string not_imported;               // why that was not tried
  std::optional<bool> compared;           // with Mica's attention, forward and backward
  double largest_difference = 0;          // if compared
  std::string not_compared;               // why that was not tried; empty for what is no attention
  double seconds = 0;
  uint64_t peak_bytes = 0;
  int attempts = 0, jobs = 0;
};

// Takes stop signals (process.h) into account. Nothing if another process has the folder: `who` says which then. Throws
// std::runtime_error with one line for what is no build failure.
std::optional<BuildOutcome> build(PreparedBuild& prepared, const Listener& listener, std::string* who);

// Builds, once nobody else does: whoever builds the same already is followed. Its end if that is not "done"; what it
// built is judged once more and handed out where this one wants it. Throws std::runtime_error with one line.
std::variant<BuildOutcome, BuildState> build_or_follow(PreparedBuild& prepared, const Listener& listener);

}  // namespace builder
