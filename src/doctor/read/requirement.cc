// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/requirement.h"

#include <algorithm>

#include "support/text.h"

namespace doctor {

using namespace support;

Requirement parse_requirement(std::string_view text) {
  Requirement out;
  // In a URL a semicolon counts only after a blank; everywhere else it ends the requirement.
  const std::size_t at = text.find('@'), marker = text.find(at < text.find(';') ? " ;" : ";");
  if (marker != text.npos) {
    out.marker = trimmed(text.substr(text.find(';', marker) + 1));
    text = text.substr(0, marker);
  }
  const std::size_t end = std::min(text.find_first_of(" <>=!~[(@"), text.size());
  out.name = trimmed(text.substr(0, end));
  std::string_view rest = trimmed(text.substr(end));
  if (rest.starts_with('[')) {
    const std::size_t close = std::min(rest.find(']'), rest.size());
    out.extras = trimmed(rest.substr(1, close - 1));
    rest = trimmed(rest.substr(std::min(close + 1, rest.size())));
  }
  if (rest.starts_with('@')) {
    out.url = trimmed(rest.substr(1));
    return out;
  }
  std::string range(rest);
  std::erase_if(range, [](char c) { return c == ' ' || c == '\t' || c == '(' || c == ')'; });
  std::vector<std::string> clauses = split(range, ',');
  std::sort(clauses.begin(), clauses.end());
  out.version = joined(clauses, ",");
  return out;
}

}  // namespace doctor
