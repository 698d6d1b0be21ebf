// SPDX-License-Identifier: Apache-2.0
// Copies between the blocks of a cluster (cluster_sm90.cuh).
#pragma once

#include "device/cluster_sm90.cuh"

namespace mica {

// 9.7.9.25.4.1 cp.async.bulk, from this block's shared memory to that of another one, whose barrier counts the bytes.
MICA_DEVICE void copy_to_block(u32 remote, u32 shared, u32 bytes, u32 remote_barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(remote),
      "r"(shared), "r"(bytes), "r"(remote_barrier)
      : "memory");
}

}  // namespace mica
