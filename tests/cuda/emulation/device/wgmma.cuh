// SPDX-License-Identifier: Apache-2.0
// Stands in for src/cuda/device/wgmma.cuh when a kernel runs on the host.
#pragma once

#include "device/ptx_sm90.cuh"

namespace mica {

inline u64 matrix_descriptor(u32 address, u32 leading_bytes, u32 stride_bytes) {
  return u64(1) << 62 | u64(stride_bytes >> 4) << 32 | u64(leading_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

inline u64 advance(u64 descriptor, u32 bytes) {
  return (descriptor & ~u64(0xffffffffu)) | u32(u32(descriptor) + (bytes >> 4));
}

template <class Element, int n>
struct Wgmma {
  static void add(float (&c)[n / 8][4], u64 a, u64 b, i32 accumulate) {
    emulation::wgmma({c[0], n, Element::kDtype, accumulate != 0, true, false, false, {}, a, b});
  }
  static void add_a_transposed(float (&c)[n / 8][4], u64 a, u64 b, i32 accumulate) {
    emulation::wgmma({c[0], n, Element::kDtype, accumulate != 0, true, true, false, {}, a, b});
  }
  static void add_b_transposed(float (&c)[n / 8][4], u64 a, u64 b, i32 accumulate) {
    emulation::wgmma({c[0], n, Element::kDtype, accumulate != 0, true, false, true, {}, a, b});
  }
  static void add_both_transposed(float (&c)[n / 8][4], u64 a, u64 b, i32 accumulate) {
    emulation::wgmma({c[0], n, Element::kDtype, accumulate != 0, true, true, true, {}, a, b});
  }
  static void add_transposed(float (&c)[n / 8][4], const u32 (&a)[4], u64 b, i32 accumulate = 1) {
    emulation::wgmma({c[0], n, Element::kDtype, accumulate != 0, false, false, true, {a[0], a[1], a[2], a[3]}, 0, b});
  }
  static void add_registers(float (&c)[n / 8][4], const u32 (&a)[4], u64 b, i32 accumulate) {
    emulation::wgmma({c[0], n, Element::kDtype, accumulate != 0, false, false, false, {a[0], a[1], a[2], a[3]}, 0, b});
  }
};

}  // namespace mica
