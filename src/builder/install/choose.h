// SPDX-License-Identifier: Apache-2.0
// From a wish ("flash-attn", a wheel) and an environment to what is going to be done, with the reasons.
#pragma once

#include <string>
#include <vector>

#include "doctor/system/survey.h"

namespace builder {

struct FixChoice {
  enum class Kind {
    kNothing,  // it works already
    kDropIn,   // Mica's own package of that name, which is compiled for no torch
    kWheel,    // a file at hand that loads here
    kBuild,    // none: mica build
    kRefused,  // nothing serves
  } kind = Kind::kRefused;
  std::string package;              // "flash-attn"
  std::vector<std::string> wheels;  // to be installed
  std::vector<std::string> why;     // one line each: what was looked at, and why it is or is not the choice
};

// `wish` is the name of a package, a sentence with one in it, or a wheel; wheels are looked for in `folders`.
FixChoice choose_fix(const std::string& wish, const std::vector<std::string>& folders, const doctor::Survey& survey,
                     const doctor::PythonInstall& python);

}  // namespace builder
