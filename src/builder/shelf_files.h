// SPDX-License-Identifier: Apache-2.0
// The names on a shelf, and what lies there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "builder/records.h"

namespace builder {

// Names of regular files in a folder, sorted; none if the folder is not there.
std::vector<std::string> file_names(const std::string& folder, std::string_view suffix);

std::string provenance_path(const std::string& shelf, const std::string& wheel, const std::string& sha256);
// All that are recorded for a wheel of this name.
std::vector<Provenance> provenances_of(const std::string& shelf, const std::string& wheel);

}  // namespace builder
