// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace support {

// A Python package's name as PEP 503 writes it: "Flash_Attn", "flash.attn" and "flash--attn" are "flash-attn".
std::string normalised_package(std::string_view name);

}  // namespace support
