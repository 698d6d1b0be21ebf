// SPDX-License-Identifier: Apache-2.0
// The report for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "doctor/system/survey.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

nlohmann::json as_json(const Survey& survey);
nlohmann::json as_json(const std::vector<Judged>& judged);
// The tables that age, with their days, sources and refresh commands.
nlohmann::json tables_json();

}  // namespace doctor
