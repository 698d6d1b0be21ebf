// SPDX-License-Identifier: Apache-2.0
// What the builder and its driver tell each other, and the record of a finished build.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "builder/plan/forecast.h"
#include "builder/run/build.h"
#include "builder/run/prepare.h"
#include "builder/run/state.h"
#include "builder/shelf/records.h"

namespace builder {

struct Probe {
  std::map<std::string, std::string> modules;  // and versions; empty: it is not there
  std::vector<std::string> requires_;          // of pyproject.toml's build system, that are not there
  bool understood = false;
};
Probe parse_probe(const std::string& text);

std::string build_settings(const Plan& plan, const std::string& source, const std::string& wheel_folder,
                           bool refuse_downloads);
std::string check_settings(const std::string& wheel, const std::string& folder, const std::vector<std::string>& modules,
                           bool compare);

struct CheckResult {
  bool understood = false;
  std::vector<std::string> imported;
  std::string failed;
  bool compared = false, equal = false;
  double largest_difference = 0;
  std::string not_compared;  // why that was not tried
};
CheckResult parse_check(const std::string& text);  // the last line is the answer

MatrixLine matrix_line(const PreparedBuild& prepared, const BuildOutcome& outcome);
// The record that lies beside the wheel: source, environment, plan, verdicts, what it took.
std::string build_record(const PreparedBuild& prepared, const BuildOutcome& outcome, const MatrixLine& line,
                         const std::map<std::string, std::string>& tools);
// The record of a wheel that was built before and judged again: what it took stays, the judgement is the new one, and
// an import or comparison that was not tried this time stays known.
std::string judged_again(const std::string& old_record, const std::string& new_record);
// What the finished builds of a work folder took, oldest first.
std::vector<RecordedBuild> recorded_builds(const std::string& work);
// The plan for `--dry-run --json`.
std::string plan_json(const PreparedBuild& prepared);
std::string state_json(const std::string& folder, const BuildState& state);
std::string outcome_json(const PreparedBuild& prepared, const BuildOutcome& outcome);

}  // namespace builder
