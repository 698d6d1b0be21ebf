// SPDX-License-Identifier: Apache-2.0
#include "doctor/facts/release.h"

#include <algorithm>
#include <utility>

#include "doctor/facts/tags.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

bool is_decimal(char c) { return c >= '0' && c <= '9'; }
bool is_release_separator(char c) { return c == '.' || c == '-' || c == '_'; }

class PackageReleaseReader {
 public:
  explicit PackageReleaseReader(std::string_view text) : rest_(text) {}

  std::optional<PackageRelease> read() {
    PackageRelease out;
    if (rest_.starts_with('v')) rest_.remove_prefix(1);
    if (!has_digit(0)) return std::nullopt;
    out.numbers.parts.push_back(number());
    if (rest_.starts_with('!') && has_digit(1)) {
      rest_.remove_prefix(1);
      out.epoch = std::exchange(out.numbers.parts[0], number());
    }
    while (rest_.starts_with('.') && has_digit(1)) {
      rest_.remove_prefix(1);
      out.numbers.parts.push_back(number());
    }
    constexpr std::pair<std::string_view, Phase> kPhases[] = {
        {"alpha", Phase::kAlpha},  {"a", Phase::kAlpha},           {"beta", Phase::kBeta},
        {"b", Phase::kBeta},       {"preview", Phase::kCandidate}, {"pre", Phase::kCandidate},
        {"rc", Phase::kCandidate}, {"c", Phase::kCandidate}};
    for (const auto& [word, phase] : kPhases)
      if (const auto count = part(word)) {
        out.phase = {phase, *count};
        break;
      }
    // "1.0-1" is "1.0.post1".
    const bool is_bare = (rest_.starts_with('-') || rest_.starts_with('_')) && has_digit(1);
    for (const std::string_view word : {is_bare ? "" : "post", "rev", "r"})
      if (const auto count = part(word)) {
        out.post = *count;
        break;
      }
    if (const auto count = part("dev")) {
      out.dev = *count;
      if (out.phase.first == Phase::kFinal && out.post == PackageRelease::kNoPost)
        out.phase.first = Phase::kDevelopment;
    }
    if (rest_.starts_with('+') && !read_local(out)) return std::nullopt;
    return rest_.empty() ? std::optional(out) : std::nullopt;
  }

 private:
  bool has_digit(std::size_t at) const { return at < rest_.size() && is_decimal(rest_[at]); }

  int number() {
    int64_t value = 0;
    for (; has_digit(0); rest_.remove_prefix(1))
      value = std::min<int64_t>(value * 10 + (rest_[0] - '0'), PackageRelease::kNoDev - 1);
    return int(value);
  }

  // "rc1", ".rc.1", "-rc": a word, and a number that may be missing.
  std::optional<int> part(std::string_view word) {
    std::string_view rest = rest_;
    if (!rest.empty() && is_release_separator(rest[0])) rest.remove_prefix(1);
    if (!rest.starts_with(word)) return std::nullopt;
    rest_ = rest.substr(word.size());
    if (!rest_.empty() && is_release_separator(rest_[0]) && has_digit(1)) rest_.remove_prefix(1);
    return number();
  }

  bool read_local(PackageRelease& out) {
    do {
      rest_.remove_prefix(1);
      const std::size_t end = std::min(rest_.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789"), rest_.size());
      const std::string_view piece = rest_.substr(0, end);
      if (piece.empty()) return false;
      if (std::all_of(piece.begin(), piece.end(), is_decimal)) {
        out.local.emplace_back(number(), "");
      } else {
        out.local.emplace_back(-1, piece);
        rest_.remove_prefix(end);
      }
    } while (!rest_.empty() && is_release_separator(rest_[0]));
    return true;
  }

  std::string_view rest_;
};

// Without what stands behind "+".
PackageRelease public_part(PackageRelease release) {
  release.local.clear();
  return release;
}

bool has_same_head(const PackageRelease& release, const PackageRelease& head, std::size_t count) {
  bool out = release.epoch == head.epoch;
  for (std::size_t i = 0; i < count; ++i) out = out && release.numbers.part(i) == head.numbers.part(i);
  return out;
}

bool is_within(const PackageRelease& here, std::string_view operation, const PackageRelease& wanted, bool any_tail) {
  const PackageRelease release = public_part(here);
  const std::size_t parts = wanted.numbers.parts.size();
  const bool is_of_its_number = here.epoch == wanted.epoch && here.numbers == wanted.numbers;
  const bool is_that_one =
      any_tail ? has_same_head(here, wanted, parts) : (wanted.local.empty() ? release : here) == wanted;
  if (operation == "==") return is_that_one;
  if (operation == "!=") return !is_that_one;
  if (operation == ">=") return release >= wanted;
  if (operation == "<=") return release <= wanted;
  if (operation == "~=") return release >= wanted && has_same_head(here, wanted, parts - 1);
  if (operation == "<")
    return release < wanted && (wanted.is_before_final() || !here.is_before_final() || !is_of_its_number);
  if (operation == ">")
    return release > wanted &&
           (wanted.post != PackageRelease::kNoPost || here.post == PackageRelease::kNoPost || !is_of_its_number);
  return true;
}

}  // namespace

std::optional<PackageRelease> parse_release(std::string_view text) {
  const std::string small = lower(trimmed(text));
  return PackageReleaseReader(small).read();
}

bool is_same_release(std::string_view a, std::string_view b) {
  if (normal_version(a) == normal_version(b)) return true;
  const auto first = parse_release(a), second = parse_release(b);
  return first && second && *first == *second;
}

bool satisfies(std::string_view release, std::string_view specifiers) {
  const PackageRelease here = parse_release(release).value_or(PackageRelease{.numbers = parse_version(release)});
  for (const std::string& clause : split(specifiers, ',')) {
    const std::string_view text = trimmed(clause);
    const std::size_t end = std::min(text.find_first_not_of("<>=!~"), text.size());
    const std::string_view operation = text.substr(0, end);
    std::string_view number = trimmed(text.substr(end));
    if (operation == "===" && lower(number) != lower(release)) return false;
    const bool any_tail = number.ends_with(".*");
    if (any_tail) number.remove_suffix(2);
    const auto wanted = parse_release(number);
    if (wanted && !is_within(here, operation, *wanted, any_tail)) return false;
  }
  return true;
}

}  // namespace doctor
