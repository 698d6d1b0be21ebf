// SPDX-License-Identifier: Apache-2.0
// All that the doctor finds on a system, and the target that one of its Pythons makes.
#pragma once

#include "doctor/system/compilers.h"
#include "doctor/system/cuda_env.h"
#include "doctor/system/host.h"
#include "doctor/system/python_env.h"

namespace doctor {

struct Survey {
  Outlook outlook;
  HostFacts host;
  DriverFacts driver;
  std::vector<FoundGpu> gpus;
  std::vector<Toolkit> toolkits;
  std::vector<Compiler> compilers;
  std::vector<PythonInstall> pythons;  // the active one first
  std::string ninja;                   // path; empty: none on PATH
  double seconds = 0;
};

Survey survey(const Outlook& outlook);

// The one with that program, prefix, or a program below that prefix; read for itself if the survey missed it.
// nullptr if it is no Python.
const PythonInstall* find_python(Survey& survey, const std::string& path);
// The one to judge for when none was named: the active one; else the first that has torch.
const PythonInstall* default_python(const Survey& survey);

// What the loader and the rules need to know. Without a Python: the machine alone.
Environment environment_of(const Survey& survey, const PythonInstall* python);

}  // namespace doctor
