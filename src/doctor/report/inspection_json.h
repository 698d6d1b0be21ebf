// SPDX-License-Identifier: Apache-2.0
// Verdicts and facts as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "doctor/read/inspect.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

nlohmann::json as_json(const Inspection& inspection);

}  // namespace doctor
