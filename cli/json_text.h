// SPDX-License-Identifier: Apache-2.0
// JSON as a verb prints it.
#pragma once

#include <string>

namespace cli {

// With a line end. Bytes that are no UTF-8, which a path may hold, become U+FFFD: what was done is told all the same.
template <class Json>
std::string json_text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace cli
