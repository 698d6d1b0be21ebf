// SPDX-License-Identifier: Apache-2.0
// Verdicts as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "doctor/verdict/verdict.h"

namespace doctor {

// {"code", "severity", "subject", "message", "cause", "fix", "evidence": [..], "doc"}
nlohmann::json as_json(const Verdict& verdict);
nlohmann::json as_json(std::span<const Verdict> verdicts);

}  // namespace doctor
