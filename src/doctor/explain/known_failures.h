// SPDX-License-Identifier: Apache-2.0
// The failures that `mica explain` knows, as data: what the text says, why, and what to do. Texts may name the
// pattern's captures in braces, and {python} and {pip} for the interpreter at hand.
#pragma once

#include <span>
#include <vector>

namespace doctor {

// A log ends in symptoms; what explains it is the first cause.
enum class Role {
  kCause,    // stops the build or the import by itself
  kHint,     // a step that went another way than hoped, a warning: explains only if there is no cause
  kSymptom,  // follows from something else, which stands above it in the log
};

struct KnownFailure {
  const char* code;  // of the verdict catalogue
  Role role;
  std::vector<const char*> patterns;  // doctor/pattern.h; any of them
  std::vector<const char*> context;   // one of these must stand in the text too; empty: no matter
  const char* cause;
  const char* fix;
};

// Of two that match the same place the earlier row wins.
std::span<const KnownFailure> known_loader_failures();   // ld.so and Python's import
std::span<const KnownFailure> known_install_failures();  // pip, uv, file names, metadata
std::span<const KnownFailure> known_build_failures();    // setup.py, compilers, memory
std::span<const KnownFailure> known_run_failures();      // drivers, GPUs, other packages' complaints
std::span<const KnownFailure> known_symptoms();

}  // namespace doctor
