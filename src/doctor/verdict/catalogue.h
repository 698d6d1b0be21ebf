// SPDX-License-Identifier: Apache-2.0
// Every code that a verdict may have.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "doctor/verdict/verdict.h"

namespace doctor {

struct VerdictKind {
  VerdictCode code;
  Severity severity;  // the usual one
  const char* title;  // heading of its section in docs/user/doctor.md
};

std::span<const VerdictKind> verdict_catalogue();
const VerdictKind& verdict_kind(VerdictCode code);
// By its name; null if no row has it.
const VerdictKind* find_verdict_kind(std::string_view code);
std::string verdict_anchor(VerdictCode code);  // "doctor.md#needed-missing"

}  // namespace doctor
