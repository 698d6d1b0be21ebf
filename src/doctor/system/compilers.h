// SPDX-License-Identifier: Apache-2.0
// C++ compilers on PATH, by their files.
#pragma once

#include <string>
#include <vector>

#include "doctor/facts/environment.h"
#include "doctor/facts/mangled.h"
#include "doctor/system/outlook.h"

namespace doctor {

struct Compiler {
  std::string name, path;  // "g++", "/usr/bin/g++"
  std::string kind;        // "gcc", "clang"; empty: not known
  Version version;
  CxxAbi cxx_abi = CxxAbi::kUnknown;  // what it compiles for by default
  bool is_first = false;              // the one that `c++` or `g++` starts
};

std::vector<Compiler> read_compilers(const Outlook& outlook);

}  // namespace doctor
