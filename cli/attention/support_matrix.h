// SPDX-License-Identifier: Apache-2.0
// The support matrix: the library is asked, option by option.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace cli {

// [{"option", "values", "forward": "" or why not, "backward": ...}]
nlohmann::json support_matrix_json();
std::string support_matrix_markdown();

}  // namespace cli
