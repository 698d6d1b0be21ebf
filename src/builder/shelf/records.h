// SPDX-License-Identifier: Apache-2.0
// What is written down about a wheel: where it comes from (provenance) and where it works (lines of the matrix).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/verdict/verdict.h"

namespace builder {

// One wheel in one environment. Empty means not known.
struct MatrixLine {
  std::string package, version;            // "flash-attn", "2.8.3"
  std::string torch, cuda, python, abi;    // "2.11.0", "13.0", "3.12", "new"
  std::string machine, gpu;                // "x86_64", "NVIDIA H200"
  std::vector<std::string> architectures;  // "9.0", of the code inside
  std::string status;                      // kStatuses
  std::vector<std::string> codes;          // of the verdicts that are not notes
  std::string wheel, sha256, host, time;   // time: UTC, "2026-11-15T07:20:00Z"
  double build_seconds = 0, peak_bytes = 0;
  auto operator<=>(const MatrixLine&) const = default;
};
// From the weakest: it fails; the doctor sees nothing wrong; it was imported; its results were compared with Mica's.
inline constexpr const char* kStatuses[] = {"fails", "judged", "imported", "compared"};

struct Provenance {
  std::string wheel, sha256;
  uint64_t size = 0;
  std::string published_at, published_by;  // "2026-11-15T07:20:00Z", "user@host"
  std::string mica_version;
  std::vector<doctor::Verdict> verdicts;
  std::string build;  // JSON text that `mica build` wrote beside the wheel; empty for a wheel from elsewhere
};

std::string to_json(const Provenance& provenance);
// Throws std::runtime_error with one line, naming `origin`.
Provenance provenance_from_json(std::string_view text, const std::string& origin);

std::string to_json_line(const MatrixLine& line);  // without a line end
MatrixLine matrix_line_from_json(std::string_view text, const std::string& origin);

// The line that a build record describes; nothing if it holds none.
std::optional<MatrixLine> matrix_line_of_build(std::string_view build_json);
// The "sha256" that a build record names; empty if there is none.
std::string sha256_of_build(std::string_view build_json);

std::string utc_time_now();
std::string user_and_host();
std::string host_name();

}  // namespace builder
