// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper by the copy engine. A block takes what the row's course says: key tiles
// that it draws, one key tile, or whole heads.
#pragma once

#include "kernels/parts/backward_tma_drawn_sm90.cuh"
#include "kernels/parts/backward_tma_heads_sm90.cuh"
#include "kernels/parts/backward_tma_one_tile_sm90.cuh"

#ifndef MICA_COURSE
#define MICA_COURSE ONE_TILE
#endif

namespace mica {

template <class Element, int dim_qk, int dim_v, int tile_q, int tile_k, int warps, int stages>
struct BackwardTmaSm90<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages, Course::HEADS>
    : BackwardTmaHeads<Element, dim_qk, dim_v, tile_q, tile_k, warps, stages> {};

}  // namespace mica

extern "C" __global__ void __launch_bounds__(32 * MICA_WARPS, 1)
    MICA_KERNEL_NAME(const __grid_constant__ mica::BackwardMapsParams params) {
  extern __shared__ __align__(1024) mica::u8 smem[];
  using Kernel = mica::BackwardTmaSm90<MICA_ELEMENT, MICA_DIM_QK, MICA_DIM_V, MICA_TILE_Q, MICA_TILE_K, MICA_WARPS,
                                       MICA_STAGES, mica::Course::MICA_COURSE>;
  Kernel kernel{{{{{{{params.backward}}}, params}}}};
  kernel.run(smem);
}
