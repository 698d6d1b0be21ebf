// SPDX-License-Identifier: Apache-2.0
// Stands in for src/cuda/device/ptx_draw.cuh when a kernel runs on the host.
#pragma once

#include "device/ptx.cuh"

namespace mica {

inline u64 draw_from(u64* address) { return (*address)++; }

}  // namespace mica
