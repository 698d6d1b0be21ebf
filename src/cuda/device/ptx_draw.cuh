// SPDX-License-Identifier: Apache-2.0
// One instruction beside those of ptx.cuh.
#pragma once

#include "core/types.h"
#include "device/ptx.cuh"

namespace mica {

// 9.7.13.5 atom, 10.3 %laneid. By lane 0: adds 1 and returns what was there. An addend that the compiler knows it would
// multiply by the lanes that are there, and share out the answer among them, for which it waits at once.
MICA_DEVICE u64 draw_from(u64* address) {
  u32 lane;
  asm("mov.u32 %0, %%laneid;\n" : "=r"(lane));
  return atomic_add(address, 1 + lane);
}

}  // namespace mica
