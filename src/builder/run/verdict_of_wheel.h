// SPDX-License-Identifier: Apache-2.0
// Whether a wheel that was just built may be handed out.
#pragma once

#include <string>
#include <vector>

#include "builder/run/build.h"
#include "builder/run/prepare.h"

namespace builder {

struct WheelVerdict {
  std::vector<doctor::Verdict> verdicts;
  std::vector<std::string> modules;  // compiled ones, by their import names
};

// By the doctor's word for the target, and against what was asked for: modules, architectures.
WheelVerdict judge_built_wheel(const std::string& path, const PreparedBuild& prepared);

}  // namespace builder
