// SPDX-License-Identifier: Apache-2.0
// Sums of neighbouring pairs in global memory, to which blocks add from registers.
#pragma once

#include "device/ptx.cuh"

namespace mica {

// 9.7.13.7 red: adds two floats.
MICA_DEVICE void reduce_add_pair(float* address, float first, float second) {
  asm volatile("red.global.add.v2.f32 [%0], {%1,%2};\n" ::"l"(address), "f"(first), "f"(second) : "memory");
}
// 9.7.13.7 red: adds two whole numbers as the halves of one, of which the first carries into the second.
MICA_DEVICE void reduce_add_pair(float* address, u32 first, u32 second) {
  asm volatile("red.global.add.u64 [%0], %1;\n" ::"l"(address), "l"(u64(second) << 32 | first) : "memory");
}

}  // namespace mica
