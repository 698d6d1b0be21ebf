// SPDX-License-Identifier: Apache-2.0
// A wheel or an installed package, judged by what it says of itself.
#pragma once

#include <vector>

#include "doctor/facts/environment.h"
#include "doctor/read/wheel.h"

namespace doctor {

// A wheel against itself: name, WHEEL, METADATA, RECORD and contents.
void judge_wheel(const Wheel& wheel, std::vector<Verdict>& out);
// The same of an installed package, as far as its installer kept the files.
void judge_recorded(const Wheel& package, std::vector<Verdict>& out);
// Its tags and Requires-Python against a target.
void judge_wheel(const Wheel& wheel, const Environment& target, std::vector<Verdict>& out);

}  // namespace doctor
