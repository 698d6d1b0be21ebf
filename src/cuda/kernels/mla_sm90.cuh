// SPDX-License-Identifier: Apache-2.0
// Attention with V in K (mla_block_sm90), keys fetched by cp.async, whatever their strides.
#pragma once

#include "kernels/parts/mla_block_sm90.cuh"

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, 1)
    MICA_KERNEL_NAME(const __grid_constant__ mica::ForwardParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::MlaSm90<MICA_ELEMENT, mica::ForwardParams, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K,
                               MICA_WARPS, MICA_STAGES, MICA_SERVED>;
  Kernel kernel(params);
  mica::griddepcontrol_launch_dependents();
  kernel.run(smem);
}
