// SPDX-License-Identifier: Apache-2.0
#include "doctor/load/tunables.h"

#include <algorithm>
#include <charconv>

#include "support/text.h"

namespace doctor {

std::optional<uint64_t> tunable(std::string_view variable, std::string_view name) {
  std::optional<uint64_t> out;
  for (const std::string& setting : support::split(variable, ':')) {
    const std::size_t equals = std::min(setting.find('='), setting.size());
    if (std::string_view(setting).substr(0, equals) != name) continue;
    const char *begin = setting.data() + std::min(equals + 1, setting.size()), *end = setting.data() + setting.size();
    const bool is_hex = end - begin > 2 && begin[0] == '0' && (begin[1] == 'x' || begin[1] == 'X');
    uint64_t number = 0;
    const auto [stop, error] = std::from_chars(is_hex ? begin + 2 : begin, end, number, is_hex ? 16 : 10);
    if (error == std::errc() && stop == end) out = number;
  }
  return out;
}

}  // namespace doctor
