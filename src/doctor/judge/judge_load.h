// SPDX-License-Identifier: Apache-2.0
// A binary as the loader of a target meets it.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "doctor/facts/facts.h"
#include "doctor/load/resolve.h"
#include "doctor/read/python/import_run.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

// Its name, and what the loader will do with it at its place, after `before`. Returns what the loader says; nothing if
// Python does not even look at the file.
std::optional<Resolution> judge_load(const Binary& binary, const BinaryFacts& facts, LoadSession& session,
                                     const PlacedFile& file, const std::vector<PlacedFile>& before,
                                     const Environment& target, std::vector<Verdict>& out);

// What comes of it in Python.
ImportFailure import_failure(const Resolution& said);

// "libc10.so", "libtorch_cpu.so": libraries that torch itself brings.
bool is_torch_library(std::string_view name);
// "libcuda.so.1", "libnvidia-ml.so.1": libraries that come with NVIDIA's driver alone.
bool is_driver_library(std::string_view name);

}  // namespace doctor
