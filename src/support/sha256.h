// SPDX-License-Identifier: Apache-2.0
// SHA-256 as RECORD files write it. (No library of the house has it, and a shipped program takes no TLS library along.)
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace support {

class Sha256 {
 public:
  // By the processor's own instructions where it has them (five times as fast), unless `in_words` of C++ is asked for.
  explicit Sha256(bool in_words = false);
  void update(std::span<const uint8_t> bytes);
  std::array<uint8_t, 32> digest();  // ends it

 private:
  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_ = {};
  uint64_t length_ = 0;
  void (*absorb_)(std::array<uint32_t, 8>& state, const uint8_t* blocks, std::size_t count);
};

// The alphabet of URLs, without padding.
std::string url_base64(std::span<const uint8_t> bytes);

}  // namespace support
