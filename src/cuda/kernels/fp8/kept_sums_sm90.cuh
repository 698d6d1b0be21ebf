// SPDX-License-Identifier: Apache-2.0
// The second level of forward_fp8_sm90's sums where its registers are full: fp32 in global memory that one thread alone
// uses, small enough for the second-level cache to keep. A row's sums are relative to the maximum that the row had when
// they began (its reference, in shared memory), so that most additions multiply nothing that is there already.
#pragma once

#include "device/attend.cuh"
#include "device/ptx_sm90.cuh"
#include "kernels/pairs/fp8_layout_sm90.h"

namespace mica {

template <int dim_v>
struct Fp8KeptSums {
  static constexpr int kFours = dim_v / 8;     // of a thread
  static constexpr i32 kFoursApart = 128 * 4;  // floats: the threads of a consumer lie side by side
  static constexpr float kNone = -3e38f;       // a reference: there are no sums
  static constexpr float kMostGrown = 60.0f;   // a sum times 2^60 is a number still

  float* sums;     // the thread's first four
  u32 references;  // of the first row of the consumer

  // Made anew at each use: the compiler would keep addresses in registers that the loop over key tiles needs.
  static MICA_DEVICE Fp8KeptSums of_block(float* kept, u32 references, int consumers) {
    const u32 thread = made_anew(threadIdx.x) - 128, block = made_anew(blockIdx.x);
    const u32 consumer = thread / 128;
    return {kept + u64(block * consumers + consumer) * (kFours * kFoursApart) + thread % 128 * 4,
            references + (thread / 32 * 16 + thread % 32 / 4) * 4};
  }

  MICA_DEVICE float reference(int half) const { return float_of(load_shared_4(references + half * 32)); }
  // By the whole warp: one lane writes for the four of a row.
  MICA_DEVICE void set_references(float of_first, float of_second) const {
    __syncwarp();
    if (threadIdx.x % 4 == 0) {
      store_shared_4(references, bits_of(of_first));
      store_shared_4(references + 32, bits_of(of_second));
    }
    __syncwarp();
  }

  MICA_DEVICE void begin() const { set_references(kNone, kNone); }
  // The same in all lanes of a warp, which a vote tells the compiler: behind a branch that may part lanes it would keep
  // nothing in uniform registers.
  MICA_DEVICE bool are_there() const { return __any_sync(0xffffffffu, reference(0) != kNone); }

  // Adds `out`, which is relative to the rows' maxima.
  MICA_DEVICE void add(const float (&out)[kFours][4], const SoftmaxState<FloatMath> (&state)[2]) const {
    const float now[2] = {reference_of<FloatMath>(state[0].max), reference_of<FloatMath>(state[1].max)};
    float factor[2] = {1.0f, 1.0f};
    if (!are_there()) {
      set_references(now[0], now[1]);
      store<true>(out, factor);
      return;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) factor[half] = now[half] - reference(half);
    if (__any_sync(0xffffffffu, fmaxf(fabsf(factor[0]), fabsf(factor[1])) > kMostGrown)) move_references(factor, now);
#pragma unroll
    for (int half = 0; half < 2; ++half) factor[half] = ex2_approx(factor[half]);
    store<false>(out, factor);
  }
  template <bool begins>
  MICA_DEVICE void store(const float (&out)[kFours][4], const float (&factor)[2]) const {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      float* to = sums + i * kFoursApart;
      if constexpr (begins) {
        *reinterpret_cast<float4*>(to) = make_float4(out[i][0], out[i][1], out[i][2], out[i][3]);
      } else {
        const float x[4] = {out[i][0] * factor[0], out[i][1] * factor[0], out[i][2] * factor[1], out[i][3] * factor[1]};
        reduce_add_4(to, x);
      }
    }
  }
  // grown: by how much the rows' maxima, now, are larger than their references; 0 after it.
  MICA_DEVICE void move_references(float (&grown)[2], const float (&now)[2]) const {
    const float factor[2] = {ex2_approx(fminf(-grown[0], 126.0f)), ex2_approx(fminf(-grown[1], 126.0f))};
    grown[0] = grown[1] = 0.0f;
    set_references(now[0], now[1]);
#pragma unroll 1
    for (int i = 0; i < kFours; ++i) {
      float x[4];
      load_4_from_l2(x, sums + i * kFoursApart);
      *reinterpret_cast<float4*>(sums + i * kFoursApart) =
          make_float4(x[0] * factor[0], x[1] * factor[0], x[2] * factor[1], x[3] * factor[1]);
    }
  }

  // Adds a half of them to that of `out`, which is relative to the rows' maxima.
  template <int half_of_columns>
  MICA_DEVICE void take_back(float (&out)[kFours][4], const SoftmaxState<FloatMath> (&state)[2]) const {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      factor[half] = ex2_approx(fminf(reference(half) - reference_of<FloatMath>(state[half].max), 126.0f));
#pragma unroll
    for (int i = half_of_columns * kFours / 2; i < (half_of_columns + 1) * kFours / 2; ++i) {
      float x[4];
      load_4_from_l2(x, sums + i * kFoursApart);
#pragma unroll
      for (int e = 0; e < 4; ++e) out[i][e] = fmaf(x[e], factor[e / 2], out[i][e]);
    }
  }
};

}  // namespace mica
