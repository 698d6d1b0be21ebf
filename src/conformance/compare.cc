// SPDX-License-Identifier: Apache-2.0
#include "conformance/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "conformance/tolerance.h"

namespace mica::conformance {
namespace {

// Mismatches of one kind: how many, and the first.
struct Tally {
  int64_t count = 0;
  std::string first;
};

struct Position {
  int64_t at[4];
};

void note(Tally& tally, const Position& p, double got, double want) {
  if (tally.count++) return;
  char text[160];
  std::snprintf(text, sizeof text, "(%lld, %lld, %lld, %lld): got %.9g, want %.9g", (long long)p.at[0],
                (long long)p.at[1], (long long)p.at[2], (long long)p.at[3], got, want);
  tally.first = text;
}

void report(const char* name, const char* what, const Tally& tally, int64_t total, Outcome& outcome) {
  if (tally.count == 0) return;
  char text[320];
  std::snprintf(text, sizeof text, "%s: %s at %lld of %lld elements, first %s", name, what, (long long)tally.count,
                (long long)total, tally.first.c_str());
  add_failure(outcome, text);
}

}  // namespace

void add_failure(Outcome& outcome, const std::string& line) {
  outcome.status = Status::kFailed;
  if (!outcome.message.empty()) outcome.message += "\n";
  outcome.message += line;
}

void compare_untouched(const char* name, const HostTensor& before, const unsigned char* after, Outcome& outcome) {
  for (size_t n = 0; n < before.bytes.size(); ++n)
    if (before.bytes[n] != after[n])
      return add_failure(outcome, std::string(name) + ": byte " + std::to_string(n) + " of " +
                                      std::to_string(before.bytes.size()) + " was changed, want it untouched");
}

void compare(const Tensors& t, Outcome& outcome) {
  const int64_t* shape = t.before.description.shape;
  const int32_t dtype = t.before.description.dtype;
  const size_t bytes = element_bytes(dtype);
  std::vector<bool> covered(t.before.bytes.size() / bytes, false);
  Tally touched, not_written, inexact, wrong_sign, far;
  double error = 0, naive_error = 0, largest = 0;
  bool any_close = false;
  size_t n = 0;
  for (const double value : t.truth.value)
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  for (n = 0; n < t.truth.value.size(); ++n)
    if (t.truth.want[n] == Want::kClose) {
      any_close = true;
      const double difference = std::fabs(t.naive.value[n] - t.truth.value[n]);
      if (difference > naive_error) naive_error = difference;
    }
  const double bound = bound_of(t.tolerance_dtype, {naive_error, largest, t.truth.terms, t.largest_lse});

  n = 0;
  Position p;
  for (p.at[0] = 0; p.at[0] < shape[0]; ++p.at[0])
    for (p.at[1] = 0; p.at[1] < shape[1]; ++p.at[1])
      for (p.at[2] = 0; p.at[2] < shape[2]; ++p.at[2])
        for (p.at[3] = 0; p.at[3] < shape[3]; ++p.at[3], ++n) {
          const int64_t index = t.before.index(p.at[0], p.at[1], p.at[2], p.at[3]);
          const unsigned char* element = t.after + size_t(index) * bytes;
          covered[size_t(index)] = true;
          const double got = load_element(dtype, element), want = t.truth.value[n];
          switch (t.truth.want[n]) {
            case Want::kUntouched:
              if (std::memcmp(element, t.before.address(index), bytes) != 0) note(touched, p, got, want);
              break;
            case Want::kExact:
              if (!(got == want)) note(std::isnan(got) ? not_written : inexact, p, got, want);
              break;
            case Want::kNumber:
              if (std::isnan(got)) note(not_written, p, got, want);
              break;
            case Want::kClose:
              if (std::isnan(got)) {
                note(not_written, p, got, want);
                break;
              }
              error = std::max(error, std::fabs(got - want));
              if (!(std::fabs(got - want) <= bound)) note(far, p, got, want);
              if (t.sign_is_exact && std::fabs(want) > 1e-30 && std::signbit(got) != std::signbit(want))
                note(wrong_sign, p, got, want);
              break;
          }
        }
  const auto total = int64_t(t.truth.value.size());
  report(t.name, "written where it should be left alone", touched, total, outcome);
  report(t.name, "NaN (or not written)", not_written, total, outcome);
  report(t.name, "not exact", inexact, total, outcome);
  report(t.name, "wrong sign (dropout bit)", wrong_sign, total, outcome);
  char what[120];
  std::snprintf(what, sizeof what, "off by up to %.3g, bound %.3g (naive %.3g),", error, bound, naive_error);
  report(t.name, what, far, total, outcome);
  for (size_t index = 0; index < covered.size(); ++index)
    if (!covered[index] && std::memcmp(t.after + index * bytes, &t.before.bytes[index * bytes], bytes) != 0) {
      add_failure(outcome, std::string(t.name) + ": written in the gap at element " + std::to_string(index));
      break;
    }
  if (any_close) outcome.comparisons.push_back({t.name, error, naive_error, bound});
}

}  // namespace mica::conformance
