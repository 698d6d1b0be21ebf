// SPDX-License-Identifier: Apache-2.0
// A job in its file.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "builder/slurm/job.h"

namespace builder {

std::string to_json(const Job& job);
Job job_from_json(std::string_view text, const std::string& origin);  // throws std::runtime_error with one line

// What `mica build` wrote; nothing if it makes no sense.
std::optional<JobOutcome> outcome_from_json(std::string_view text);

}  // namespace builder
