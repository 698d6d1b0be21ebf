// SPDX-License-Identifier: Apache-2.0
// The kernels' parameters: what the description says is filled in when a plan is made, addresses when it is executed.
#pragma once

#include "core/problem.h"
#include "cuda/kernels/params.h"
#include "cuda/registry.h"
#include "mica/mica.h"

namespace mica {

// Where the parts of a plan's workspace begin, in bytes.
struct WorkspaceLayout {
  u64 partial_o, partial_lse;
  u64 row_lse, row_delta, dq_accumulator;
  u64 bytes;
};

ForwardParams forward_params(const Problem& problem, const KernelRow& row, const Splits& splits);
void bind_forward(ForwardParams& params, const Problem& problem, const mica_bindings& bindings,
                  const WorkspaceLayout& layout);

BackwardPrepareParams backward_prepare_params(const Problem& problem, i64 dq_accumulator_count);
void bind_backward_prepare(BackwardPrepareParams& params, const Problem& problem, const mica_bindings& bindings,
                           const WorkspaceLayout& layout);
BackwardParams backward_params(const Problem& problem, const KernelRow& row);
void bind_backward(BackwardParams& params, const Problem& problem, const mica_bindings& bindings,
                   const WorkspaceLayout& layout);
BackwardFinishParams backward_finish_params(const Problem& problem, const KernelRow& row);
void bind_backward_finish(BackwardFinishParams& params, const Problem& problem, const mica_bindings& bindings,
                          const WorkspaceLayout& layout);

}  // namespace mica
