// SPDX-License-Identifier: Apache-2.0
// The steps of backward: row statistics, the gradients, what makes dQ of its sums, the gradients of bias and sinks.
#pragma once

#include "cuda/plan/steps.h"

namespace mica {

// Fills the steps of a plan whose kernel is row `index`.
mica_status plan_backward(Plan& plan, const KernelChoice& choice, i32 index);

}  // namespace mica
