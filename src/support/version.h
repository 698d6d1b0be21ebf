// SPDX-License-Identifier: Apache-2.0
// Version numbers as lists of integers: 2.32, 3.4.30, 580.95.05.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace support {

struct Version {
  std::vector<int> parts;  // empty: not known

  bool known() const { return !parts.empty(); }
  int part(std::size_t index) const { return index < parts.size() ? parts[index] : 0; }
  // NOTE: not major(): older C libraries have a macro of that name.
  int major_part() const { return part(0); }
  int minor_part() const { return part(1); }
  std::string text() const;  // "2.32"; "unknown" if not known

  // Missing parts count as zero: 12 == 12.0.
  std::strong_ordering operator<=>(const Version& other) const;
  bool operator==(const Version& other) const { return (*this <=> other) == 0; }
};

// The digits and dots at the start: "2.8.0+cu128" is 2.8.0. Not known if there are none.
Version parse_version(std::string_view text);

// "GLIBC_2.32" with prefix "GLIBC_" is 2.32; nothing for another prefix or for GLIBC_PRIVATE.
std::optional<Version> version_after(std::string_view prefix, std::string_view text);

}  // namespace support
