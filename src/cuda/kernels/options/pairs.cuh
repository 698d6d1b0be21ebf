// SPDX-License-Identifier: Apache-2.0
// Tensors over (query, key), mask and bias, read along a row of a fragment: a lane holds keys 0, 1, 8, 9, 16, 17 ... of
// the row, counted from its own first, so that two neighbours are read at once where the tensor lies dense.
#pragma once

#include "device/attend.cuh"
#include "kernels/params.h"

namespace mica {

// The keys of one query from a first one on: where that is in the tensor, how many there are, and how many come before
// the tensor's first (a mask of the last keys shows those).
struct PairsLine {
  i64 index;
  i32 limit, before;
};
MICA_DEVICE PairsLine line_of(const PairsArg& a, const Band& band, i32 batch, i32 head, i32 query, i32 first_key) {
  const bool inside = query < min_of(a.rows, band.len_q);
  return PairsLine{batch * a.stride_batch + head * a.stride_head + query * a.stride_row + first_key * a.stride_key,
                   inside ? min_of(a.keys, band.len_k) - first_key : 0, 0};
}
// The same of a mask of the last keys.
MICA_DEVICE PairsLine last_line_of(const PairsArg& a, const Band& band, i32 batch, i32 head, i32 query, i32 first_key) {
  const i32 column = first_key - (band.len_k - a.last_keys);
  const bool inside = query < min_of(a.rows, band.len_q);
  return PairsLine{batch * a.stride_batch + head * a.stride_head + query * a.stride_row + column * a.stride_key,
                   inside ? a.last_keys - column : 0, inside ? max_of(-column, 0) : 0};
}

// One of the two rows that a lane holds of a 16-row block.
template <int n_blocks>
struct FragmentRow {
  float (&block)[n_blocks][4];
  int half;
  MICA_DEVICE float& at(int n, int e) { return block[n][2 * half + e]; }
};

// Two 16-bit elements of either type; both ways are taken, since that is shorter than a branch.
MICA_DEVICE float2 floats_of(u32 pair, i32 dtype) {
  const float2 brain = unpack<Bf16>(pair), half = unpack<Fp16>(pair);
  return dtype == MICA_BF16 ? brain : half;
}
// Element `index`, and elements `index` and `index + 1`; index is even then, and the tensor dense.
MICA_DEVICE float load_one(const void* data, i64 index, i32 dtype) {
  if (dtype == MICA_FP32) return static_cast<const float*>(data)[index];
  return floats_of(static_cast<const u16*>(data)[index], dtype).x;
}
MICA_DEVICE float2 load_two(const void* data, i64 index, i32 dtype) {
  if (dtype == MICA_FP32) return *reinterpret_cast<const float2*>(static_cast<const float*>(data) + index);
  return floats_of(*reinterpret_cast<const u32*>(static_cast<const u16*>(data) + index), dtype);
}

// A 16-bit bias or a boolean mask of a fragment with one block of 16 rows, fetched long before it is needed.
// Element: u16 or u8. Outside the tensor: 0.
template <int n_blocks>
struct PairsAhead {
  u32 words[2][n_blocks];  // two keys each, the first one in the lower half

  template <class Element>
  MICA_DEVICE void fetch(const PairsArg& a, const Band& band, i32 batch, i32 head, i32 query_begin, i32 key_begin) {
    constexpr int kBits = 8 * sizeof(Element);
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const PairsLine line = line_of(a, band, batch, head, query_begin + half * 8 + lane / 4, key_begin + lane % 4 * 2);
      const Element* first = static_cast<const Element*>(a.data) + line.index;
      if (a.vectorised_by_2 && line.limit > n_blocks * 8 - 7) {
#pragma unroll
        for (int n = 0; n < n_blocks; ++n)
          if constexpr (kBits == 16)
            words[half][n] = *reinterpret_cast<const u32*>(first + n * 8);
          else
            words[half][n] = *reinterpret_cast<const u16*>(first + n * 8);
      } else {
#pragma unroll
        for (int n = 0; n < n_blocks; ++n) {
          words[half][n] = n * 8 < line.limit ? first[n * 8 * a.stride_key] : 0;
          if (n * 8 + 1 < line.limit) words[half][n] |= u32(first[(n * 8 + 1) * a.stride_key]) << kBits;
        }
      }
    }
  }
};

template <int n_blocks>
MICA_DEVICE void add_bias_line(FragmentRow<n_blocks>& row, const PairsArg& a, const PairsLine& line) {
#pragma unroll
  for (int n = 0; n < n_blocks; ++n) {
    float2 two = make_float2(0.0f, 0.0f);
    if (a.vectorised_by_2 && n * 8 + 1 < line.limit) {
      two = load_two(a.data, line.index + n * 8, a.dtype);
    } else {
      if (n * 8 < line.limit) two.x = load_one(a.data, line.index + n * 8 * a.stride_key, a.dtype);
      if (n * 8 + 1 < line.limit) two.y = load_one(a.data, line.index + (n * 8 + 1) * a.stride_key, a.dtype);
    }
    row.at(n, 0) = add_bias<FloatMath>(row.at(n, 0), two.x);
    row.at(n, 1) = add_bias<FloatMath>(row.at(n, 1), two.y);
  }
}

template <int n_blocks>
MICA_DEVICE void hide_line(FragmentRow<n_blocks>& row, const PairsArg& a, const PairsLine& line) {
  const u8* data = static_cast<const u8*>(a.data) + line.index;
#pragma unroll
  for (int n = 0; n < n_blocks; ++n) {
    u32 visible[2] = {0, 0};
    if (a.vectorised_by_2 && n * 8 + 1 < line.limit) {
      const u32 two = *reinterpret_cast<const u16*>(data + n * 8);
      visible[0] = two & 0xffu;
      visible[1] = two >> 8;
    } else {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (n * 8 + e < line.limit) visible[e] = n * 8 + e < line.before ? 1 : data[(n * 8 + e) * a.stride_key];
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) row.at(n, e) = visible[e] ? row.at(n, e) : -infinity();
  }
}

}  // namespace mica
