// SPDX-License-Identifier: Apache-2.0
// A wheel judged and put on the shelf, for `mica publish` and for `mica build --publish`.
#pragma once

#include <string>
#include <vector>

#include "builder/shelf/publish.h"

namespace cli {

struct Publishing {
  bool published = false;  // false: the verdicts say why not
  std::vector<doctor::Verdict> verdicts;
  builder::Published done;
  std::string folder, project;
  std::string note;  // what was left out; empty: nothing
};

// Throws std::runtime_error, in one line, for what cannot be read or written.
Publishing publish_wheel(const std::string& wheel, const std::string& folder);

// For a person.
std::string publishing_text(const Publishing& publishing);

}  // namespace cli
