// SPDX-License-Identifier: Apache-2.0
// From where the doctor looks at a system. A test gives it a folder and variables of its own.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "support/files.h"

namespace doctor {

using namespace support;

struct Outlook {
  Files files;
  std::map<std::string, std::string> variables;  // of the environment
  std::string folder = "/";                      // the current one

  std::string variable(const std::string& name) const {
    const auto found = variables.find(name);
    return found == variables.end() ? "" : found->second;
  }
  std::string home() const { return variable("HOME"); }
  // The folders of PATH, in order, without empty and relative ones.
  std::vector<std::string> path() const;
  // Every executable of that name on PATH.
  std::vector<std::string> on_path(const std::string& name) const;
};

// Of this process.
Outlook outlook_here();

}  // namespace doctor
