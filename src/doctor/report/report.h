// SPDX-License-Identifier: Apache-2.0
// What the doctor found, for a person.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "doctor/system/survey.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

struct ReportSection {
  std::string title;
  std::vector<std::pair<std::string, std::string>> rows;  // label, text
};

std::vector<ReportSection> describe(const Survey& survey);
// Of a target that was read from a file.
std::vector<ReportSection> describe(const Environment& environment);

std::string report_text(const std::vector<ReportSection>& sections, const std::vector<Judged>& judged, bool colour);
}  // namespace doctor
