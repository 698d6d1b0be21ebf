// SPDX-License-Identifier: Apache-2.0
// Shared memory of the kernels that serve every GPU: where each tile begins, in bytes, and how much a block takes in
// all. The host asks for `bytes`, the kernel puts its tiles where the layout says. The first tile begins at 0.
#pragma once

#include "core/types.h"

namespace mica {

// Floats between two rows of a partial result in shared memory: four rows of 16-byte accesses lie in different banks.
MICA_HD constexpr i32 decode_part_stride(i32 dim_v) { return dim_v + 8; }
// Partial results that blocks join at their end: O, then maximum and sum per row.
MICA_HD constexpr i32 decode_parts_bytes(i32 parts, i32 tile_q, i32 dim_v) {
  return parts * tile_q * (decode_part_stride(dim_v) + 2) * 4;
}

// How many warps of forward_sm80 share the columns of a row; more than one pass P through shared memory.
MICA_HD constexpr i32 forward_sm80_column_groups(i32 tile_k, i32 dim_v) { return dim_v > 128 && tile_k >= 64 ? 2 : 1; }

// Q (through whose room O leaves), then `stages` of K and of V. Where warps share rows: P, and one float per row and
// column group. Of e4m3: for each stage two factors a key.
struct ForwardSm80Layout {
  i32 k, v, p, row_exchange, factors, bytes;
};
MICA_HD constexpr ForwardSm80Layout forward_sm80_layout(i32 tile_q, i32 tile_k, i32 dim_qk, i32 dim_v, i32 stages,
                                                        i32 key_bytes) {
  const i32 groups = forward_sm80_column_groups(tile_k, dim_v);
  ForwardSm80Layout at = {};
  at.k = tile_q * max_of(dim_qk, dim_v) * 2;
  at.v = at.k + stages * tile_k * dim_qk * key_bytes;
  at.p = at.v + stages * tile_k * dim_v * key_bytes;
  at.row_exchange = at.p + (groups > 1 ? tile_q * tile_k * 2 : 0);
  at.factors = at.row_exchange + (groups > 1 ? groups * tile_q * 4 : 0);
  at.bytes = at.factors + (key_bytes == 1 ? stages * 2 * tile_k * 4 : 0);
  return at;
}

// Whether blocks may take two key heads.
MICA_HD constexpr bool decode_sm80_pairs_heads(i32 key_bytes, i32 dim_qk) {
  constexpr i32 kLineBytes = 128;
  return dim_qk * key_bytes < kLineBytes;
}
// A ring of K and V tiles per warp, of e4m3 with two factors a key; at the end, in the same room, the partial result of
// each warp.
struct DecodeSm80Layout {
  i32 stage_v, stage_factors;  // of V and of the factors within a stage, which begins with K
  i32 stage_bytes, ring_bytes, bytes;
};
MICA_HD constexpr DecodeSm80Layout decode_sm80_layout(i32 tile_q, i32 tile_k, i32 dim_qk, i32 dim_v, i32 warps,
                                                      i32 stages, i32 key_bytes) {
  DecodeSm80Layout at = {};
  at.stage_v = tile_k * dim_qk * key_bytes;
  at.stage_factors = at.stage_v + tile_k * dim_v * key_bytes;
  at.stage_bytes = at.stage_factors + (key_bytes == 1 ? 2 * tile_k * 4 : 0);
  at.ring_bytes = stages * at.stage_bytes;
  at.bytes = max_of(warps * at.ring_bytes, decode_parts_bytes(warps, tile_q, dim_v));
  return at;
}

// Q, then `stages` of K and of V; at the end, in the same room, the partial results of the groups of warps that share
// out the keys (a warp owns 16 rows and 256 columns of V).
struct ForwardWideSm80Layout {
  i32 k, v, bytes;
};
MICA_HD constexpr ForwardWideSm80Layout forward_wide_sm80_layout(i32 tile_q, i32 tile_k, i32 dim_qk, i32 dim_v,
                                                                 i32 warps, i32 stages) {
  const i32 groups = warps / (tile_q / 16 * (dim_v / 256));
  ForwardWideSm80Layout at = {};
  at.k = tile_q * dim_qk * 2;
  at.v = at.k + stages * tile_k * dim_qk * 2;
  at.bytes = max_of(at.v + stages * tile_k * dim_v * 2, decode_parts_bytes(groups, tile_q, dim_v));
  return at;
}

// Q, then K and V; at the end the result in the same room. Rows of V are padded so that the four keys and eight columns
// that a warp reads at once lie in different banks.
MICA_HD constexpr i32 forward_fp32_v_stride(i32 dim_v) { return dim_v + 4; }
struct ForwardFp32Sm80Layout {
  i32 k, v, bytes;
};
MICA_HD constexpr ForwardFp32Sm80Layout forward_fp32_sm80_layout(i32 tile_q, i32 tile_k, i32 dim_qk, i32 dim_v) {
  ForwardFp32Sm80Layout at = {};
  at.k = tile_q * dim_qk * 4;
  at.v = at.k + tile_k * dim_qk * 4;
  at.bytes = max_of(at.v + tile_k * forward_fp32_v_stride(dim_v) * 4, decode_parts_bytes(1, tile_q, dim_v));
  return at;
}

// K, V; stages of Q and dO; P and dS; statistics of two query tiles.
struct BackwardSm80Layout {
  i32 v, q, d_o, p, ds, stats, bytes;
};
MICA_HD constexpr BackwardSm80Layout backward_sm80_layout(i32 tile_q, i32 tile_k, i32 dim_qk, i32 dim_v, i32 stages) {
  BackwardSm80Layout at = {};
  at.v = tile_k * dim_qk * 2;
  at.q = at.v + tile_k * dim_v * 2;
  at.d_o = at.q + stages * tile_q * dim_qk * 2;
  at.p = at.d_o + stages * tile_q * dim_v * 2;
  at.ds = at.p + tile_k * tile_q * 2;
  at.stats = at.ds + tile_k * tile_q * 2;
  at.bytes = at.stats + 2 * 2 * tile_q * 4;
  return at;
}

// A slice of K, Q, V and dO, `width` columns each; P and dS; statistics.
struct BackwardSlicedSm80Layout {
  i32 q, v, d_o, p, ds, stats, bytes;
};
MICA_HD constexpr BackwardSlicedSm80Layout backward_sliced_sm80_layout(i32 tile_q, i32 tile_k, i32 width,
                                                                       i32 element_bytes) {
  BackwardSlicedSm80Layout at = {};
  at.q = tile_k * width * element_bytes;
  at.v = at.q + tile_q * width * element_bytes;
  at.d_o = at.v + tile_k * width * element_bytes;
  at.p = at.d_o + tile_q * width * element_bytes;
  at.ds = at.p + tile_k * tile_q * element_bytes;
  at.stats = at.ds + tile_k * tile_q * element_bytes;
  at.bytes = at.stats + 2 * tile_q * 4;
  return at;
}

// A slice of Q, K, dO and V, `width` columns each; at the end the tile of dBias in the same room, its rows padded so
// that four of them lie in different banks.
MICA_HD constexpr i32 backward_bias_stride(i32 tile_k) { return tile_k + 8; }
struct BackwardBiasLayout {
  i32 k, d_o, v, bytes;
};
MICA_HD constexpr BackwardBiasLayout backward_bias_layout(i32 tile_q, i32 tile_k, i32 width, i32 element_bytes) {
  BackwardBiasLayout at = {};
  at.k = tile_q * width * element_bytes;
  at.d_o = at.k + tile_k * width * element_bytes;
  at.v = at.d_o + tile_q * width * element_bytes;
  at.bytes = max_of(at.v + tile_k * width * element_bytes, tile_q * backward_bias_stride(tile_k) * 4);
  return at;
}

}  // namespace mica
