// SPDX-License-Identifier: Apache-2.0
// The report as one page.
#pragma once

#include <string>
#include <vector>

#include "doctor/report/report.h"

namespace doctor {

// One page that needs no other file.
std::string report_html(const std::string& title, const std::vector<ReportSection>& sections,
                        const std::vector<Judged>& judged);

}  // namespace doctor
