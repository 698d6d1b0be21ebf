// SPDX-License-Identifier: Apache-2.0
// Stands in for src/cuda/device/ptx.cuh when a kernel runs on the host: one function per instruction, the same names.
#pragma once

#include <cmath>

#include "core/fp8.h"
#include "core/types.h"
#include "tests/cuda/emulation/cuda_words.h"
#include "tests/cuda/emulation/tensor_core.h"

#define MICA_DEVICE inline

namespace mica {

inline u32 shared_address(const void* pointer) { return emulation::shared_address(pointer); }

inline void cp_async_16(u32 destination, const void* source, i32 source_bytes) {
  emulation::cp_async_16(destination, source, source_bytes);
}
inline void cp_async_16(u32 destination, const void* source) { emulation::cp_async_16(destination, source, 16); }
inline void cp_async_4(u32 destination, const void* source) { emulation::cp_async_4(destination, source); }
inline void cp_async_commit() { emulation::cp_async_commit(); }
template <int pending>
void cp_async_wait() {
  emulation::cp_async_wait(pending);
}

inline void ldmatrix_x4(u32 (&r)[4], u32 address) { emulation::ldmatrix_x4(r, address, false); }
inline void ldmatrix_x4_trans(u32 (&r)[4], u32 address) { emulation::ldmatrix_x4(r, address, true); }
inline u32 transpose_matrix(u32 pair) { return emulation::movmatrix_trans(pair); }

inline void reduce_add_4(float* address, const float (&x)[4]) {
  for (int e = 0; e < 4; ++e) address[e] += x[e];
}
inline i32 load_acquire(const i32* address) { return *address; }
inline void add_release(i32* address, i32 x) { *address += x; }
inline u64 atomic_add(u64* address, u64 x) {
  const u64 before = *address;
  *address += x;
  return before;
}
inline u32 atomic_add(u32* address, u32 x) {
  const u32 before = *address;
  *address += x;
  return before;
}
inline void atomic_max(i32* address, i32 x) { *address = max_of(*address, x); }
inline u64 compare_and_swap(u64* address, u64 expected, u64 x) {
  const u64 before = *address;
  if (before == expected) *address = x;
  return before;
}
inline void load_4_from_l2(float (&x)[4], const float* address) {
  for (int e = 0; e < 4; ++e) x[e] = address[e];
}
inline u64 load_relaxed(const u64* address) { return *address; }
// What the kernel before this one has not written yet: every other block reads something else than is there after it.
inline i32 load_relaxed(const i32* address) { return blockIdx.x % 2 ? *address / 2 : *address; }
inline void store_relaxed(u64* address, u64 x) { *address = x; }

// Only where there is memory.
inline void prefetch_l2(const void* address) {
  static_cast<void>(*static_cast<const volatile unsigned char*>(address));
}
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}
inline void barrier_sync(i32 id, i32 threads) { emulation::meet(id, threads, true); }
inline bool barrier_all(i32 id, i32 threads, bool predicate) { return emulation::meet(id, threads, predicate); }

inline u32 load_shared_4(u32 address) {
  emulation::note_access(address, 4, emulation::Access::kRead);
  return *static_cast<const u32*>(emulation::shared_pointer(address, 4));
}
inline void load_shared_16(u32 (&words)[4], u32 address) {
  for (u32 i = 0; i < 4; ++i) words[i] = load_shared_4(address + i * 4);
}
inline void store_shared_4(u32 address, u32 word) {
  *static_cast<u32*>(emulation::shared_pointer(address, 4)) = word;
  emulation::note_access(address, 4, emulation::Access::kWrite);
}
inline void store_shared_16(u32 address, const u32 (&words)[4]) {
  u32* to = static_cast<u32*>(emulation::shared_pointer(address, 16));
  for (int i = 0; i < 4; ++i) to[i] = words[i];
  emulation::note_access(address, 16, emulation::Access::kWrite);
}

inline i32 round_to_integer(float x) {
  constexpr float kEnd = 2147483648.0f;
  if (std::isnan(x)) return 0;
  return x >= kEnd ? 0x7fffffff : x <= -kEnd ? i32(0x80000000u) : i32(std::nearbyint(x));
}
inline float ex2_approx(float x) {
  const float y = std::exp2(x);
  return y < float_of(0x00800000u) ? 0.0f : y;  // .ftz
}
inline float lg2_approx(float x) { return std::log2(x); }

struct Bf16 {
  static constexpr i32 kDtype = MICA_BF16;
};
struct Fp16 {
  static constexpr i32 kDtype = MICA_FP16;
};
struct E4m3 {
  static constexpr i32 kDtype = MICA_FP8_E4M3;
};
template <class T>
u32 pack(float low, float high) {
  if constexpr (T::kDtype == MICA_BF16)
    return float_to_bf16(low) | u32(float_to_bf16(high)) << 16;
  else
    return float_to_fp16(low) | u32(float_to_fp16(high)) << 16;
}
template <class T>
float2 unpack(u32 pair) {
  if constexpr (T::kDtype == MICA_BF16)
    return {bf16_to_float(u16(pair)), bf16_to_float(u16(pair >> 16))};
  else
    return {fp16_to_float(u16(pair)), fp16_to_float(u16(pair >> 16))};
}

inline u32 byte_perm(u32 low, u32 high, u32 selector) {
  u32 r = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 byte = selector >> (4 * i) & 7;
    r |= ((byte < 4 ? low : high) >> (byte % 4 * 8) & 0xff) << (8 * i);
  }
  return r;
}
template <class T>
void expand_e4m3(u32 (&pairs)[2], u32 four) {
  for (int i = 0; i < 2; ++i)
    pairs[i] = pack<T>(e4m3_to_float(u8(four >> (16 * i))), e4m3_to_float(u8(four >> (16 * i + 8))));
}

template <class T>
void mma_m16n8k16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  emulation::mma_m16n8k16(c, a, b0, b1, T::kDtype == MICA_BF16);
}
inline void mma_m16n8k8_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  emulation::mma_m16n8k8_tf32(c, a, b0, b1);
}

}  // namespace mica
