// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper (backward_halves_block_sm90), dQ summed in any order, in a fixed one, or in whole
// numbers.
#pragma once

#include "kernels/parts/backward_halves_block_sm90.cuh"

#ifndef MICA_COURSE
#define MICA_COURSE ONE_TILE
#endif
#ifndef MICA_VARIANT
#define MICA_VARIANT 0
#endif

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, 1)
    MICA_KERNEL_NAME(const __grid_constant__ mica::BackwardMapsParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::BackwardHalvesSm90<MICA_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS,
                                          MICA_STAGES, mica::Course::MICA_COURSE, MICA_SERVED, MICA_VARIANT>;
  Kernel kernel{{{{{params.backward}}}, params}};
  kernel.run(smem);
}
