// SPDX-License-Identifier: Apache-2.0
// Stands in for src/cuda/device/ptx_scale.cuh when a kernel runs on the host.
#pragma once

#include "device/ptx.cuh"

namespace mica {

inline u32 multiply_bf16(u32 pair, u32 by) {
  const float2 x = unpack<Bf16>(pair), y = unpack<Bf16>(by);
  return pack<Bf16>(x.x * y.x, x.y * y.y);
}

}  // namespace mica
