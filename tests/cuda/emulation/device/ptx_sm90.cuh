// SPDX-License-Identifier: Apache-2.0
// Stands in for src/cuda/device/ptx_sm90.cuh when a kernel runs on the host.
#pragma once

#include "core/fp8.h"
#include "device/ptx.cuh"
#include "tests/cuda/emulation/warpgroup.h"

namespace mica {

inline void mbarrier_init(u32 address, u32 arrivals) { emulation::mbarrier_init(address, arrivals); }
inline void mbarrier_arrive(u32 address) { emulation::mbarrier_arrive(address); }
inline void mbarrier_wait(u32 address, u32 parity) { emulation::mbarrier_wait(address, parity); }
inline bool mbarrier_is_over(u32 address, u32 parity) { return emulation::mbarrier_is_over(address, parity); }
inline void fence_for_wgmma() { emulation::fence_proxy(); }
inline void fence_for_copies() { emulation::fence_proxy(); }

inline void bulk_store(float* global, u32 shared, u32 bytes) { emulation::bulk_store(global, shared, bytes); }
inline void load_copied(float (&x)[4], const float* address) {
  for (int i = 0; i < 4; ++i) x[i] = address[i];
}
inline void bulk_reduce_add(float* global, u32 shared, u32 bytes) { emulation::bulk_reduce_add(global, shared, bytes); }
inline u64 keep_policy() { return 0; }
inline void bulk_commit() { emulation::bulk_commit(); }
inline void bulk_wait() { emulation::bulk_wait(); }
template <int groups>
void bulk_wait_but() {
  emulation::bulk_wait();
}
template <int groups>
void bulk_wait_read_but() {
  emulation::bulk_wait();
}
inline void bulk_wait_read() { emulation::bulk_wait(); }

inline u32 pack_e4m3(float x0, float x1, float x2, float x3) {
  return float_to_e4m3(x0) | u32(float_to_e4m3(x1)) << 8 | u32(float_to_e4m3(x2)) << 16 | u32(float_to_e4m3(x3)) << 24;
}

inline void store_shared_floats(u32 address, const float (&x)[4]) {
  float* to = static_cast<float*>(emulation::shared_pointer(address, 16));
  for (int i = 0; i < 4; ++i) to[i] = x[i];
  emulation::note_access(address, 16, emulation::Access::kWrite);
}

inline void raise_to(u64* address, u64 x) {
  if (*address < x) *address = x;
}
inline i32 warp_max(i32 x) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const i32 other = __shfl_xor_sync(0xffffffffu, x, distance);
    x = x > other ? x : other;
  }
  return x;
}

inline void wgmma_fence() {}
inline void wgmma_commit() { emulation::wgmma_commit(); }
template <int pending>
void wgmma_wait() {
  emulation::wgmma_wait(pending);
}
template <int n>
void wgmma_hold(float (&)[n][4]) {}

inline void finish_before_wait(float) {}
inline u32 made_anew(u32 x) { return x; }
template <int registers>
void setmaxnreg_dec() {
  emulation::set_registers(registers);
}
template <int registers>
void setmaxnreg_inc() {
  emulation::set_registers(registers);
}

}  // namespace mica
