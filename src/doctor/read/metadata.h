// SPDX-License-Identifier: Apache-2.0
// METADATA and WHEEL: headers in the style of mail.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace doctor {

struct Metadata {
  std::vector<std::pair<std::string, std::string>> fields;
  std::string first(std::string_view key) const;  // keys compare without case
  std::vector<std::string> all(std::string_view key) const;
};
Metadata parse_metadata(std::string_view text);

}  // namespace doctor
