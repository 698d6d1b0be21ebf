// SPDX-License-Identifier: Apache-2.0
// The parts that judge() is made of; each appends what it finds.
#pragma once

#include <vector>

#include "doctor/facts.h"
#include "doctor/inspect.h"
#include "doctor/resolve.h"

namespace doctor {

// A wheel against itself: name, WHEEL, METADATA, RECORD and contents.
void judge_wheel(const Wheel& wheel, std::vector<Verdict>& out);
// Its tags and Requires-Python against a target.
void judge_wheel(const Wheel& wheel, const Environment& target, std::vector<Verdict>& out);

// A binary alone.
void judge_binary(const Binary& binary, const BinaryFacts& facts, std::vector<Verdict>& out);
// Its name, and what the loader will do with it; `request.file` is the binary.
void judge_load(const Binary& binary, const BinaryFacts& facts, const LoadRequest& request, const Environment& target,
                std::vector<Verdict>& out);
// Its GPU code against the target's GPUs and driver.
void judge_gpu(const Binary& binary, const BinaryFacts& facts, const Environment& target, std::vector<Verdict>& out);

}  // namespace doctor
