// SPDX-License-Identifier: Apache-2.0
// What the doctor says: one verdict per finding, with a stable code from a catalogue.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "doctor/verdict/code.h"

namespace doctor {

enum class Severity { kNote, kWarning, kError };  // an error: it will fail

struct Verdict {
  VerdictCode code = Code::NOT_KNOWN;
  Severity severity = Severity::kNote;
  std::string subject;                // the file, package or interpreter that it is about
  std::string message;                // one line; where a program will say something, its own words
  std::string cause;                  // in plain words
  std::string fix;                    // a command where there is one, else what to do
  std::vector<std::string> evidence;  // lines: the symbol, the field, the file that shows it
};

const char* severity_name(Severity severity);  // "error", "warning", "note"

// A verdict without its severity. What it does not have is left out.
struct VerdictParts {
  VerdictCode code;
  std::string subject = {}, message = {}, cause = {}, fix = {};
  std::vector<std::string> evidence = {};
};
// With its code's usual severity.
Verdict make_verdict(VerdictParts parts);

// For a person: "error GLIBC_TOO_OLD  subject: message", then cause, fix and evidence, indented.
std::string verdict_text(const Verdict& verdict, bool colour);

// 1 if any is an error, else 0.
int exit_code_of(std::span<const Verdict> verdicts);

// One thing that was judged, in one target.
struct Judged {
  std::string subject;  // a file, or "flash-attn 2.8.3"
  std::string target;   // "/venv/bin/python", "target.json"
  std::vector<Verdict> verdicts;
};

}  // namespace doctor
