// SPDX-License-Identifier: Apache-2.0
// What a call writes has memory of its own.
#pragma once

#include "core/problem.h"
#include "mica/mica.h"

namespace mica {

inline bool is_empty(const Tensor& t) {
  return t.shape[0] == 0 || t.shape[1] == 0 || t.shape[2] == 0 || t.shape[3] == 0;
}

// Refuses results that lie over anything else, but for o in q's very place, and caches that new keys are moved within
// or that are written over each other. Slices of one packed tensor lie side by side and are taken.
mica_status check_overlaps(const Problem& problem, const mica_bindings& bindings);

}  // namespace mica
