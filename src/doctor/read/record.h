// SPDX-License-Identifier: Apache-2.0
// RECORD: the files of a wheel with their hashes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace doctor {

struct RecordRow {
  std::string path, hash;  // hash: "sha256=<urlsafe base64 without padding>", or empty
  std::optional<uint64_t> size;
};
std::vector<RecordRow> parse_record(std::string_view text, std::vector<std::string>* problems);

}  // namespace doctor
