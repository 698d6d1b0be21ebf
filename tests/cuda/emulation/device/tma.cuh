// SPDX-License-Identifier: Apache-2.0
// Stands in for src/cuda/device/tma.cuh when a kernel runs on the host.
#pragma once

#include "cuda/kernels/parts/tensor_map.h"
#include "device/ptx_sm90.cuh"

namespace mica {

struct TmaPlace {
  i32 column, row, head, slot;
};

inline void tma_prefetch(const TensorMap& map) { emulation::tma_prefetch(map); }
inline void mbarrier_arrive_expecting(u32 barrier, u32 bytes) { emulation::mbarrier_arrive_expecting(barrier, bytes); }
inline void tma_load(u32 shared, const TensorMap& map, const TmaPlace& place, u32 barrier) {
  emulation::tma_load(shared, map, {place.column, place.row, place.head, place.slot}, barrier);
}
inline void tma_load(u32 shared, const TensorMap& map, const TmaPlace& place, u32 barrier, u64) {
  tma_load(shared, map, place, barrier);
}
inline void tma_store(const TensorMap& map, const TmaPlace& place, u32 shared) {
  emulation::tma_store(map, {place.column, place.row, place.head, place.slot}, shared);
}
inline void bulk_load(u32 shared, const void* global, u32 bytes, u32 barrier) {
  emulation::bulk_load(shared, global, bytes, barrier);
}

inline void stmatrix_x4(u32 address, const u32 (&r)[4]) { emulation::stmatrix_x4(address, r, false); }
inline void stmatrix_x4_trans(u32 address, const u32 (&r)[4]) { emulation::stmatrix_x4(address, r, true); }

inline void barrier_arrive(i32 id, i32 threads) { emulation::arrive_named(id, threads); }

}  // namespace mica
