// SPDX-License-Identifier: Apache-2.0
// Stands in for src/cuda/device/ptx.cuh when a kernel that uses no tensor core is run on the host: a thread for each
// thread of a block, a barrier for __syncthreads.
#pragma once

#include <barrier>
#include <cmath>
#include <cstdlib>

#include "core/types.h"

#define MICA_DEVICE inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static  // blocks run one after the other

struct EmulatedIndex {
  int x;
};
inline thread_local EmulatedIndex threadIdx;
inline EmulatedIndex blockIdx, blockDim, gridDim;
inline std::barrier<>* emulated_barrier;

struct float4 {
  float x, y, z, w;
};

inline void __syncthreads() { emulated_barrier->arrive_and_wait(); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __shfl_xor_sync(unsigned, float, int) { std::abort(); }  // no emulated kernel needs it

namespace mica {
inline float ex2_approx(float x) { return std::exp2(x); }
inline float lg2_approx(float x) { return std::log2(x); }
inline float tanh_approx(float x) { return std::tanh(x); }
}  // namespace mica
