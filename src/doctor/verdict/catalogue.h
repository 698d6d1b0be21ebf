// SPDX-License-Identifier: Apache-2.0
// Every code that a verdict may have.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "doctor/verdict/verdict.h"

namespace doctor {

struct VerdictKind {
  const char* code;
  Severity severity;  // the usual one
  const char* title;  // heading of its section in docs/user/doctor.md
};

std::span<const VerdictKind> verdict_catalogue();
const VerdictKind* find_verdict_kind(std::string_view code);
std::string verdict_anchor(std::string_view code);  // "doctor.md#needed-missing"

}  // namespace doctor
