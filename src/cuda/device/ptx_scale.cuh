// SPDX-License-Identifier: Apache-2.0
// Pairs of bf16 times others.
#pragma once

#include "device/ptx.cuh"

namespace mica {

// 9.7.4.4 fma, with -0 to add.
MICA_DEVICE u32 multiply_bf16(u32 pair, u32 by) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(r) : "r"(pair), "r"(by), "r"(0x80008000u));
  return r;
}

}  // namespace mica
