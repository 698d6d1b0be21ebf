// SPDX-License-Identifier: Apache-2.0
// What the verbs of the doctor have in common.
#pragma once

#include <span>
#include <string>

#include "cli/exit_code.h"
#include "doctor/read/wheel.h"
#include "doctor/system/survey.h"
#include "doctor/verdict/verdict.h"

namespace cli {

// 1 if something will fail; else 2 if something decisive is not known; else 0.
ExitCode exit_code(std::span<const doctor::Verdict> verdicts);

// What is said of a file that could not be read; the others are judged all the same.
doctor::Verdict unreadable(const std::string& given, const std::exception& error);

// The Python that was named, else the one to judge for; nullptr if there is none. Throws if what was named is none.
const doctor::PythonInstall* wanted_python(doctor::Survey& survey, const std::string& named);

// What is no file can be the name of a package.
bool may_be_package(const std::string& given);
// Where it is not: what is said of it. nullptr: there is no Python.
support::ReadError no_such_package(const std::string& given, const doctor::PythonInstall* python);

// A line on the terminal that is written over, for what takes longer than a blink.
class ProgressLine {
 public:
  doctor::Progress callback();
  void clear();
  ProgressLine();
  ~ProgressLine() { clear(); }

 private:
  double begun_, last_ = 0;
  bool shown_ = false;
};

}  // namespace cli
