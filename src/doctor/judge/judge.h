// SPDX-License-Identifier: Apache-2.0
// From facts to verdicts.
#pragma once

#include <vector>

#include "doctor/facts/environment.h"
#include "doctor/read/inspect.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

// Of the file alone: does it agree with itself, and with what it claims.
std::vector<Verdict> judge(const Inspection& inspection);
// In a target: everything above and the pair. A file without errors gets a LOADS note.
std::vector<Verdict> judge(const Inspection& inspection, const Environment& target);

// What does not stop an import is a warning: tags that the binaries do not keep, RECORD, symbols beyond the stable ABI.
void keep_to_the_import(std::vector<Verdict>& verdicts);

}  // namespace doctor
