// SPDX-License-Identifier: Apache-2.0
// Notes of the tests: which verdicts they saw given by a fixture and withheld from its near miss. doctor/catalogue
// compares the notes of all programs with the catalogue.
#pragma once

#include <errno.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "doctor/verdict/verdict.h"

// After both were seen.
inline void note_covered(const std::string& code) {
  static const char* const folder = std::getenv("MICA_VERDICT_NOTES");
  if (!folder || testing::Test::HasFailure()) return;
  static std::ofstream notes(std::string(folder) + "/" + program_invocation_short_name);
  notes << code << std::endl;
}

// The fixture has the code, its near miss has not.
inline void expect_covered(const std::string& code, const std::vector<doctor::Verdict>& fixture,
                           const std::vector<doctor::Verdict>& near_miss) {
  const auto has = [&](const std::vector<doctor::Verdict>& verdicts) {
    return std::any_of(verdicts.begin(), verdicts.end(), [&](const doctor::Verdict& v) { return v.code == code; });
  };
  EXPECT_TRUE(has(fixture)) << code << " is not given";
  EXPECT_FALSE(has(near_miss)) << code << " is given to the near miss";
  note_covered(code);
}
