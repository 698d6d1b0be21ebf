// SPDX-License-Identifier: Apache-2.0
// Verdicts and facts as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "doctor/inspect.h"
#include "doctor/verdict.h"

namespace doctor {

// {"code", "severity", "subject", "message", "cause", "fix", "evidence": [..], "doc"}
nlohmann::json as_json(const Verdict& verdict);
nlohmann::json as_json(std::span<const Verdict> verdicts);
nlohmann::json as_json(const Inspection& inspection);

}  // namespace doctor
