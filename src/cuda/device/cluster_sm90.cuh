// SPDX-License-Identifier: Apache-2.0
// Clusters of Hopper: two blocks that run at the same time on SMs beside each other and reach each other's shared
// memory.
#pragma once

#include "device/ring_sm90.cuh"
#include "device/tma.cuh"

namespace mica {

// Which of the two this block is.
MICA_DEVICE u32 block_rank() { return blockIdx.x % 2; }
constexpr u16 kBothBlocks = 3;

// 9.7.9.24 mapa: where the block of that rank has what this one has at a shared address.
MICA_DEVICE u32 shared_of_block(u32 address, u32 rank) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
// 9.7.13.15.13 mbarrier.arrive, at a barrier of another block: after what this thread has read, not for what it wrote
// (the scope of the cluster makes that a fence of the whole GPU before each arrival).
MICA_DEVICE void mbarrier_arrive_remote(u32 remote) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(remote) : "memory");
}
// The same, and the other block sees what this thread wrote, if it waits by mbarrier_wait_cluster.
MICA_DEVICE void mbarrier_tell_remote(u32 remote) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];\n" ::"r"(remote) : "memory");
}
// 9.7.13.15.16 mbarrier.try_wait, for what another block's threads wrote before they arrived.
MICA_DEVICE void mbarrier_wait_cluster(u32 address, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1, "
      "%2;\n@!done "
      "bra again;\n}\n" ::"r"(address),
      "r"(parity), "n"(kLongestSleepNs)
      : "memory");
}
// 9.7.9.11 st, into another block's shared memory.
MICA_DEVICE void store_remote(u32 remote, u32 x) {
  asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(remote), "r"(x) : "memory");
}
// 9.7.13.4 fence.mbarrier_init: barriers that this thread made are there for the other blocks.
MICA_DEVICE void fence_barriers_for_cluster() { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }
// 9.7.13.3 barrier.cluster: all threads of all blocks that have not ended.
MICA_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
}
// The same before a block ends: nobody reads what others wrote.
MICA_DEVICE void cluster_end() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
}
// 9.7.9.27.1.1 cp.async.bulk.tensor, into the same place of both blocks, of which each has its own barrier, at the same
// place, count the bytes.
MICA_DEVICE void tma_load_multicast(u32 shared, const TensorMap& map, const TmaPlace& place, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
      "{%3,%4,%5,%6}], [%2], %7;\n" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(place.column), "r"(place.row), "r"(place.head), "r"(place.slot), "h"(kBothBlocks)
      : "memory");
}

}  // namespace mica
