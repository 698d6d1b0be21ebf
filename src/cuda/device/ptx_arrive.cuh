// SPDX-License-Identifier: Apache-2.0
// One instruction beside those of ptx.cuh.
#pragma once

#include "core/types.h"
#include "device/ptx.cuh"

namespace mica {

// 9.7.13.5 atom.acq_rel: adds 1 and returns what was there. What the blocks before this one saw when they arrived, this
// one sees now.
MICA_DEVICE u64 arrive_at(u64* address) {
  u64 before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;\n" : "=l"(before) : "l"(address) : "memory");
  return before;
}

}  // namespace mica
