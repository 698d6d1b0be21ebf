// SPDX-License-Identifier: Apache-2.0
// The copy engine's requests for blocks of whole rows of a page (kernels/parts/page_blocks_sm90.h).
#pragma once

#include "device/tma.cuh"

namespace mica {

// As tma_load, of a map with five axes: all columns of the page's rows from a block of 8 on.
MICA_DEVICE void tma_load_blocks(u32 shared, const TensorMap& map, i32 block, i32 head_of_page, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3,%3,%3,%4,%5}], "
      "[%2];\n" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(0), "r"(block), "r"(head_of_page)
      : "memory");
}

}  // namespace mica
