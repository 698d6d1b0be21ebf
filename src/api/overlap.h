// SPDX-License-Identifier: Apache-2.0
// What a call writes has memory of its own.
#pragma once

#include "base/pointers.h"

namespace mica {

// Refuses results that lie over anything else, but for o in q's very place, and caches that new keys are moved within
// or that are written over each other. Slices of one packed tensor lie side by side and are taken.
mica_status check_overlaps(const Problem& problem, const mica_bindings& bindings, TensorSet bound);

}  // namespace mica
