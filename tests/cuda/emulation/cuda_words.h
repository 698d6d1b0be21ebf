// SPDX-License-Identifier: Apache-2.0
// The words of CUDA C++ that the kernels use, for a host compiler.
#pragma once

#include <cmath>

#include "tests/cuda/emulation/emulator.h"

#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// All threads of a block run on one host thread.
#define __shared__ thread_local

struct EmulatedIndex {
  unsigned x;
};
inline EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline void __syncthreads() { mica::emulation::sync_threads(); }
inline void __syncwarp() { mica::emulation::sync_warp(); }
inline void __threadfence() {}
inline void __nanosleep(unsigned) { mica::emulation::sleep(); }
inline float __fdividef(float a, float b) { return a / b; }
// Never joined to one operation.
inline float __fmul_rn(float a, float b) {
  const volatile float product = a * b;
  return product;
}
inline float __fadd_rn(float a, float b) { return a + b; }

template <class T>
struct EmulatedShuffle {
  T value, result;
  unsigned from;
};
template <class T>
T emulated_shuffle(const char* what, T value, unsigned from) {
  EmulatedShuffle<T> own = {value, value, from};
  mica::emulation::together(what, &own, [](void* const(&lanes)[32]) {
    for (void* lane : lanes) {
      auto* to = static_cast<EmulatedShuffle<T>*>(lane);
      to->result = static_cast<const EmulatedShuffle<T>*>(lanes[to->from % 32])->value;
    }
  });
  return own.result;
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  return emulated_shuffle("__shfl_xor_sync", value, threadIdx.x % 32 ^ unsigned(distance));
}
template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return emulated_shuffle("__shfl_sync", value, unsigned(from));
}
struct EmulatedVote {
  bool given, any, all;
  unsigned lanes;  // that gave true
};
inline EmulatedVote emulated_vote(bool given) {
  EmulatedVote own = {given, false, true, 0};
  mica::emulation::together("a vote", &own, [](void* const(&lanes)[32]) {
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; ++i) bits |= unsigned(static_cast<EmulatedVote*>(lanes[i])->given) << i;
    for (void* lane : lanes) *static_cast<EmulatedVote*>(lane) = {false, bits != 0, bits == 0xffffffffu, bits};
  });
  return own;
}
inline unsigned __ballot_sync(unsigned, bool given) { return emulated_vote(given).lanes; }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline bool __any_sync(unsigned, bool given) { return emulated_vote(given).any; }
inline bool __all_sync(unsigned, bool given) { return emulated_vote(given).all; }
