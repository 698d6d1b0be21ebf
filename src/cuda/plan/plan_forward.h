// SPDX-License-Identifier: Apache-2.0
// The steps of forward: append, attention, the join of its splits, probabilities.
#pragma once

#include "cuda/plan/steps.h"

namespace mica {

// Whether the kernel of a row can be dealt out while the one before it ends: it has to wait for that by itself, which
// machine code for Hopper and later does, and a capture has to know how to record it.
bool can_overlap(const KernelChoice& choice, i32 index);

// Fills the steps of a plan whose kernel is row `index`. lse_heads: see heads_as_rows; above 1 combine puts the LSE in
// its place, whether or not it has parts to join.
mica_status plan_forward(Plan& plan, const KernelChoice& choice, i32 index, i32 lse_heads);

}  // namespace mica
