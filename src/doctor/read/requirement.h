// SPDX-License-Identifier: Apache-2.0
// One line of Requires-Dist (PEP 508), taken apart.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace doctor {

struct Requirement {
  std::string name;     // as written
  std::string extras;   // of "torch[opt]": "opt"
  std::string version;  // specifiers without blanks and brackets, sorted: "<3,>=2.4"; empty: any
  std::string url;      // after '@'; empty: none
  std::string marker;   // after ';'; empty: always
  // One release and no other: "==2.8.0", "===2.8.0".
  bool is_pinned() const { return version.find("==") != version.npos; }
  // Only for those who ask for an extra: "extra == 'test'".
  bool is_optional() const { return marker.find("extra") != marker.npos; }
};

Requirement parse_requirement(std::string_view text);

}  // namespace doctor
