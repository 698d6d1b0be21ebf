// SPDX-License-Identifier: Apache-2.0
#include "builder/run/failure.h"

#include "doctor/explain/explain.h"
#include "support/text.h"

namespace builder {

using namespace support;

std::string without_own_lines(std::string_view log) {
  std::string out;
  for (const std::string& line : support::split(log, '\n'))
    if (!line.starts_with("mica: ") && line.find("mica build downloads nothing") == line.npos) out += line + "\n";
  return out;
}

std::string error_line(std::string_view log) {
  constexpr const char* kComplaints[] = {
      ": error: ",  "): error: ",  ": fatal error: ",     "nvcc fatal",      "ninja: error: ",
      "nvcc error", "ptxas error", "undefined reference", "ld: cannot find", "internal compiler error",
  };
  const std::string text = without_own_lines(log);
  for (const std::string& line : support::split(text, '\n'))
    for (const char* complaint : kComplaints)
      if (line.find(complaint) != line.npos) return line;
  return doctor::likely_error_line(text);
}

}  // namespace builder
