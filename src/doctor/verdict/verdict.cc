// SPDX-License-Identifier: Apache-2.0
#include "doctor/verdict/verdict.h"

#include "doctor/verdict/catalogue.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr std::size_t kLongest = 8000;  // of a line

// Lines after the first line up with it.
std::string indented(const std::string& label, const std::string& text) {
  std::string out = "  " + label + std::string(label.size() < 10 ? 10 - label.size() : 1, ' ');
  const std::vector<std::string> lines = split(text, '\n');
  for (std::size_t i = 0; i < lines.size(); ++i)
    out += (i == 0 ? "" : "\n" + std::string(12, ' ')) + printable(lines[i], kLongest);
  return out + "\n";
}

}  // namespace

const char* severity_name(Severity severity) {
  switch (severity) {
    case Severity::kNote: return "note";
    case Severity::kWarning: return "warning";
    case Severity::kError: return "error";
  }
  return "note";
}

Verdict make_verdict(VerdictParts parts) {
  return {.code = parts.code,
          .severity = verdict_kind(parts.code).severity,
          .subject = std::move(parts.subject),
          .message = std::move(parts.message),
          .cause = std::move(parts.cause),
          .fix = std::move(parts.fix),
          .evidence = std::move(parts.evidence)};
}

// Names of files in it are hostile input, and a terminal obeys escape sequences.
std::string verdict_text(const Verdict& verdict, bool colour) {
  const char* paint = verdict.severity == Severity::kError     ? "\033[1;31m"
                      : verdict.severity == Severity::kWarning ? "\033[1;33m"
                                                               : "\033[1;36m";
  std::string out = severity_name(verdict.severity);
  out += " " + verdict.code.text();
  if (colour) out = paint + out + "\033[0m";
  const std::string subject = verdict.subject.empty() ? "" : verdict.subject + ": ";
  out += "  " + printable(subject + verdict.message, kLongest) + "\n";
  if (!verdict.cause.empty()) out += indented("cause", verdict.cause);
  if (!verdict.fix.empty()) out += indented("fix", verdict.fix);
  for (std::size_t i = 0; i < verdict.evidence.size(); ++i)
    out += indented(i == 0 ? "evidence" : "", verdict.evidence[i]);
  return out;
}

int exit_code_of(std::span<const Verdict> verdicts) {
  for (const Verdict& verdict : verdicts)
    if (verdict.severity == Severity::kError) return 1;
  return 0;
}

}  // namespace doctor
