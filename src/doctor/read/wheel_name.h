// SPDX-License-Identifier: Apache-2.0
// The file name of a wheel, taken apart.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace doctor {

struct WheelTag {
  std::string python, abi, platform;  // "cp312", "cp312", "linux_x86_64"
  auto operator<=>(const WheelTag&) const = default;
  std::string text() const { return python + "-" + abi + "-" + platform; }
};

struct WheelName {
  std::string distribution, version, build, python, abi, platform;  // tags as written, '.' between alternatives
  std::vector<WheelTag> tags;                                       // all combinations
};

// "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl", with or without folders before it.
std::optional<WheelName> parse_wheel_name(std::string_view file_name);

}  // namespace doctor
