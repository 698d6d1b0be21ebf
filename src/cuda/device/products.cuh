// SPDX-License-Identifier: Apache-2.0
// Products of tiles in shared memory, accumulated in registers, for 16-bit elements and for fp32. A fp32 factor is the
// sum of two tf32 numbers, and of the four products the three large ones are kept ("tf32x3"), so that a product is
// right to about 2^-21.
//
// A (rows, dim) tile is a SharedTile whose chunks of 16 bytes hold eight 16-bit elements or four floats: ldmatrix hands
// out either as the operands want them. What it cannot do for fp32 is to transpose; operands that lie by columns are
// read plainly, in an order of the summed index that keeps the lanes in different banks: 2t takes the place of t and
// 2t + 1 that of t + 4 within each eight. A score tile is stored in that order (store_pair).
#pragma once

#include "device/mma.cuh"
#include "device/shared_tile.cuh"

namespace mica {

// x = high + low, each with at most 11 significant bits that matter (the tensor cores ignore the last 13).
struct Split {
  u32 high, low;
};
MICA_DEVICE Split split_tf32(float x) {
  constexpr u32 kHalf = 0x1000;  // half of the last bit that is kept
  const u32 high = (bits_of(x) + kHalf) & ~(2 * kHalf - 1);
  return Split{high, bits_of(x - float_of(high)) + kHalf};
}

// The A operand of one step of a product, made from the words that ldmatrix or plain loads bring.
template <class Element>
struct OperandA {
  u32 words[4];
  MICA_DEVICE void set(int i, u32 word) { words[i] = word; }
  MICA_DEVICE void multiply(float (&c)[4], u32 b0, u32 b1) const { mma_m16n8k16<Element>(c, words, b0, b1); }
};
template <>
struct OperandA<float> {
  u32 high[4], low[4];
  MICA_DEVICE void set(int i, u32 word) {
    const Split s = split_tf32(float_of(word));
    high[i] = s.high;
    low[i] = s.low;
  }
  MICA_DEVICE void multiply(float (&c)[4], u32 b0, u32 b1) const {
    const Split b[1][2] = {{split_tf32(float_of(b0)), split_tf32(float_of(b1))}};
    add_product<1>(c, {this}, b);
  }

  // c += the product of `steps` operands. The tensor cores' sums are cut off, not rounded: over thousands of steps that
  // adds up. So the long sum is an ordinary one, of a few steps at a time, and in these the small products come first:
  // cutting off hurts in proportion to the sum.
  template <int steps>
  static MICA_DEVICE void add_product(float (&c)[4], const OperandA* const (&a)[steps], const Split (&b)[steps][2]) {
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      mma_m16n8k8_tf32(sum, a[i]->low, b[i][0].high, b[i][1].high);
      mma_m16n8k8_tf32(sum, a[i]->high, b[i][0].low, b[i][1].low);
    }
#pragma unroll
    for (int i = 0; i < steps; ++i) mma_m16n8k8_tf32(sum, a[i]->high, b[i][0].high, b[i][1].high);
#pragma unroll
    for (int e = 0; e < 4; ++e) c[e] += sum[e];
  }
};

template <class Element>
struct Products {
  static constexpr bool kFp32 = sizeof(typename ElementTraits<Element>::Stored) == 4;
  static constexpr int kDepth = kFp32 ? 8 : 16;        // elements that one step sums over
  static constexpr int kHalves = kFp32 ? 2 : 1;        // 16-bit units of an element
  static constexpr int kColumnChunks = kFp32 ? 4 : 2;  // chunks of 16 columns
  // (rows, dim)
  template <int dim>
  using Tile = SharedTile<kHalves * dim>;
  using Operand = OperandA<Element>;

  // A lane's row and chunk for operands whose rows go down lanes 0 to 15, and for those whose second eight rows are
  // lanes 16 to 23.
  template <int dim>
  static MICA_DEVICE u32 by_sixteen(i32 row, i32 chunk) {
    const i32 lane = threadIdx.x % 32;
    return Tile<dim>::offset(row + lane % 16, chunk + lane / 16);
  }
  template <int dim>
  static MICA_DEVICE u32 by_eight(i32 row, i32 chunk) {
    const i32 lane = threadIdx.x % 32;
    return Tile<dim>::offset(row + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2);
  }

  static MICA_DEVICE void load_a(Operand& a, u32 address) {
    u32 words[4];
    ldmatrix_x4(words, address);
#pragma unroll
    for (int i = 0; i < 4; ++i) a.set(i, words[i]);
  }

  // c (16m x n) += A (16m x dim) B^T, both as rows: A of a_tile from a_row on, B of b_tile from b_row on.
  template <int dim, int m_blocks, int n_blocks>
  static MICA_DEVICE void add_rows(float (&c)[m_blocks][n_blocks][4], u32 a_tile, i32 a_row, u32 b_tile, i32 b_row) {
    const u32 a_address = a_tile + by_sixteen<dim>(a_row, 0), b_address = b_tile + by_eight<dim>(b_row, 0);
#pragma unroll(kFp32 ? 2 : dim / kDepth)
    for (int step = 0; step < dim / kDepth; ++step) {
      Operand a[m_blocks];
#pragma unroll
      for (int m = 0; m < m_blocks; ++m) load_a(a[m], Tile<dim>::step(a_address, step) + m * 16 * Tile<dim>::kRowBytes);
#pragma unroll
      for (int i = 0; i < n_blocks / 2; ++i) {
        u32 b[4];
        ldmatrix_x4(b, Tile<dim>::step(b_address, step) + i * 16 * Tile<dim>::kRowBytes);
#pragma unroll
        for (int m = 0; m < m_blocks; ++m) {
          a[m].multiply(c[m][2 * i], b[0], b[1]);
          a[m].multiply(c[m][2 * i + 1], b[2], b[3]);
        }
      }
    }
  }

  // B of (depth, dim), columns [column, column + 8 * n_blocks), for one step of a product; function(n, b0, b1).
  template <int dim, int n_blocks, class Function>
  static MICA_DEVICE void for_columns(u32 tile, i32 step, i32 column, Function function) {
    using T = Tile<dim>;
    const i32 lane = threadIdx.x % 32;
    if constexpr (kFp32) {
      const i32 row = lane % 4 * 2, chunk = lane / 4 / 4, word = lane / 4 % 4, below = step * 8 * T::kRowBytes;
      const u32 even = tile + T::offset(row, chunk) + word * 4, odd = tile + T::offset(row + 1, chunk) + word * 4;
#pragma unroll
      for (int n = 0; n < n_blocks; ++n)
        function(n, load_shared_4(T::step(even, column / 8 + n) + below),
                 load_shared_4(T::step(odd, column / 8 + n) + below));
    } else {
      // The step is added last: it then becomes a constant of the instruction, and the rest is common to all steps.
      const u32 address = tile + by_sixteen<dim>(0, column / 8);
#pragma unroll
      for (int i = 0; i < n_blocks / 2; ++i) {
        u32 b[4];
        ldmatrix_x4_trans(b, T::step(address, i) + step * 16 * T::kRowBytes);
        function(2 * i, b[0], b[1]);
        function(2 * i + 1, b[2], b[3]);
      }
    }
  }

  // c (16m x n) += A (16m x depth) B: A as rows of a stored score tile, B (depth, b_dim) by columns.
  template <int depth, int b_dim, int m_blocks, int n_blocks>
  static MICA_DEVICE void add_columns(float (&c)[m_blocks][n_blocks][4], u32 a_tile, i32 a_row, u32 b_tile,
                                      i32 column) {
    const u32 a_address = a_tile + by_sixteen<depth>(a_row, 0);
#pragma unroll(kFp32 ? 2 : depth / kDepth)
    for (int step = 0; step < depth / kDepth; ++step) {
      Operand a[m_blocks];
#pragma unroll
      for (int m = 0; m < m_blocks; ++m)
        load_a(a[m], Tile<depth>::step(a_address, step) + m * 16 * Tile<depth>::kRowBytes);
      for_columns<b_dim, n_blocks>(b_tile, step, column, [&](int n, u32 b0, u32 b1) {
#pragma unroll
        for (int m = 0; m < m_blocks; ++m) a[m].multiply(c[m][n], b0, b1);
      });
    }
  }

  // The same with A^T stored: a_tile is (depth, a_dim), of which the columns from a_column on are A's rows.
  template <int depth, int a_dim, int b_dim, int m_blocks, int n_blocks>
  static MICA_DEVICE void add_columns_transposed(float (&c)[m_blocks][n_blocks][4], u32 a_tile, i32 a_column,
                                                 u32 b_tile, i32 column) {
    using T = Tile<a_dim>;
    const i32 lane = threadIdx.x % 32;
#pragma unroll(kFp32 ? 2 : depth / kDepth)
    for (int step = 0; step < depth / kDepth; ++step) {
      Operand a[m_blocks];
      if constexpr (kFp32) {
        const i32 row = lane % 4 * 2, chunk = lane / 4 % 2, word = lane / 4 / 2, below = step * 8 * T::kRowBytes;
        const u32 even = a_tile + T::offset(row, chunk) + word * 4, odd = a_tile + T::offset(row + 1, chunk) + word * 4;
#pragma unroll
        for (int m = 0; m < m_blocks; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const i32 block = a_column / 8 + 2 * m + half;
            a[m].set(half, load_shared_4(T::step(even, block) + below));
            a[m].set(half + 2, load_shared_4(T::step(odd, block) + below));
          }
      } else {
        const u32 address = a_tile + by_eight<a_dim>(0, a_column / 8);
#pragma unroll
        for (int m = 0; m < m_blocks; ++m)
          ldmatrix_x4_trans(a[m].words, T::step(address, m) + step * 16 * T::kRowBytes);
      }
      for_columns<b_dim, n_blocks>(b_tile, step, column, [&](int n, u32 b0, u32 b1) {
#pragma unroll
        for (int m = 0; m < m_blocks; ++m) a[m].multiply(c[m][n], b0, b1);
      });
    }
  }

  // The lane's two neighbouring elements, in the n-th eight columns of a row of a score tile.
  template <int dim>
  static MICA_DEVICE void store_pair(u32 tile, i32 row, i32 n, float left, float right) {
    const i32 pair = threadIdx.x % 4;
    if constexpr (kFp32) {
      store_shared_4(tile + Tile<dim>::offset(row, 2 * n) + pair * 4, bits_of(left));
      store_shared_4(tile + Tile<dim>::offset(row, 2 * n + 1) + pair * 4, bits_of(right));
    } else {
      store_shared_4(tile + Tile<dim>::offset(row, n) + pair * 4, pack<Element>(left, right));
    }
  }
};

}  // namespace mica
