// SPDX-License-Identifier: Apache-2.0
// Attention to keys that the whole batch shares and to each sequence's own, as one plan: the prefix as one sequence
// whose rows are those of all sequences, so that it is read once; the sequences' own keys; and the join of the two by
// their LSE.
#pragma once

#include "base/backend.h"

namespace mica {

// The plans of the two parts, and where their workspaces begin in that of the whole.
struct PrefixPlans {
  Plan* prefix;
  Plan* own;
  size_t prefix_workspace, own_workspace;
  Parts parts;
};

// The plan's problem, backend and device are set, and the problem has a prefix.
mica_status plan_with_prefix(Plan& plan);
mica_status execute_with_prefix(const Plan& plan, const mica_bindings& bindings);
void release_prefix_plans(Plan& plan);

}  // namespace mica
