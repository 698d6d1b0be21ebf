// SPDX-License-Identifier: Apache-2.0
// Stands in for src/cuda/device/wgmma_plain.cuh when a kernel runs on the host.
#pragma once

#include "device/wgmma.cuh"

namespace mica {

inline u64 plain_descriptor(u32 address, u32 leading_bytes, u32 stride_bytes) {
  return u64(stride_bytes >> 4) << 32 | u64(leading_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

}  // namespace mica
