// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/unpack/lz4.h"

#include <algorithm>

namespace doctor {

// A block is a row of sequences: a token (4 bits of literal count, 4 bits of match length), more length bytes while
// they are 255, the literals, a distance of two bytes, more length bytes. The last sequence ends after its literals.
std::vector<uint8_t> expand_lz4(std::span<const uint8_t> block, std::size_t most) {
  std::vector<uint8_t> out;
  std::size_t at = 0;
  const auto length = [&](std::size_t nibble) {
    std::size_t value = nibble;
    if (nibble != 15) return value;
    while (at < block.size()) {
      const uint8_t more = block[at++];
      value += more;
      if (more != 255) break;
    }
    return value;
  };
  while (at < block.size() && out.size() < most) {
    const uint8_t token = block[at++];
    const std::size_t literals =
        std::min({length(token >> 4), block.size() - std::min(at, block.size()), most - out.size()});
    out.insert(out.end(), block.begin() + std::ptrdiff_t(at), block.begin() + std::ptrdiff_t(at + literals));
    at += literals;
    if (at + 2 > block.size()) break;
    const std::size_t distance = block[at] | block[at + 1] << 8;
    at += 2;
    if (distance == 0 || distance > out.size()) break;
    const std::size_t match = std::min(length(token & 15) + 4, most - out.size());
    for (std::size_t i = 0; i < match; ++i) out.push_back(out[out.size() - distance]);
  }
  return out;
}

}  // namespace doctor
