// SPDX-License-Identifier: Apache-2.0
// The failures that `mica explain` knows, as data: what the text says, why, and what to do. Texts may name the
// pattern's captures in braces, {python} and {pip} for the interpreter at hand, and {project} for what was being
// installed.
#pragma once

#include <span>
#include <vector>

#include "doctor/verdict/code.h"

namespace doctor {

// A log ends in symptoms; what explains it is the first cause.
enum class Role {
  kCause,    // stops the build or the import by itself
  kSummary,  // what a package made of a failure that it caught: explains it where the failure itself is not in the text
  kHint,     // a step that went another way than hoped, a warning, a remedy that was tried
  kSymptom,  // follows from something else, which stands above it in the log
};

struct KnownFailure {
  VerdictCode code;
  Role role;
  std::vector<const char*> patterns;  // doctor/pattern.h; any of them
  std::vector<const char*> context;   // one of these must stand in the text too; empty: no matter
  const char* cause;
  const char* fix;
  std::vector<const char*> without = {};  // none of these may stand in the text
};

// Of two that match the same place the earlier row wins.
std::span<const KnownFailure> known_loader_failures();   // ld.so and Python's import
std::span<const KnownFailure> known_install_failures();  // pip, uv, file names, metadata
std::span<const KnownFailure> known_build_failures();    // setup.py, compilers, memory
std::span<const KnownFailure> known_run_failures();      // drivers, GPUs
std::span<const KnownFailure> known_package_failures();  // what packages say of their own compiled parts
std::span<const KnownFailure> known_symptoms();
std::span<const KnownFailure> known_remedies();  // what people try, and what it really does

// All of them, in that order.
std::span<const std::span<const KnownFailure>> all_known_failures();

}  // namespace doctor
