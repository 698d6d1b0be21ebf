// SPDX-License-Identifier: Apache-2.0
// What the front door and the backends agree on: a Plan, and the table of functions a backend is.
#pragma once

#include <cstddef>

#include "core/problem.h"
#include "mica/mica.h"

namespace mica {

struct Backend;

// Two results of the same queries, (batch * rows, heads, dim_v) in o's type and (heads, batch * rows), dense: where
// they lie in a workspace, in bytes.
struct Parts {
  u64 o[2], lse[2];
};

// Fixed size and trivially copyable, so that plans come from a free list and cost no allocation.
struct Plan {
  Problem problem;
  const Backend* backend;
  i32 device;
  i32 pieces;      // mica_pieces
  i32 num_splits;  // at most this many; 1: not split
  u32 bound;       // tensors_of(problem), so that a call looks at no others
  size_t workspace_bytes;
  struct PrefixPlans* with_prefix;               // null: no keys are shared by the batch
  char kernel[64];                               // "cpu/avx512/forward"
  alignas(16) unsigned char backend_data[5376];  // the backend's own choices (tiles, threads, functions)
};

// why_not is "" for a kernel that can run the problem.
using KernelVisitor = void (*)(void* context, const char* kernel, const char* why_not);

struct Backend {
  const char* name;  // "cpu", "cuda"
  size_t workspace_alignment;
  // 0 devices: last_error() says why and what would help.
  i32 (*device_count)();
  // One line about a device, written into text.
  void (*describe_device)(i32 device, char* text, size_t text_bytes);
  // Fills every field of the plan but problem, backend, device and pieces, which are set; in problem's place it may put
  // another one that means the same.
  mica_status (*plan)(Plan& plan);
  // The same for a plan that only joins two results of its queries, and what executes it.
  mica_status (*plan_join)(Plan& plan, const Parts& parts);
  mica_status (*join)(const Plan& plan, const mica_bindings& bindings);
  // Pointers, alignment and workspace are checked by then.
  mica_status (*execute)(const Plan& plan, const mica_bindings& bindings);
  // Visits every kernel in order of preference.
  void (*list_kernels)(const Problem& problem, i32 device, i32 pieces, KernelVisitor visit, void* context);
};

}  // namespace mica
