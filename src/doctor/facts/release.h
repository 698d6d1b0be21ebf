// SPDX-License-Identifier: Apache-2.0
// Versions of Python packages as PEP 440 reads and orders them: "1.0" is "1.0.0", "2024.01.05" is "2024.1.5", and
// "1.0-rc.1" is "1.0rc1", which comes before "1.0".
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/version.h"

namespace doctor {

enum class Phase { kDevelopment, kAlpha, kBeta, kCandidate, kFinal };

// The order of the fields is that of their weight.
struct PackageRelease {
  int epoch = 0;
  support::Version numbers;
  std::pair<Phase, int> phase = {Phase::kFinal, 0};
  int post = kNoPost, dev = kNoDev;
  std::vector<std::pair<int, std::string>> local;  // of each part its number, or -1 and its letters

  static constexpr int kNoPost = -1, kNoDev = 2'147'483'647;
  auto operator<=>(const PackageRelease&) const = default;
  bool operator==(const PackageRelease&) const = default;
  bool is_before_final() const { return phase.first != Phase::kFinal || dev != kNoDev; }
};

std::optional<PackageRelease> parse_release(std::string_view text);

// A wheel's file has "_" for "-", and older ones for "+".
bool is_same_release(std::string_view a, std::string_view b);

// Is a release within specifiers such as ">=3.9,<3.13,!=3.10.*"? Clauses that cannot be read count as true.
// Pre-releases come before their release: "2.9.0.dev20250801" is not within ">=2.9", nor within "<2.9".
bool satisfies(std::string_view release, std::string_view specifiers);

}  // namespace doctor
