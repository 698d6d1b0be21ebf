// SPDX-License-Identifier: Apache-2.0
#include "builder/plan/forecast.h"

#include <algorithm>

#include "support/text.h"

namespace builder {

Forecast forecast(const Plan& plan, const std::string& package, const std::vector<RecordedBuild>& recorded) {
  const double architectures = double(std::max<std::size_t>(1, plan.architectures.size()));
  const double jobs = std::max(1, plan.jobs);
  Forecast out;
  std::vector<const RecordedBuild*> same;
  for (const RecordedBuild& one : recorded)
    if (one.package == package && one.seconds > 0) same.push_back(&one);
  if (!same.empty()) {
    // The last of them: machines and releases change.
    const RecordedBuild& last = *same.back();
    const double of = std::max(1, last.architectures);
    out.seconds = last.seconds * std::max(1, last.jobs) / of * architectures / jobs;
    out.peak_bytes = uint64_t(double(last.peak_bytes) / std::max(1, last.jobs) * jobs);
    out.wheel_bytes = uint64_t(double(last.wheel_bytes) / of * architectures);
    out.from = support::counted(same.size(), "build") + " recorded in " + last.origin + ", the last of " + last.version;
    return out;
  }
  const Recipe& recipe = *plan.recipe;
  if (recipe.compile_seconds <= 0) return out;
  out.seconds = recipe.compile_seconds * architectures / jobs;
  out.peak_bytes = uint64_t(double(plan.job_bytes) * jobs);
  out.wheel_bytes = uint64_t(double(recipe.wheel_bytes) * architectures);
  out.from = "the build that Mica's docs/evidence/builder-truth.json records";
  return out;
}

}  // namespace builder
