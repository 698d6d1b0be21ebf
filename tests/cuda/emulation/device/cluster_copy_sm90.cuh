// SPDX-License-Identifier: Apache-2.0
// Stands in for src/cuda/device/cluster_copy_sm90.cuh when a kernel runs on the host.
#pragma once

#include "device/cluster_sm90.cuh"

namespace mica {

inline void copy_to_block(u32 remote, u32 shared, u32 bytes, u32 remote_barrier) {
  emulation::copy_to_block(remote, shared, bytes, remote_barrier);
}

}  // namespace mica
