// SPDX-License-Identifier: Apache-2.0
// A (query, key) tile of a bias or a boolean mask in shared memory, 16 bits a pair, fetched by one warp. A mask becomes
// a bias of 0 or minus infinity in bf16.
#pragma once

#include "device/panel_tile.cuh"
#include "kernels/options/pairs.cuh"

namespace mica {

// Bytes of a mask to pairs of 16 bits: 0xff80, minus infinity, where a byte is 0.
MICA_DEVICE void expand_mask(u32 bytes, u32& low, u32& high) {
  const u32 visible =
      (((bytes & 0x7f7f7f7fu) + 0x7f7f7f7fu) | bytes) & 0x80808080u;  // the top bit of a byte that is not 0
  const u32 hidden = ~visible & 0x80808080u;
  const u32 even = (hidden & 0x00800080u) << 8, odd = hidden & 0x80008000u;  // bytes 0 and 2, 1 and 3
  const u32 even_bits = even | (even - (even >> 8)), odd_bits = odd | (odd - (odd >> 8));
  low = (even_bits & 0xffffu) | odd_bits << 16;
  high = even_bits >> 16 | (odd_bits & 0xffff0000u);
}

// Rows of 16 bytes can be read at once from `first` on.
template <class Element>
MICA_DEVICE bool can_load_16_bytes(const PairsArg& a, const Element* first) {
  return a.stride_key == 1 && a.stride_row * i64(sizeof(Element)) % 16 == 0 && u64(first) % 16 == 0;
}

template <class Tile, int queries, int keys, int threads>
MICA_DEVICE void load_bias_tile(u32 shared, const PairsArg& a, const u16* first, i32 rows, i32 columns) {
  const bool vectors = can_load_16_bytes(a, first);
#pragma unroll 4
  for (i32 i = threadIdx.x % threads; i < queries * keys / 8; i += threads) {
    const i32 row = i / (keys / 8), column = i % (keys / 8) * 8;
    const i32 valid = row < rows ? columns - column : 0;
    const u32 to = shared + Tile::offset(row, column / 8);
    if (vectors) {
      cp_async_16(to, valid > 0 ? first + row * a.stride_row + column : first, clamp_to(valid * 2, 0, 16));
      continue;
    }
    u32 words[4] = {};
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (e < valid) words[e / 2] |= u32(first[row * a.stride_row + (column + e) * a.stride_key]) << (e % 2 * 16);
    store_shared_16(to, words);
  }
  cp_async_commit();
  cp_async_wait<0>();
}

template <class Tile>
MICA_DEVICE void store_mask_16(u32 shared, i32 row, i32 column, const u32 (&bytes)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    u32 pairs[4];
    expand_mask(bytes[2 * half], pairs[0], pairs[1]);
    expand_mask(bytes[2 * half + 1], pairs[2], pairs[3]);
    store_shared_16(shared + Tile::offset(row, column / 8 + half), pairs);
  }
}
template <class Tile, int queries, int keys, int threads>
MICA_DEVICE void load_mask_tile(u32 shared, const PairsArg& a, const u8* first, i32 rows, i32 columns) {
  const i32 thread = threadIdx.x % threads;
  if (can_load_16_bytes(a, first) && rows >= queries && columns >= keys) {
    // Several loads are under way at once.
    constexpr int kBatch = 4, kRowStep = threads / (keys / 16);
    static_assert(queries % (kBatch * kRowStep) == 0);
    const i32 column = thread % (keys / 16) * 16;
#pragma unroll 1
    for (i32 row = thread / (keys / 16); row < queries; row += kBatch * kRowStep) {
      uint4 bytes[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        bytes[i] = *reinterpret_cast<const uint4*>(first + (row + i * kRowStep) * a.stride_row + column);
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        store_mask_16<Tile>(shared, row + i * kRowStep, column, {bytes[i].x, bytes[i].y, bytes[i].z, bytes[i].w});
    }
    return;
  }
#pragma unroll 1
  for (i32 i = thread; i < queries * keys / 16; i += threads) {
    const i32 row = i / (keys / 16), column = i % (keys / 16) * 16;
    const i32 valid = row < rows ? columns - column : 0;
    u32 bytes[4] = {};
#pragma unroll
    for (int e = 0; e < 16; ++e)
      if (e < valid) bytes[e / 4] |= u32(first[row * a.stride_row + (column + e) * a.stride_key] != 0) << (e % 4 * 8);
    store_mask_16<Tile>(shared, row, column, bytes);
  }
}

// The tile of queries and keys from query_begin and key_begin on, by `threads` threads of some whole warps. Outside the
// tensor: a bias of 0, or hidden.
template <int queries, int keys, int threads, class Params>
MICA_DEVICE void load_pairs_tile(u32 shared, const Params& p, const Band& band, i32 batch, i32 head, i32 query_begin,
                                 i32 key_begin) {
  using Tile = PanelTile<keys, queries>;
  const bool is_bias = p.features & kFeatureBias;
  const PairsArg& a = is_bias ? p.bias : p.boolean;
  const i64 index =
      batch * a.stride_batch + head * a.stride_head + query_begin * a.stride_row + key_begin * a.stride_key;
  const i32 rows = min_of(a.rows, band.len_q) - query_begin, columns = min_of(a.keys, band.len_k) - key_begin;
  if (is_bias)
    load_bias_tile<Tile, queries, keys, threads>(shared, a, static_cast<const u16*>(a.data) + index, rows, columns);
  else
    load_mask_tile<Tile, queries, keys, threads>(shared, a, static_cast<const u8*>(a.data) + index, rows, columns);
}

}  // namespace mica
