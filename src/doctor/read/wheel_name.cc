// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/wheel_name.h"

#include <algorithm>

#include "support/text.h"

namespace doctor {

using namespace support;

std::optional<WheelName> parse_wheel_name(std::string_view file_name) {
  const std::string name = base_name(file_name);
  // A second download of the same file gets " (1)" into its name, which installers refuse.
  const bool has_blank = name.find_first_of(" \t\n") != name.npos;
  if (!name.ends_with(".whl") || name.size() > 1024 || has_blank) return std::nullopt;
  const std::vector<std::string> parts = split(std::string_view(name).substr(0, name.size() - 4), '-');
  if (parts.size() != 5 && parts.size() != 6) return std::nullopt;
  if (std::any_of(parts.begin(), parts.end(), [](const std::string& part) { return part.empty(); }))
    return std::nullopt;
  // A build number begins with a digit.
  if (parts.size() == 6 && !(parts[2][0] >= '0' && parts[2][0] <= '9')) return std::nullopt;
  WheelName out;
  out.distribution = parts[0];
  out.version = parts[1];
  if (parts.size() == 6) out.build = parts[2];
  out.python = lower(parts[parts.size() - 3]);
  out.abi = lower(parts[parts.size() - 2]);
  out.platform = lower(parts[parts.size() - 1]);
  for (const std::string& python : split(out.python, '.'))
    for (const std::string& abi : split(out.abi, '.'))
      for (const std::string& platform : split(out.platform, '.'))
        if (out.tags.size() < 1000) out.tags.push_back({python, abi, platform});
  return out;
}

}  // namespace doctor
