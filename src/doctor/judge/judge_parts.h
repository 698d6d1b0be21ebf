// SPDX-License-Identifier: Apache-2.0
// All binaries of a package together.
#pragma once

#include <vector>

#include "doctor/facts/environment.h"
#include "doctor/facts/facts.h"
#include "doctor/read/inspect.h"

namespace doctor {

// All that is opened of an inspection, as its package opens it: own libraries first, parts that are optional apart.
void judge_parts(const Inspection& inspection, const std::vector<BinaryFacts>& facts, const Environment& target,
                 std::vector<Verdict>& out);

}  // namespace doctor
