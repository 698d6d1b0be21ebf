// SPDX-License-Identifier: Apache-2.0
#include "support/version.h"

#include <algorithm>

namespace support {

std::string Version::text() const {
  if (!known()) return "unknown";
  std::string out;
  for (const int part : parts) out += (out.empty() ? "" : ".") + std::to_string(part);
  return out;
}

std::strong_ordering Version::operator<=>(const Version& other) const {
  for (std::size_t i = 0; i < std::max(parts.size(), other.parts.size()); ++i)
    if (part(i) != other.part(i)) return part(i) <=> other.part(i);
  return std::strong_ordering::equal;
}

Version parse_version(std::string_view text) {
  const int most = 100'000'000;
  Version out;
  std::size_t i = 0;
  while (i < text.size() && text[i] >= '0' && text[i] <= '9' && out.parts.size() < 8) {
    int value = 0;
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i)
      value = std::min(value * 10LL + (text[i] - '0'), static_cast<long long>(most));
    out.parts.push_back(value);
    if (i + 1 >= text.size() || text[i] != '.') break;
    ++i;
  }
  return out;
}

std::optional<Version> version_after(std::string_view prefix, std::string_view text) {
  if (!text.starts_with(prefix)) return std::nullopt;
  Version out = parse_version(text.substr(prefix.size()));
  if (!out.known()) return std::nullopt;
  return out;
}

}  // namespace support
