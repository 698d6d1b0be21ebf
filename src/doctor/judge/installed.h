// SPDX-License-Identifier: Apache-2.0
// Packages as they lie in a Python: do their compiled parts load beside its torch?
#pragma once

#include <string>
#include <vector>

#include "doctor/system/survey.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

// Every package of that Python which has compiled files and needs torch, and torch with the driver.
std::vector<Judged> judge_installed(const Survey& survey, const PythonInstall& python, const Environment& target);
// One of them.
Judged judge_package(const Survey& survey, const PythonInstall& python, const InstalledPackage& package,
                     const Environment& target);

}  // namespace doctor
