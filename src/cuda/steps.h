// SPDX-License-Identifier: Apache-2.0
// A plan of this backend: the launches in their order, each with its parameters filled in but for the addresses.
#pragma once

#include <cstring>

#include "base/backend.h"
#include "cuda/arguments.h"
#include "cuda/driver.h"

namespace mica {

// Which parameter struct a step has.
enum class StepKind : i32 { FORWARD, BACKWARD_PREPARE, BACKWARD, BACKWARD_FINISH };

struct Step {
  cu::Function function;
  StepKind kind;
  u32 grid, block, smem_bytes;
  u32 params_offset, params_bytes;
};

// Lives in Plan::backend_data.
struct Steps {
  static constexpr i32 kMaxSteps = 6;
  static constexpr u32 kParamsBytes = 3584;

  WorkspaceLayout layout;
  i32 num_steps;
  u32 params_used;
  Step step[kMaxSteps];
  alignas(16) unsigned char params[kParamsBytes];

  template <class Params>
  void add(StepKind kind, cu::Function function, const KernelRow& row, u32 grid, const Params& filled) {
    static_assert(sizeof(Params) <= kParamsBytes);
    Step& s = step[num_steps++];
    s = Step{function, kind, grid, u32(32 * row.warps), u32(row.smem_bytes), params_used, u32(sizeof filled)};
    std::memcpy(params + params_used, &filled, sizeof filled);
    params_used += u32(round_up<size_t>(sizeof filled, 16));
  }
};
static_assert(sizeof(Steps) <= sizeof(Plan::backend_data) && alignof(Steps) <= 16);

inline Steps& steps_of(Plan& plan) { return *reinterpret_cast<Steps*>(plan.backend_data); }
inline const Steps& steps_of(const Plan& plan) { return *reinterpret_cast<const Steps*>(plan.backend_data); }

}  // namespace mica
