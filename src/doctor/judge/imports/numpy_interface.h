// SPDX-License-Identifier: Apache-2.0
// NumPy's C interface: a module that was compiled for one that the target's NumPy does not have.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "doctor/facts/environment.h"
#include "doctor/facts/facts.h"
#include "doctor/read/python/import_run.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

struct NumpyVerdict {
  ImportFailure failure;  // kNone: the module's own code decides whether it goes on, which no file tells
  Verdict verdict;
};

// Its own, or that of a library of its package which it needs and which asks for NumPy on behalf of all (pyarrow's
// libarrow_python). `own_library` finds such a library by the name that is needed; null: it is of no package.
NumpyUse numpy_use_of(const Binary& binary, const std::function<const Binary*(const std::string&)>& own_library);

// Of a module that the loader has no complaint about. `use` is its own, or that of a library which does it for the
// module.
std::optional<NumpyVerdict> judge_numpy(const Binary& binary, const BinaryFacts& facts, const NumpyUse& use,
                                        const Environment& target);

}  // namespace doctor
