// SPDX-License-Identifier: Apache-2.0
// Stands in for src/cuda/device/ptx_sm90.cuh when a kernel runs on the host.
#pragma once

#include "device/ptx.cuh"
#include "tests/cuda/emulation/warpgroup.h"

namespace mica {

inline void mbarrier_init(u32 address, u32 arrivals) { emulation::mbarrier_init(address, arrivals); }
inline void mbarrier_arrive(u32 address) { emulation::mbarrier_arrive(address); }
inline void mbarrier_wait(u32 address, u32 parity) { emulation::mbarrier_wait(address, parity); }
inline bool mbarrier_is_over(u32 address, u32 parity) { return emulation::mbarrier_is_over(address, parity); }
inline void fence_for_wgmma() {}

inline void wgmma_fence() {}
inline void wgmma_commit() { emulation::wgmma_commit(); }
template <int pending, int site = 0>
void wgmma_wait() {
  emulation::wgmma_wait(pending);
}
template <int n>
void wgmma_hold(float (&)[n][4]) {}

template <int registers>
void give_up_registers() {}
template <int registers>
void take_registers() {}

}  // namespace mica
