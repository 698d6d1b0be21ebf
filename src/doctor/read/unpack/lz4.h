// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace doctor {

// Expands a raw LZ4 block to at most `most` bytes. Stops where the input ends or makes no sense: what came before
// stands.
std::vector<uint8_t> expand_lz4(std::span<const uint8_t> block, std::size_t most);

}  // namespace doctor
