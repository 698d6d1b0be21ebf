// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace doctor {

// Whether this build has zstd's decoder.
bool has_zstd();

// Expands a zstd frame, or its beginning, to at most `most` bytes. Stops where the input ends or makes no sense, or
// wants more than 16 MB of memory: what came before stands.
std::vector<uint8_t> expand_zstd(std::span<const uint8_t> frame, std::size_t most);

}  // namespace doctor
