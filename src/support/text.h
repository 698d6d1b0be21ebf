// SPDX-License-Identifier: Apache-2.0
// Small things with text that several readers need.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace support {

// For a terminal: control characters and bytes that are no UTF-8 become \xNN; at most `most` bytes, then "...".
std::string printable(std::string_view text, std::size_t most = 300);

std::string lower(std::string_view text);
std::string_view trimmed(std::string_view text);
std::vector<std::string> split(std::string_view text, char separator);
std::string joined(const std::vector<std::string>& parts, std::string_view separator);

// Last part of a path.
std::string base_name(std::string_view path);
std::string folder_name(std::string_view path);  // "" if there is none

// "1 container", "3 containers".
std::string counted(std::size_t count, std::string_view noun);

std::string format_bytes(uint64_t bytes);  // "1.25 GiB"

}  // namespace support
