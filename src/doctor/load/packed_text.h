// SPDX-License-Identifier: Apache-2.0
// Long text made short.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace doctor {

// zlib and base64, so that a hundred thousand symbols fit into a file that can be mailed.
std::string packed(std::string_view text);
// Throws ReadError, also if it would become longer than `most` bytes.
std::string unpacked(std::string_view text, std::size_t most);

}  // namespace doctor
