// SPDX-License-Identifier: Apache-2.0
// Hopper's copy engine (tensor memory accelerator): one lane asks, boxes of a tensor travel by themselves between
// global and shared memory, and a barrier that counts bytes tells when they have arrived.
#pragma once

#include "cuda/kernels/parts/tensor_map.h"
#include "device/ptx_sm90.cuh"

namespace mica {

// A box's first element in a tensor of the axes (dim, row, head, slot).
struct TmaPlace {
  i32 column, row, head, slot;
};

// 9.7.9.27.1.2 prefetch.tensormap
MICA_DEVICE void tma_prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}

// 9.7.13.15.13 mbarrier.arrive.expect_tx: one arrival; the phase ends when `bytes` more have been copied, too.
MICA_DEVICE void mbarrier_arrive_expecting(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}

// 9.7.9.27.1.1 cp.async.bulk.tensor: a box into shared memory (at 1024 bytes for rows of 128 bytes that are swizzled);
// elements outside the tensor arrive as zeros, and their bytes count. By one lane.
MICA_DEVICE void tma_load(u32 shared, const TensorMap& map, const TmaPlace& place, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3,%4,%5,%6}], "
      "[%2];\n" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(place.column), "r"(place.row), "r"(place.head), "r"(place.slot)
      : "memory");
}
// The same of what the second-level cache should keep (keep_policy).
MICA_DEVICE void tma_load(u32 shared, const TensorMap& map, const TmaPlace& place, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%3,%4,%5,%6}], [%2], %7;\n" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(place.column), "r"(place.row), "r"(place.head), "r"(place.slot), "l"(policy)
      : "memory");
}
// The same from shared memory; elements outside the tensor are not written. What threads wrote there needs
// fence_for_wgmma and a barrier before; bulk_commit and bulk_wait_read after it, before the room is used again.
MICA_DEVICE void tma_store(const TensorMap& map, const TmaPlace& place, u32 shared) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2,%3,%4,%5}], [%1];\n" ::"l"(&map),
               "r"(shared), "r"(place.column), "r"(place.row), "r"(place.head), "r"(place.slot)
               : "memory");
}
// 9.7.9.25.4.1 cp.async.bulk: bytes in a row, a multiple of 16 at addresses that are. By one lane.
MICA_DEVICE void bulk_load(u32 shared, const void* global, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

// 9.7.14.5.16 stmatrix: four 8 x 8 matrices of 16-bit elements; lane l gives the row address l % 8 of matrix l / 8.
MICA_DEVICE void stmatrix_x4(u32 address, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}
MICA_DEVICE void stmatrix_x4_trans(u32 address, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// 9.7.13.1 barrier.cta.arrive: at a named barrier without waiting for it.
MICA_DEVICE void barrier_arrive(i32 id, i32 threads) {
  asm volatile("barrier.cta.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace mica
