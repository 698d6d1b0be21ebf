// SPDX-License-Identifier: Apache-2.0
// From a description to a plan: which backend, which kernel, and why not the others.
#pragma once

#include "base/backend.h"

namespace mica {

// nullptr, with a message, for a number that is no backend.
const Backend* find_backend(i32 backend);

mica_status make_plan(const mica_attention& attention, mica_pass pass, Plan& plan);

mica_status list_kernels(const mica_attention& attention, mica_pass pass, KernelVisitor visit, void* context);

// Plans come from a free list: a decode loop that makes one per step does not allocate. Null: no memory.
Plan* acquire_plan();
void release_plan(Plan* plan);

}  // namespace mica
