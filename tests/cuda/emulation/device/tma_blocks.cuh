// SPDX-License-Identifier: Apache-2.0
// Stands in for src/cuda/device/tma_blocks.cuh when a kernel runs on the host.
#pragma once

#include "device/tma.cuh"

namespace mica {

inline void tma_load_blocks(u32 shared, const TensorMap& map, i32 block, i32 head_of_page, u32 barrier) {
  emulation::tma_load(shared, map, {0, 0, 0, block, head_of_page}, barrier);
}

}  // namespace mica
