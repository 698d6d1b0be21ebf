// SPDX-License-Identifier: Apache-2.0
// Register fragments of m16n8k16 products. Lane l holds, of each 16 x 8 block, rows l / 4 and l / 4 + 8 and columns
// 2 * (l % 4) and the next: elements 0, 1 of the first row and 2, 3 of the second.
#pragma once

#include "device/ptx.cuh"

namespace mica {

// How an element type lies in memory.
template <class Element>
struct ElementTraits {
  using Stored = u16;
  static constexpr i32 kDtype = Element::kDtype;
};
template <>
struct ElementTraits<float> {
  using Stored = float;
  static constexpr i32 kDtype = MICA_FP32;
};

template <int m, int n>
MICA_DEVICE void zero(float (&fragment)[m][n][4]) {
#pragma unroll
  for (int i = 0; i < m; ++i)
#pragma unroll
    for (int j = 0; j < n; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) fragment[i][j][e] = 0.0f;
}

template <int n>
MICA_DEVICE void zero(float (&fragment)[n][4]) {
#pragma unroll
  for (int j = 0; j < n; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) fragment[j][e] = 0.0f;
}

template <int n>
MICA_DEVICE void scale(float (&fragment)[n][4], float factor) {
#pragma unroll
  for (int j = 0; j < n; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) fragment[j][e] *= factor;
}

MICA_DEVICE void copy(u32 (&to)[4], const u32 (&from)[4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) to[e] = from[e];
}

// Two neighbouring 16 x 8 accumulators become one 16 x 16 A operand.
template <class Element>
MICA_DEVICE void pack_a(u32 (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack<Element>(left[0], left[1]);
  a[1] = pack<Element>(left[2], left[3]);
  a[2] = pack<Element>(right[0], right[1]);
  a[3] = pack<Element>(right[2], right[3]);
}

// A 16 x 8 accumulator becomes a 16 x 8 B operand, in the first two words.
template <class Element>
MICA_DEVICE void pack_b(u32 (&b)[4], const float (&c)[4]) {
  b[0] = transpose_matrix(pack<Element>(c[0], c[1]));
  b[1] = transpose_matrix(pack<Element>(c[2], c[3]));
}

// -inf for the columns of one row outside [begin, end), counted from the lane's first column.
template <int n>
MICA_DEVICE void hide_outside(float (&row_block)[n][4], int half, i32 begin, i32 end) {
#pragma unroll
  for (int j = 0; j < n; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const bool hidden = j * 8 + e < begin || j * 8 + e >= end;
      row_block[j][2 * half + e] = hidden ? -infinity() : row_block[j][2 * half + e];
    }
}

}  // namespace mica
