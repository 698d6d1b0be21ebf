// SPDX-License-Identifier: Apache-2.0
// ld.so.cache: where the loader finds libraries by their names.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "support/bytes.h"

namespace doctor {

using namespace support;

// Entries of this machine's type in an ld.so.cache file; empty, with a problem, if it cannot be read.
std::vector<std::pair<std::string, std::string>> read_loader_cache(ByteSource& source, const std::string& machine,
                                                                   std::vector<std::string>* problems);

}  // namespace doctor
