// SPDX-License-Identifier: Apache-2.0
#include "doctor/verdict/catalogue.h"

namespace doctor {
namespace {

constexpr VerdictKind kCatalogue[] = {
#define MICA_VERDICT(code, severity, title) {Code::code, Severity::k##severity, title},
#include "doctor/verdict/verdicts.def"
#undef MICA_VERDICT
};

}  // namespace

std::span<const VerdictKind> verdict_catalogue() { return kCatalogue; }

const VerdictKind& verdict_kind(VerdictCode code) { return kCatalogue[std::size_t(Code(code))]; }

const VerdictKind* find_verdict_kind(std::string_view code) {
  for (const VerdictKind& kind : verdict_catalogue())
    if (kind.code == code) return &kind;
  return nullptr;
}

std::string verdict_anchor(VerdictCode code) {
  std::string out = "doctor.md#";
  for (const char c : code.name()) out += c == '_' ? '-' : (c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c);
  return out;
}

}  // namespace doctor
