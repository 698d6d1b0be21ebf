// SPDX-License-Identifier: Apache-2.0
// The wheels on a shelf, judged again.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "doctor/verdict/verdict.h"

namespace builder {

struct ShelfEntry {
  std::string wheel, sha256;
  uint64_t size = 0;
  std::vector<doctor::Verdict> verdicts;
  bool pretender = false;   // claims compiled code and holds none
  std::string quarantined;  // where it lies now
  bool bad() const { return doctor::exit_code_of(verdicts) != 0; }
};

struct ShelfReport {
  std::vector<ShelfEntry> entries;
  std::vector<doctor::Verdict> verdicts;  // of the folder itself
};

// What the doctor says of one wheel; it may throw support::ReadError.
using Judge = std::function<std::vector<doctor::Verdict>(const std::string& path)>;
ShelfReport verify(const std::string& folder, const Judge& judge, bool quarantine);

}  // namespace builder
