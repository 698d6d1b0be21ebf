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
// The same of an installed package, as far as its installer kept the files.
void judge_recorded(const Wheel& package, std::vector<Verdict>& out);
// Its tags and Requires-Python against a target.
void judge_wheel(const Wheel& wheel, const Environment& target, std::vector<Verdict>& out);

// A binary alone.
void judge_binary(const Binary& binary, const BinaryFacts& facts, std::vector<Verdict>& out);
// Its name, and what the loader will do with it; `request.file` is the binary. Returns what the loader says; nothing if
// Python does not even look at the file.
std::optional<Resolution> judge_load(const Binary& binary, const BinaryFacts& facts, const LoadRequest& request,
                                     const Environment& target, std::vector<Verdict>& out);
// All that is opened of an inspection, as its package opens it: own libraries first, parts that are optional apart.
void judge_parts(const Inspection& inspection, const std::vector<BinaryFacts>& facts, const Environment& target,
                 std::vector<Verdict>& out);
// "libc10.so", "libtorch_cpu.so": libraries that torch itself brings.
bool is_torch_library(std::string_view name);
// Its GPU code against the target's GPUs and driver.
void judge_gpu(const Binary& binary, const BinaryFacts& facts, const Environment& target, std::vector<Verdict>& out);

}  // namespace doctor
