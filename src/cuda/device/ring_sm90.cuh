// SPDX-License-Identifier: Apache-2.0
// A ring of stages in shared memory: some threads fill them, others use them and let them go. Each stage has two
// barriers, one for full and one for empty; step i uses stage i % stages for the (i / stages)-th time. Where the number
// of stages is no power of two, a loop keeps its place and counts it on: a division a step costs as much as a
// product's descriptors.
#pragma once

#include "device/ptx_sm90.cuh"

namespace mica {

// This thread's warp, by a shuffle, so that the compiler knows it to be the same in all lanes: what is made of it stays
// in uniform registers, where wgmma wants its descriptors.
MICA_DEVICE i32 uniform_warp() { return __shfl_sync(0xffffffffu, i32(threadIdx.x) / 32, 0); }

// One arrival for the whole warp.
MICA_DEVICE void arrive_as_warp(u32 barrier) {
  if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

template <int stages>
struct RingPlace {
  i32 stage = 0;
  u32 parity = 0;  // of the phase that the stage is in

  static MICA_DEVICE RingPlace of_step(i32 step) { return {step % stages, u32(step / stages % 2)}; }
  MICA_DEVICE void next() {
    const bool wraps = stage == stages - 1;
    stage = wraps ? 0 : stage + 1;
    parity ^= u32(wraps);
  }
};

template <int stages>
struct Ring {
  using Place = RingPlace<stages>;
  static constexpr u32 kBytes = 2 * stages * 8;
  u32 barriers;  // the shared address

  MICA_DEVICE u32 full(i32 stage) const { return barriers + stage * 8; }
  MICA_DEVICE u32 empty(i32 stage) const { return full(stage) + stages * 8; }

  // By one thread. fills, releases: how many arrivals make a stage full, or empty.
  MICA_DEVICE void init(u32 fills, u32 releases) const {
    for (i32 stage = 0; stage < stages; ++stage) {
      mbarrier_init(full(stage), fills);
      mbarrier_init(empty(stage), releases);
    }
  }
  MICA_DEVICE void wait_full(Place place) const { mbarrier_wait(full(place.stage), place.parity); }
  MICA_DEVICE void wait_empty(Place place) const { mbarrier_wait(empty(place.stage), place.parity ^ 1); }
  // By a warp whose reads wgmma made; by each thread that has read the stage itself (compute-sanitizer's racecheck
  // knows no other way).
  MICA_DEVICE void release(Place place) const { arrive_as_warp(empty(place.stage)); }
  MICA_DEVICE void release_by_thread(Place place) const { mbarrier_arrive(empty(place.stage)); }
};

}  // namespace mica
