// SPDX-License-Identifier: Apache-2.0
// The instructions of Hopper (sm_90a) beside those of ptx.cuh; wgmma itself is in wgmma.cuh.
#pragma once

#include "device/ptx.cuh"

namespace mica {

// 9.7.13.15.9 mbarrier.init: a barrier in shared memory whose phase ends with `arrivals` arrivals.
MICA_DEVICE void mbarrier_init(u32 address, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(address), "r"(arrivals) : "memory");
}
// 9.7.13.15.13 mbarrier.arrive
MICA_DEVICE void mbarrier_arrive(u32 address) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(address) : "memory");
}
// 9.7.13.15.16 mbarrier.try_wait: until the phase of this parity is over. The first phase has parity 0; the one before
// it counts as over. A warp that waits sleeps until then, at most so long at a time: without the hint it asks every 70
// cycles, in the queue that wgmma and the copies go through.
inline constexpr u32 kLongestSleepNs = 10'000'000;
MICA_DEVICE void mbarrier_wait(u32 address, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n@!done bra "
      "again;\n}\n" ::"r"(address),
      "r"(parity), "n"(kLongestSleepNs)
      : "memory");
}
// The same without waiting.
MICA_DEVICE bool mbarrier_is_over(u32 address, u32 parity) {
  u32 over;
  asm volatile(
      "{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}\n"
      : "=r"(over)
      : "r"(address), "r"(parity)
      : "memory");
  return over;
}

// 9.7.13.4 fence.proxy: what this thread wrote to shared memory becomes visible to wgmma.
MICA_DEVICE void fence_for_wgmma() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }
// The same of global memory and the copy engine: what was written there before, as far as this thread has seen it.
MICA_DEVICE void fence_for_copies() { asm volatile("fence.proxy.async.global;\n" ::: "memory"); }

// 9.7.9.25.4.1 cp.async.bulk: shared memory to global memory; bytes: a multiple of 16.
MICA_DEVICE void bulk_store(float* global, u32 shared, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(global), "r"(shared), "r"(bytes)
               : "memory");
}
// 9.7.9.8 ld.cg: 16 bytes as the copy engine wrote them, past the caches of the SM.
MICA_DEVICE void load_copied(float (&x)[4], const float* address) {
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];\n"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "l"(address)
               : "memory");
}
// 9.7.9.25.4.2 cp.reduce.async.bulk: adds floats of shared memory to as many in global memory; bytes: a multiple of 16.
MICA_DEVICE void bulk_reduce_add(float* global, u32 shared, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n" ::"l"(global),
               "r"(shared), "r"(bytes)
               : "memory");
}
// 9.7.9.19 createpolicy: what is read under it is the last to leave the second-level cache.
MICA_DEVICE u64 keep_policy() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}
// 9.7.9.25.3.2 cp.async.bulk.commit_group
MICA_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
// 9.7.9.25.3.3 cp.async.bulk.wait_group: until this thread's copies are done; .read: until they have read their source.
MICA_DEVICE void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory"); }
// But for the groups that were committed last.
template <int groups>
MICA_DEVICE void bulk_wait_but() {
  asm volatile("cp.async.bulk.wait_group %0;\n" ::"n"(groups) : "memory");
}
template <int groups>
MICA_DEVICE void bulk_wait_read_but() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(groups) : "memory");
}
MICA_DEVICE void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory"); }
// 9.7.13.7 red: at least x from now on.
MICA_DEVICE void raise_to(u64* address, u64 x) {
  asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;\n" ::"l"(address), "l"(x) : "memory");
}

// 9.7.13.10 redux.sync: the largest of the warp's lanes, in a uniform register: the compiler knows that branches on it
// do not divide the warp, and keeps what follows from it, wgmma's descriptors above all, in uniform registers.
MICA_DEVICE i32 warp_max(i32 x) {
  i32 largest;
  asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;\n" : "=r"(largest) : "r"(x));
  return largest;
}

// 9.7.9.22 cvt: four floats to e4m3, the first in the lowest byte; what is too large becomes the largest.
MICA_DEVICE u32 pack_e4m3(float x0, float x1, float x2, float x3) {
  u32 r;
  asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}\n"
      : "=r"(r)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return r;
}

// 9.7.9.11 st: 16 bytes of floats.
MICA_DEVICE void store_shared_floats(u32 address, const float (&x)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"r"(address), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}

// 9.7.15.7.1 wgmma.fence: before the first wgmma, and after registers that it takes were changed.
MICA_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
// 9.7.15.7.2 wgmma.commit_group
MICA_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
// 9.7.15.7.3 wgmma.wait_group: until at most `pending` groups are under way.
template <int pending>
MICA_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(pending) : "memory");
}
// Accumulators that wgmma writes behind the compiler's back: not to be moved across this.
template <int n>
MICA_DEVICE void wgmma_hold(float (&fragment)[n][4]) {
#pragma unroll
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(fragment[i][e]));
}

// What x, which is not negative, was made of is done before the next wait: the assembler moves a wait up to the start
// of its basic block, and this branch, never taken, ends one. 9.7.19.1 nanosleep
MICA_DEVICE void finish_before_wait(float x) {
  asm volatile("{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p nanosleep.u32 20;\n}\n" ::"f"(x) : "memory");
}

// x, but what is made of it is made here: the compiler would keep every descriptor that a loop does not change in
// registers of its own.
MICA_DEVICE u32 made_anew(u32 x) {
  asm volatile("" : "+r"(x));
  return x;
}

// 9.7.19.5 setmaxnreg: a warpgroup gives registers up, or takes them.
template <int registers>
MICA_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(registers));
}
template <int registers>
MICA_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(registers));
}

}  // namespace mica
