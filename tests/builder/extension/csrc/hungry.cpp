// SPDX-License-Identifier: Apache-2.0
#include "hungry.h"

std::string greeting(const std::vector<std::string>& names) {
  std::string out = "hello";
  for (const std::string& name : names) out += " " + name;
  return out;
}
