// SPDX-License-Identifier: Apache-2.0
// The B operands of Q K^T and of P V, out of tiles of keys and values that lie in shared memory as they are stored: as
// elements of 16 bits, or as e4m3, which becomes 16 bits in the registers.
//
// A word of e4m3 that ldmatrix brings has four neighbouring columns of a key, where two words of 16 bits have columns 2
// j, 2 j + 1 and the eighth after them. So the summed index of Q K^T stands in another order, which Q takes as well:
// of 16 columns, 4 j and 4 j + 1 go before 4 j + 2 and 4 j + 3. The columns of P V come in an order of their own, too:
// put_in_order() reorders the sums at the end.
#pragma once

#include "device/shared_tile.cuh"
#include "kernels/params.h"

namespace mica {

template <class Element, class Key>
struct KeyOperands {
  static constexpr bool kIsE4m3 = false;
  static constexpr int kSteps = 1;  // of 16 columns that an ldmatrix brings
  template <int dim>
  using Tile = SharedTile<dim>;
  // A tensor as elements of 16 bits, where its rows are aligned; and so many of them that stand for `dim`.
  static MICA_DEVICE const RowsArg& in_words(const RowsArg& tensor) { return tensor; }
  static MICA_DEVICE i32 words(i32 dim) { return dim; }

  // 16 keys of K at the lane's address. use(half, step, b0, b1): 8 keys, 16 columns.
  template <class Use>
  static MICA_DEVICE void of_k(u32 address, Use use) {
    u32 b[4];
    ldmatrix_x4(b, address);
    use(0, 0, b[0], b[1]);
    use(1, 0, b[2], b[3]);
  }
  // 16 keys of V. use(block, b0, b1): 8 columns.
  template <class Use>
  static MICA_DEVICE void of_v(u32 address, Use use) {
    u32 b[4];
    ldmatrix_x4_trans(b, address);
    use(0, b[0], b[1]);
    use(1, b[2], b[3]);
  }
  // The same as A operands of products whose rows are keys, and columns of V. use(step, a): 16 keys, 16 columns.
  template <class Use>
  static MICA_DEVICE void of_k_as_rows(u32 address, Use use) {
    u32 b[4];
    ldmatrix_x4(b, address);
    const u32 a[4] = {b[0], b[2], b[1], b[3]};
    use(0, a);
  }
  // use(block, a): 16 columns, 16 keys.
  template <class Use>
  static MICA_DEVICE void of_v_as_rows(u32 address, Use use) {
    u32 b[4];
    ldmatrix_x4_trans(b, address);
    const u32 a[4] = {b[0], b[2], b[1], b[3]};
    use(0, a);
  }
  template <int n>
  static MICA_DEVICE void put_in_order(float (&)[n][4]) {}
};

template <class Element>
struct KeyOperands<Element, E4m3> {
  static constexpr bool kIsE4m3 = true;
  static constexpr int kSteps = 2;
  template <int dim>
  using Tile = SharedTile<dim / 2>;
  static MICA_DEVICE RowsArg in_words(const RowsArg& tensor) {
    return {tensor.data, tensor.stride_batch / 2, tensor.stride_row / 2, tensor.stride_head / 2};
  }
  static MICA_DEVICE i32 words(i32 dim) { return dim / 2; }

  template <class Use>
  static MICA_DEVICE void of_k(u32 address, Use use) {
    u32 r[4];
    ldmatrix_x4(r, address);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        u32 b[2];
        expand_e4m3<Element>(b, r[2 * half + step]);
        use(half, step, b[0], b[1]);
      }
  }
  // A word has columns 2 g and 2 g + 1 of two keys: the even ones become one block, the odd ones the next.
  template <class Use>
  static MICA_DEVICE void of_v(u32 address, Use use) {
    u32 r[4];
    ldmatrix_x4_trans(r, address);
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      u32 first[2], second[2];
      expand_e4m3<Element>(first, byte_perm(r[2 * chunk], 0, 0x3120));
      expand_e4m3<Element>(second, byte_perm(r[2 * chunk + 1], 0, 0x3120));
      use(2 * chunk, first[0], second[0]);
      use(2 * chunk + 1, first[1], second[1]);
    }
  }

  // As above, but row g of a block of V has column 2 g, row g + 8 the next.
  template <class Use>
  static MICA_DEVICE void of_k_as_rows(u32 address, Use use) {
    u32 r[4];
    ldmatrix_x4(r, address);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      u32 upper[2], lower[2];
      expand_e4m3<Element>(upper, r[step]);
      expand_e4m3<Element>(lower, r[2 + step]);
      const u32 a[4] = {upper[0], lower[0], upper[1], lower[1]};
      use(step, a);
    }
  }
  template <class Use>
  static MICA_DEVICE void of_v_as_rows(u32 address, Use use) {
    u32 r[4];
    ldmatrix_x4_trans(r, address);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      u32 first[2], second[2];
      expand_e4m3<Element>(first, byte_perm(r[2 * block], 0, 0x3120));
      expand_e4m3<Element>(second, byte_perm(r[2 * block + 1], 0, 0x3120));
      const u32 a[4] = {first[0], first[1], second[0], second[1]};
      use(block, a);
    }
  }

  // Of 16 columns lane j has 4 j to 4 j + 3, and gets 2 j, 2 j + 1 and the eighth after them.
  template <int n>
  static MICA_DEVICE void put_in_order(float (&out)[n][4]) {
#pragma unroll
    for (int block = 0; block < n; block += 2)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& a = out[block][2 * half];
        float& b = out[block][2 * half + 1];
        float& c = out[block + 1][2 * half];
        float& d = out[block + 1][2 * half + 1];
        trade(a, b, 1);
        trade(c, d, 1);
        trade(a, b, 2);
        trade(c, d, 2);
        const float of_next_block = b;
        b = c;
        c = of_next_block;
      }
  }

 private:
  // Between this lane and the one `distance` away: the lower one's second against the upper one's first.
  static MICA_DEVICE void trade(float& first, float& second, int distance) {
    const bool is_upper = threadIdx.x & distance;
    const float received = __shfl_xor_sync(0xffffffffu, is_upper ? first : second, distance);
    (is_upper ? first : second) = received;
  }
};

// P times a page's factor may be any number, which bf16 can hold and fp16 cannot. Beside queries of fp16 it is the sum
// of two bf16: the second is what the first leaves.
template <class Element, u32 served>
constexpr bool kSplitsP = Element::kDtype == MICA_FP16 && (served & kFeaturePageFactors) != 0;
template <int n>
MICA_DEVICE void subtract_bf16(float (&x)[n][4]) {
#pragma unroll
  for (int block = 0; block < n; ++block)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float &left = x[block][2 * half], &right = x[block][2 * half + 1];
      const float2 rounded = unpack<Bf16>(pack<Bf16>(left, right));
      left -= rounded.x;
      right -= rounded.y;
    }
}

// The factors of a sequence's keys and values, of one key head: the same for all of them, or one for each page. Values
// of other pages count relative to the first page's.
struct KeyFactors {
  float q;          // of the queries
  float k, v;       // of all, or of the first page
  float v_inverse;  // 1 over v

  static MICA_DEVICE KeyFactors find(const ForwardParams& p, const Sequence& s, i32 b, i32 head_k, bool by_page) {
    i32 slot = b;
    if (by_page) slot = s.len_k > 0 ? page(p.sequences, paged_row(p.sequences, s, b, 0)) : 0;
    KeyFactors f = {descale_at(p.q_descale, b, head_k), descale_at(p.k_descale, slot, head_k),
                    descale_at(p.v_descale, slot, head_k), 1.0f};
    if (by_page && f.v == 0.0f) f.v = 1.0f;
    f.v_inverse = 1.0f / f.v;
    return f;
  }
  static MICA_DEVICE i32 page(const SequenceTable& t, const PagedRow& row) {
    return clamp_to(row.entry, 0, t.slots_k - 1);
  }
  // Sends for a factor of a page.
  static MICA_DEVICE void fetch(u32 shared, const Descale& d, i32 page, i32 head_k) {
    if (d.factor)
      cp_async_4(shared, d.factor + page * d.stride_slot + head_k * d.stride_head);
    else
      store_shared_4(shared, bits_of(1.0f));
  }

  // A fragment's columns times the factors of their keys, which lie in shared memory from the lane's first key on.
  template <int n>
  static MICA_DEVICE void multiply(float (&scores)[n][4], u32 shared, float with) {
#pragma unroll
    for (int block = 0; block < n; ++block) {
      const float left = float_of(load_shared_4(shared + block * 32)) * with;
      const float right = float_of(load_shared_4(shared + block * 32 + 4)) * with;
      scores[block][0] *= left;
      scores[block][1] *= right;
      scores[block][2] *= left;
      scores[block][3] *= right;
    }
  }
};

// 16 columns of a row, as eight words of 16-bit pairs: from 16 bits or from e4m3.
MICA_DEVICE void load_pairs(u32 (&words)[8], const u16* from, bool aligned, i32 valid) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (aligned)
      words[i] = 2 * i < valid ? reinterpret_cast<const u32*>(from)[i] : 0u;
    else
      words[i] = (2 * i < valid ? u32(from[2 * i]) : 0u) | (2 * i + 1 < valid ? u32(from[2 * i + 1]) << 16 : 0u);
}
template <class Element>
MICA_DEVICE void load_pairs(u32 (&words)[8], const u8* from, bool aligned, i32 valid) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    u32 four = 0, pairs[2];
    if (aligned) {
      four = 4 * i < valid ? reinterpret_cast<const u32*>(from)[i] : 0u;
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) four |= 4 * i + e < valid ? u32(from[4 * i + e]) << (8 * e) : 0u;
    }
    expand_e4m3<Element>(pairs, four);
    words[2 * i] = pairs[0];
    words[2 * i + 1] = pairs[1];
  }
}

// Copies rows of Q, as load_tile does, their columns in the order that K's have (above): of 16 columns the words with
// an even number go before those with an odd one. is_e4m3: so is Q.
template <class Element, int dim, int rows, int threads>
MICA_DEVICE void load_tile_in_order(u32 shared, const void* global, bool is_e4m3, i64 stride_row, bool aligned,
                                    i32 valid_rows, i32 valid_dim) {
  using Tile = SharedTile<dim>;
#pragma unroll 1
  for (i32 index = threadIdx.x; index < rows * (dim / 16); index += threads) {
    const i32 row = index / (dim / 16), column = index % (dim / 16) * 16;
    const i64 offset = row * stride_row + column;
    u32 words[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (row < valid_rows && is_e4m3)
      load_pairs<Element>(words, static_cast<const u8*>(global) + offset, aligned, valid_dim - column);
    else if (row < valid_rows)
      load_pairs(words, static_cast<const u16*>(global) + offset, aligned, valid_dim - column);
    const u32 first[4] = {words[0], words[2], words[4], words[6]}, second[4] = {words[1], words[3], words[5], words[7]};
    store_shared_16(shared + Tile::offset(row, column / 8), first);
    store_shared_16(shared + Tile::offset(row, column / 8 + 1), second);
  }
}

}  // namespace mica
