// SPDX-License-Identifier: Apache-2.0
// Stands in for src/cuda/device/wgmma_registers.cuh when a kernel runs on the host.
#pragma once

#include "device/wgmma.cuh"

namespace mica {

template <class Element>
struct WgmmaOfRegisters {
  static void add(float (&c)[8][4], const u32 (&a)[4], u64 b, i32 accumulate) {
    Wgmma<Element, 64>::add_registers(c, a, b, accumulate);
  }
};

}  // namespace mica
