// SPDX-License-Identifier: Apache-2.0
// Text for people: aligned tables and numbers with units.
#pragma once

#include <string>
#include <vector>

namespace cli {

class Table {
 public:
  // A header that begins with '>' is a column aligned to the right.
  explicit Table(std::vector<std::string> headers);
  void add(std::vector<std::string> cells);
  std::string text() const;
  std::string markdown() const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the first is the header
  std::vector<bool> right_;
};

// printf into a string.
std::string format(const char* format, ...) __attribute__((format(printf, 1, 2)));

std::string format_bytes(double bytes);      // "1.25 GiB"
std::string format_seconds(double seconds);  // "3.21 ms"

}  // namespace cli
