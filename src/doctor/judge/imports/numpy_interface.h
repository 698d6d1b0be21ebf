// SPDX-License-Identifier: Apache-2.0
// NumPy's C interface: a module that was compiled for one that the target's NumPy does not have.
#pragma once

#include <optional>

#include "doctor/facts/environment.h"
#include "doctor/facts/facts.h"
#include "doctor/read/python/import_run.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

struct NumpyVerdict {
  ImportFailure failure;  // kNone: the module's own code decides whether it goes on, which no file tells
  Verdict verdict;
};

// Of a module that the loader has no complaint about. `use` is its own, or that of a library which does it for the
// module.
std::optional<NumpyVerdict> judge_numpy(const Binary& binary, const BinaryFacts& facts, const NumpyUse& use,
                                        const Environment& target);

}  // namespace doctor
