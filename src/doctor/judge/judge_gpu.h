// SPDX-License-Identifier: Apache-2.0
// GPU code against the GPUs and the driver of a target.
#pragma once

#include <vector>

#include "doctor/facts/environment.h"
#include "doctor/facts/facts.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

// Its GPU code against the target's GPUs and driver.
void judge_gpu(const Binary& binary, const BinaryFacts& facts, const Environment& target, std::vector<Verdict>& out);

}  // namespace doctor
