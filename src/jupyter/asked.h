// SPDX-License-Identifier: Apache-2.0
// A Python that is asked something, and answers with one line of JSON behind a mark.
#pragma once

#include <string>
#include <vector>

namespace jupyter {

struct Said {
  std::string answer;  // JSON; empty: none
  std::string why_not;
};

Said ask(const std::vector<std::string>& words, double limit_seconds);

}  // namespace jupyter
