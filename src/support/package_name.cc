// SPDX-License-Identifier: Apache-2.0
#include "support/package_name.h"

#include "support/text.h"

namespace support {

std::string normalised_package(std::string_view name) {
  std::string out;
  for (const char c : lower(name)) {
    const bool is_separator = c == '-' || c == '_' || c == '.';
    if (!is_separator)
      out += c;
    else if (!out.ends_with('-'))
      out += '-';
  }
  return out;
}

}  // namespace support
