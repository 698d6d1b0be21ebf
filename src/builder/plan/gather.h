// SPDX-License-Identifier: Apache-2.0
// From what the doctor sees on this machine to what a plan is made of.
#pragma once

#include <string>

#include "builder/plan/plan.h"
#include "doctor/system/survey.h"

namespace builder {

struct BuildPlace {
  doctor::Survey survey;
  const doctor::PythonInstall* python = nullptr;  // inside the survey; the one that builds
  std::string program;                            // how to start it
};

// `python`: a program or a prefix; empty: the active one. Throws std::runtime_error with one line.
BuildPlace look_around(const std::string& python);

// Facts of the place, and of `target` if that is given; choices and the source are the caller's.
PlanInputs gather(const BuildPlace& place, const doctor::Environment* target);

// How often the kernel has ended a process of this control group (or machine) for memory.
uint64_t memory_kills();

}  // namespace builder
