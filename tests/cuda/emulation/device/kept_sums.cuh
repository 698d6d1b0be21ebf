// SPDX-License-Identifier: Apache-2.0
// Stands in for src/cuda/device/kept_sums.cuh when a kernel runs on the host.
#pragma once

#include "device/ptx_sm90.cuh"

namespace mica {

inline void bulk_store_kept(float* global, u32 shared, u32 bytes) { bulk_store(global, shared, bytes); }
inline void bulk_reduce_add_kept(float* global, u32 shared, u32 bytes) { bulk_reduce_add(global, shared, bytes); }
inline void bulk_reduce_add_integers_kept(float* global, u32 shared, u32 bytes) {
  emulation::bulk_reduce_add_integers(global, shared, bytes);
}

}  // namespace mica
