// SPDX-License-Identifier: Apache-2.0
// What would happen if flash-attn were built from source, here and with this Python.
#pragma once

#include <vector>

#include "doctor/system/survey.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

std::vector<Verdict> judge_build(const Survey& survey, const PythonInstall& python);

// How many compilers flash-attn's setup.py starts at once when nobody says, and the memory they take at their peak.
struct BuildPlan {
  int jobs = 1, threads = 1;
  uint64_t peak_bytes = 0;
};
BuildPlan default_build_plan(const Survey& survey);
// The largest plan that fits into the memory that is free.
BuildPlan fitting_build_plan(const Survey& survey);

// The name of the wheel that flash-attn's setup.py (of version 2.8.3) would look for.
std::string guessed_wheel(const Survey& survey, const PythonInstall& python);

}  // namespace doctor
