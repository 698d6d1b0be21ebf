// SPDX-License-Identifier: Apache-2.0
// An installed package: its files, and what they say of themselves, as a wheel would.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/read/inspect.h"
#include "doctor/system/python_env.h"

namespace doctor {

// The package that a folder of a site-packages belongs to: its dist-info folder, or one that a RECORD beside it lists.
std::optional<InstalledPackage> package_at(const Files& files, const std::string& folder);

// Everything that the installer recorded, except what leads out of site-packages. The tags are those of WHEEL.
Inspection inspect_package(const Files& files, const InstalledPackage& package, const Progress& progress = {});

// Of the Python files that a RECORD lists.
PythonWords words_of_package(const Files& files, const InstalledPackage& package);

// The path of a file that a RECORD lists (its own name, which may be that of a link); nothing if it does not exist or
// leads out of site-packages.
std::optional<std::string> recorded_file(const Files& files, const InstalledPackage& package, const std::string& row);

}  // namespace doctor
