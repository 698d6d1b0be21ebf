// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels of backward, filled in as forward's (arguments.h).
#pragma once

#include "cuda/plan/arguments.h"

namespace mica {

// Sums of the workspace that become zero: the first ones, and [others_begin, others_end).
BackwardPrepareParams backward_prepare_params(const Problem& problem, i64 first_zeros, i64 others_begin,
                                              i64 others_end);
void bind(BackwardPrepareParams& params, const Problem& problem, const mica_bindings& bindings,
          const WorkspaceLayout& layout);
BackwardParams backward_params(const Problem& problem, const KernelRow& row);
void bind(BackwardParams& params, const Problem& problem, const mica_bindings& bindings, const WorkspaceLayout& layout);
// The same with maps for the copy engine, for the tiles of a row.
mica_status backward_maps_params(const BackwardParams& backward, const Problem& problem, const KernelRow& row,
                                 BackwardMapsParams& params);
mica_status bind(BackwardMapsParams& params, const Problem& problem, const mica_bindings& bindings,
                 const WorkspaceLayout& layout);

// tile_q: of the backward kernel, whose accumulator it reads.
BackwardFinishParams backward_finish_params(const Problem& problem, const BackwardParams& backward, i32 tile_q);
// The same for the sums of dK and dV, of a row whose blocks share key tiles.
BackwardFinishParams backward_finish_keys_params(const Problem& problem, const BackwardParams& backward,
                                                 const KernelRow& row, i64 key_blocks);
void bind(BackwardFinishParams& params, const Problem& problem, const mica_bindings& bindings,
          const WorkspaceLayout& layout);

BackwardBiasParams backward_bias_params(const BackwardParams& backward, const Problem& problem);
void bind(BackwardBiasParams& params, const Problem& problem, const mica_bindings& bindings,
          const WorkspaceLayout& layout);
BackwardSinksParams backward_sinks_params(const Problem& problem);
void bind(BackwardSinksParams& params, const Problem& problem, const mica_bindings& bindings,
          const WorkspaceLayout& layout);

}  // namespace mica
