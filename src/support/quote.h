// SPDX-License-Identifier: Apache-2.0
// Words of a command that a person, or a job's shell, shall read as they are.
#pragma once

#include <string>
#include <string_view>

namespace support {

// For a POSIX shell: as it is where that is safe, else in single quotes.
inline std::string shell_quoted(std::string_view word) {
  constexpr std::string_view kSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(kSafe) == word.npos) return std::string(word);
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace support
