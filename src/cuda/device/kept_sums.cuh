// SPDX-License-Identifier: Apache-2.0
// Sums of many blocks that the second-level cache should keep: bulk_store and bulk_reduce_add under keep_policy.
#pragma once

#include "device/ptx_sm90.cuh"

namespace mica {

MICA_DEVICE void bulk_store_kept(float* global, u32 shared, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;\n" ::"l"(global),
               "r"(shared), "r"(bytes), "l"(keep_policy())
               : "memory");
}
MICA_DEVICE void bulk_reduce_add_kept(float* global, u32 shared, u32 bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 [%0], [%1], %2, %3;\n" ::"l"(global),
      "r"(shared), "r"(bytes), "l"(keep_policy())
      : "memory");
}
// The same of whole numbers.
MICA_DEVICE void bulk_reduce_add_integers_kept(float* global, u32 shared, u32 bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.s32 [%0], [%1], %2, %3;\n" ::"l"(global),
      "r"(shared), "r"(bytes), "l"(keep_policy())
      : "memory");
}

}  // namespace mica
