// SPDX-License-Identifier: Apache-2.0
// Stands in for src/cuda/device/cluster_sm90.cuh when a kernel runs on the host.
#pragma once

#include "device/tma.cuh"

namespace mica {

inline u32 block_rank() { return blockIdx.x % 2; }
inline u32 shared_of_block(u32 address, u32 rank) { return emulation::shared_of_block(address, rank); }
inline void mbarrier_arrive_remote(u32 remote) { emulation::mbarrier_arrive_remote(remote); }
inline void mbarrier_tell_remote(u32 remote) { emulation::mbarrier_arrive_remote(remote); }
inline void mbarrier_wait_cluster(u32 address, u32 parity) { emulation::mbarrier_wait(address, parity); }
inline void store_remote(u32 remote, u32 x) { emulation::store_remote(remote, x); }
inline void fence_barriers_for_cluster() {}
inline void cluster_sync() { emulation::sync_cluster(); }
inline void cluster_end() { emulation::sync_cluster(); }
inline void tma_load_multicast(u32 shared, const TensorMap& map, const TmaPlace& place, u32 barrier) {
  emulation::tma_load_multicast(shared, map, {place.column, place.row, place.head, place.slot}, barrier);
}

}  // namespace mica
