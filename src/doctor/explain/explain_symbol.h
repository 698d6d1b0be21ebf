// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "doctor/facts/environment.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

// Says what an undefined C++ symbol tells: the other C++ ABI, or another version of PyTorch. Fills code, cause, fix.
void explain_symbol(const std::string& symbol, const Environment* target, Verdict& verdict);

}  // namespace doctor
