// SPDX-License-Identifier: Apache-2.0
// A plan of this backend: the launches in their order, each with its parameters filled in but for the addresses.
#pragma once

#include <cstring>

#include "base/backend.h"
#include "cuda/loader.h"
#include "cuda/plan/arguments.h"

namespace mica {

// Every parameter struct of a kernel that is launched, by the name of the step.
#define MICA_STEP_KINDS(MICA_STEP_KIND)                   \
  MICA_STEP_KIND(APPEND, AppendParams)                    \
  MICA_STEP_KIND(FORWARD, ForwardParams)                  \
  MICA_STEP_KIND(FORWARD_MAPS, ForwardMapsParams)         \
  MICA_STEP_KIND(QV, QvParams)                            \
  MICA_STEP_KIND(QV_MAPS, QvMapsParams)                   \
  MICA_STEP_KIND(COMBINE, CombineParams)                  \
  MICA_STEP_KIND(JOIN, JoinParams)                        \
  MICA_STEP_KIND(PROBS, ProbsParams)                      \
  MICA_STEP_KIND(BACKWARD_PREPARE, BackwardPrepareParams) \
  MICA_STEP_KIND(BACKWARD, BackwardParams)                \
  MICA_STEP_KIND(BACKWARD_MAPS, BackwardMapsParams)       \
  MICA_STEP_KIND(BACKWARD_FINISH, BackwardFinishParams)   \
  MICA_STEP_KIND(BACKWARD_BIAS, BackwardBiasParams)       \
  MICA_STEP_KIND(BACKWARD_SINKS, BackwardSinksParams)

enum class StepKind : i32 {
#define MICA_NAME(kind, params) kind,
  MICA_STEP_KINDS(MICA_NAME)
#undef MICA_NAME
};

// A step may depend on where V lies, which only the addresses tell.
enum class When : i32 { ALWAYS, V_IN_K, V_APART };

struct Step {
  cu::Function function;
  StepKind kind;
  When when;
  bool overlaps;  // may be dealt out before the step before it is done: its kernel waits by itself
  u32 grid, block, smem_bytes;
  u32 least_at_once;  // > 0: its blocks wait for one another, and all of them run at once; so many would do, too
  u32 params_offset, params_bytes;
};

// Lives in Plan::backend_data.
struct Steps {
  static constexpr i32 kMaxSteps = 6;
  static constexpr u32 kParamsBytes = 4608;

  WorkspaceLayout layout;
  bool needs_v_in_k;  // there is no step for V apart
  i32 num_steps;
  u32 params_used;
  Step step[kMaxSteps];
  alignas(16) unsigned char params[kParamsBytes];
};
static_assert(sizeof(Steps) <= sizeof(Plan::backend_data) && alignof(Steps) <= 16);

inline Steps& steps_of(Plan& plan) { return *reinterpret_cast<Steps*>(plan.backend_data); }
inline const Steps& steps_of(const Plan& plan) { return *reinterpret_cast<const Steps*>(plan.backend_data); }

// Loads the kernel of a row and adds its launch: blocks in a row, each of the row's warps.
template <class Params>
mica_status add_step(Plan& plan, StepKind kind, i32 index, i64 blocks, const Params& params) {
  if (blocks > 0x7fffffff)
    return fail(MICA_ERROR_UNSUPPORTED, "the problem makes %lld blocks of work, and a launch takes at most 2^31 - 1",
                blocks);
  const KernelRow& row = kernel_table().rows[index];
  Steps& steps = steps_of(plan);
  if (steps.num_steps >= Steps::kMaxSteps || steps.params_used + sizeof params > Steps::kParamsBytes)
    return fail(MICA_ERROR_INTERNAL, "a plan of %d launches has no room for another one", steps.num_steps);
  Step& step = steps.step[steps.num_steps++];
  step = {.function = nullptr,
          .kind = kind,
          .when = When::ALWAYS,
          .overlaps = false,
          .grid = u32(blocks),
          .block = u32(32 * row.warps),
          .smem_bytes = u32(row.traits.smem_bytes),
          .least_at_once = 0,
          .params_offset = steps.params_used,
          .params_bytes = u32(sizeof params)};
  std::memcpy(steps.params + steps.params_used, &params, sizeof params);
  steps.params_used += u32(round_up<size_t>(sizeof params, 16));
  const i32 most_smem_bytes = max_of(row.traits.smem_bytes, row.traits.roomy_smem_bytes);
  return KernelLoader::instance().load({plan.device, index, row.name, most_smem_bytes}, &step.function);
}

}  // namespace mica
