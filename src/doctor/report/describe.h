// SPDX-License-Identifier: Apache-2.0
// What was found in a file, as text for a person.
#pragma once

#include <string>

#include "doctor/read/inspect.h"

namespace doctor {

// Lists the first binaries and kinds of containers; with `all`, every one.
std::string describe(const Inspection& inspection, bool all);

std::string size_text(uint64_t bytes);  // "244 MiB"

}  // namespace doctor
