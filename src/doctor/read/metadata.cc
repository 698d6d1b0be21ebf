// SPDX-License-Identifier: Apache-2.0
// METADATA and WHEEL: headers in the style of mail, then a body.
#include "doctor/read/metadata.h"

#include "support/text.h"

namespace doctor {

using namespace support;

std::string Metadata::first(std::string_view key) const {
  for (const auto& [name, value] : fields)
    if (lower(name) == lower(key)) return value;
  return "";
}

std::vector<std::string> Metadata::all(std::string_view key) const {
  std::vector<std::string> out;
  for (const auto& [name, value] : fields)
    if (lower(name) == lower(key)) out.push_back(value);
  return out;
}

Metadata parse_metadata(std::string_view text) {
  constexpr std::size_t kMaxFields = 100'000;
  Metadata out;
  for (std::size_t begin = 0; begin < text.size() && out.fields.size() < kMaxFields;) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) break;  // the body follows
    if (line[0] == ' ' || line[0] == '\t') {
      if (!out.fields.empty()) out.fields.back().second += "\n" + std::string(trimmed(line));
      continue;
    }
    const std::size_t colon = line.find(':');
    if (colon == line.npos || colon == 0) continue;
    out.fields.emplace_back(trimmed(line.substr(0, colon)), trimmed(line.substr(colon + 1)));
  }
  return out;
}

}  // namespace doctor
