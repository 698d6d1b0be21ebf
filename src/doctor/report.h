// SPDX-License-Identifier: Apache-2.0
// What the doctor found, for a person and for a program.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "doctor/survey.h"
#include "doctor/verdict.h"

namespace doctor {

// One thing that was judged, in one target.
struct Judged {
  std::string subject;  // a file, or "flash-attn 2.8.3"
  std::string target;   // "/venv/bin/python", "target.json"
  std::vector<Verdict> verdicts;
};

struct ReportSection {
  std::string title;
  std::vector<std::pair<std::string, std::string>> rows;  // label, text
};

std::vector<ReportSection> describe(const Survey& survey);
// Of a target that was read from a file.
std::vector<ReportSection> describe(const Environment& environment);

std::string report_text(const std::vector<ReportSection>& sections, const std::vector<Judged>& judged, bool colour);
// One page that needs no other file.
std::string report_html(const std::string& title, const std::vector<ReportSection>& sections,
                        const std::vector<Judged>& judged);
nlohmann::json as_json(const Survey& survey);
nlohmann::json as_json(const std::vector<Judged>& judged);

std::string format_bytes(uint64_t bytes);  // "1.25 GiB"

}  // namespace doctor
