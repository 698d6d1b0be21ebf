// SPDX-License-Identifier: Apache-2.0
// The values of the int32 vectors, which on the CPU are ordinary memory: checked at every execution, before anything is
// written. (Everything that a description alone can tell is checked in api/validate.cc.)
#pragma once

#include "core/problem.h"
#include "core/sequence.h"
#include "mica/mica.h"

namespace mica {

mica_status check_vectors(const Problem& problem, const SequenceTable& table);

}  // namespace mica
