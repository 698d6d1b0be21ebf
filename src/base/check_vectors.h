// SPDX-License-Identifier: Apache-2.0
// The values of the int32 vectors, read from host memory. The CPU backend checks them at every execution, before
// anything is written; a GPU clamps them, and checks host copies under MICA_CHECK=1. (Everything that a description
// alone can tell is checked in api/validate.cc.)
#pragma once

#include "core/problem.h"
#include "core/sequence.h"
#include "mica/mica.h"

namespace mica {

mica_status check_vectors(const Problem& problem, const SequenceTable& table);

}  // namespace mica
