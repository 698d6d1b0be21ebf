// SPDX-License-Identifier: Apache-2.0
// Shared memory of the kernels for Hopper: where each tile, item of work and barrier lies, in bytes, and how much a
// block takes in all. The host asks for `bytes`, the kernel puts its tiles where the layout says. The first tile begins
// at 0; tiles are whole panels of 128-byte rows.
#pragma once

#include "core/types.h"
#include "cuda/kernels/parts/layouts_sm80.h"

namespace mica {

constexpr i32 kBarrierBytes = 8;
// Of a ring: a full and an empty barrier for each stage.
MICA_HD constexpr i32 ring_bytes(i32 stages) { return 2 * stages * kBarrierBytes; }

// Most bytes of dynamic shared memory that each of some blocks on an SM of Hopper can have; 1 KB of it is the system's.
MICA_HD constexpr i32 hopper_smem_bytes(i32 blocks) { return 228 * 1024 / blocks / 128 * 128 - 1024; }

// An announced item of work (ForwardWorkSm90), and the ring of two of them.
MICA_HD constexpr i32 forward_sm90_item_bytes(i32 tile_q) { return 32 + tile_q / 64 * 16 + 64; }
MICA_HD constexpr i32 forward_sm90_work_bytes(i32 tile_q) {
  return ring_bytes(2) + 2 * forward_sm90_item_bytes(tile_q);
}

// Packed sequences whose lengths are read before the kernel before is done, of queries and of keys.
constexpr i32 kSequencesAhead = 32;
MICA_HD constexpr i32 forward_sm90_lengths_bytes() { return 2 * (kSequencesAhead + 1) * 4; }

// Q in one slot or, where there is room, in two, so that the next tile's is there before this one's is done with;
// `stages` of K and of V. O leaves through the slot of its Q, or where there is one slot and a little room besides,
// through that, some panels at a time. Announced work; the rings of K, of V and of Q, which has a stage for each
// consumer in each slot; a barrier for a tile that must be looked at before it is announced, one that says that the
// next may be drawn, and two that say that an item is what it was taken for; the lengths by which the first was found.
struct ForwardSm90Layout {
  i32 q_slots, o_panels;
  i32 k, v, o, work, k_ring, v_ring, q_ring, landed, nearly_done, confirmed, lengths, bytes;
};
MICA_HD constexpr ForwardSm90Layout forward_sm90_layout(i32 tile_q, i32 tile_k, i32 dim_qk, i32 dim_v, i32 stages,
                                                        i32 blocks) {
  const i32 consumers = tile_q / 64, o_panel = tile_q * 128;
  const i32 q_bytes = tile_q * round_up(dim_qk, 64) * 2, k_bytes = stages * tile_k * round_up(dim_qk, 64) * 2,
            v_bytes = stages * tile_k * round_up(dim_v, 64) * 2;
  const i32 fixed = k_bytes + v_bytes + forward_sm90_work_bytes(tile_q) + 2 * ring_bytes(stages) + 4 * kBarrierBytes +
                    forward_sm90_lengths_bytes();
  const i32 slot = q_bytes + ring_bytes(consumers), left = hopper_smem_bytes(blocks) - fixed - slot;
  ForwardSm90Layout at = {};
  at.q_slots = left >= slot ? 2 : 1;
  at.o_panels = left >= slot ? 0 : left >= o_panel ? min_of(left / o_panel, round_up(dim_v, 64) / 64) : 0;
  at.k = at.q_slots * q_bytes;
  at.v = at.k + k_bytes;
  at.o = at.v + v_bytes;
  at.work = at.o + at.o_panels * o_panel;
  at.k_ring = at.work + forward_sm90_work_bytes(tile_q);
  at.v_ring = at.k_ring + ring_bytes(stages);
  at.q_ring = at.v_ring + ring_bytes(stages);
  at.landed = at.q_ring + ring_bytes(consumers * at.q_slots);
  at.nearly_done = at.landed + kBarrierBytes;
  at.confirmed = at.nearly_done + kBarrierBytes;
  at.lengths = at.confirmed + 2 * kBarrierBytes;
  at.bytes = at.lengths + forward_sm90_lengths_bytes();
  return at;
}

// One or two slots of Q, `stages` of K, two of V as it arrives, `stages` of V^T; announced work; the rings of K, of
// V^T, of V and of Q. An element is a byte.
struct ForwardFp8Sm90Layout {
  i32 q_slots;
  i32 k, v, vt, work, k_ring, vt_ring, v_ring, q_ring, nearly_done, bytes;
};
MICA_HD constexpr ForwardFp8Sm90Layout forward_fp8_sm90_layout(i32 tile_q, i32 tile_k, i32 dim_qk, i32 dim_v,
                                                               i32 stages) {
  ForwardFp8Sm90Layout at = {};
  at.q_slots = dim_qk > 128 ? 1 : 2;
  at.k = at.q_slots * tile_q * round_up(dim_qk, 128);
  at.v = at.k + stages * tile_k * round_up(dim_qk, 128);
  at.vt = at.v + 2 * tile_k * round_up(dim_v, 128);
  at.work = at.vt + stages * tile_k * dim_v;
  at.k_ring = at.work + forward_sm90_work_bytes(tile_q);
  at.vt_ring = at.k_ring + ring_bytes(stages);
  at.v_ring = at.vt_ring + ring_bytes(stages);
  at.q_ring = at.v_ring + ring_bytes(2);
  at.nearly_done = at.q_ring + ring_bytes(tile_q / 64 * at.q_slots);
  at.bytes = at.nearly_done + kBarrierBytes;
  return at;
}

// Q, through whose room O leaves; `stages` of K and of V; their rings.
struct ForwardWideSm90Layout {
  i32 k, v, k_ring, v_ring, bytes;
};
MICA_HD constexpr ForwardWideSm90Layout forward_wide_sm90_layout(i32 tile_q, i32 tile_k, i32 dim_qk, i32 dim_v,
                                                                 i32 stages) {
  ForwardWideSm90Layout at = {};
  at.k = tile_q * max_of(dim_qk, dim_v) * 2;
  at.v = at.k + stages * tile_k * dim_qk * 2;
  at.k_ring = at.v + stages * tile_k * dim_v * 2;
  at.v_ring = at.k_ring + ring_bytes(stages);
  at.bytes = at.v_ring + ring_bytes(stages);
  return at;
}

// Q; for each of the warpgroups that share out the keys, or the rows, `stages` of K and of V; for each a ring of K and
// one of V. At the end the partial results in the same room: of each warpgroup, or of rows that each has.
struct DecodeSm90Layout {
  i32 tiles;        // of the first warpgroup
  i32 group_v;      // of V within the tiles of a warpgroup, which begin with K
  i32 group_bytes;  // of the tiles of a warpgroup
  i32 rings, bytes;
};
MICA_HD constexpr DecodeSm90Layout decode_sm90_layout(i32 tile_q, i32 tile_k, i32 dim_qk, i32 dim_v, i32 warps,
                                                      i32 stages) {
  const i32 groups = warps / 4 - 1;
  DecodeSm90Layout at = {};
  at.tiles = tile_q * dim_qk * 2;
  at.group_v = stages * tile_k * dim_qk * 2;
  at.group_bytes = at.group_v + stages * tile_k * dim_v * 2;
  at.rings = at.tiles + groups * at.group_bytes;
  const i32 parts = tile_q > 64 ? 1 : groups;
  at.bytes = max_of(at.rings + groups * 2 * ring_bytes(stages), decode_parts_bytes(parts, tile_q, dim_v));
  return at;
}

// Q, then `stages` of K, a tile of P, and for each stage a barrier for every two panels of V, for the rest and for each
// half; then three floats a row. At the end the result takes K's room.
struct MlaSm90Layout {
  i32 k, p, barriers, row_floats, bytes;
};
MICA_HD constexpr MlaSm90Layout mla_sm90_layout(i32 tile_q, i32 tile_k, i32 dim_qk, i32 dim_v, i32 stages) {
  MlaSm90Layout at = {};
  at.k = tile_q * dim_qk * 2;
  at.p = at.k + stages * tile_k * dim_qk * 2;
  at.barriers = at.p + tile_q * tile_k * 2;
  at.row_floats = at.barriers + round_up(stages * (dim_v / 128 + 3) * kBarrierBytes, 16);
  at.bytes = at.row_floats + 3 * tile_q * 4;
  return at;
}

// K, V; `stages` of Q and of dO; two tiles of dS; dQ; the rings of the stages and of dQ; for each stage the statistics
// of its queries and what its pairs bring, `pair_bits` each: 16 of a bias or mask, 1 of dropout.
struct BackwardSm90Layout {
  i32 v, q, d_o, ds, dq, ring, dq_ring, stats, pairs, bytes;
};
MICA_HD constexpr BackwardSm90Layout backward_sm90_layout(i32 tile_q, i32 tile_k, i32 dim_qk, i32 dim_v, i32 stages,
                                                          i32 pair_bits) {
  const i32 panels_qk = round_up(dim_qk, 64), panels_v = round_up(dim_v, 64);
  BackwardSm90Layout at = {};
  at.v = tile_k * panels_qk * 2;
  at.q = at.v + tile_k * panels_v * 2;
  at.d_o = at.q + stages * tile_q * panels_qk * 2;
  at.ds = at.d_o + stages * tile_q * panels_v * 2;
  at.dq = at.ds + 2 * tile_q * tile_k * 2;
  at.ring = at.dq + tile_q * dim_qk * 4;
  at.dq_ring = at.ring + ring_bytes(stages);
  at.stats = at.dq_ring + ring_bytes(1);
  at.pairs = at.stats + stages * 2 * tile_q * 4;
  at.bytes = at.pairs + stages * tile_q * tile_k * pair_bits / 8;
  return at;
}

// K, V; `stages` of Q; two of dO; two tiles of dS; two stages of row statistics and their selectors (compute-sanitizer
// takes a wgmma's operand for whole even where its strides are zero: dQ lies behind them); dQ; the rings of Q, dO, dS
// and dQ (a stage for each consumer); then barriers for K and V there and free, for dQ settled, and for each stage of Q
// and dO landed.
struct BackwardTmaSm90Layout {
  i32 v, q, d_o, ds, stats, selectors, dq, ring, do_ring, ds_ring, dq_ring, keys_full, keys_empty, values, dq_settled,
      landed, do_landed, work, bytes;
};
constexpr i32 kStatRowBytes = 16;  // a row's statistics, as columns of products (device/stat_rows_sm90.cuh)
// Whether they are that: where a tile has many rows (docs/design/tuning.md). A softcap is of scores without them.
MICA_HD constexpr bool backward_has_stat_columns(i32 tile_q, bool is_plain) { return is_plain && tile_q > 64; }
MICA_HD constexpr u32 backward_tma_sm90_item_bytes() { return 96; }  // a key tile, as it is announced
MICA_HD constexpr BackwardTmaSm90Layout backward_tma_sm90_layout(i32 tile_q, i32 tile_k, i32 dim_qk, i32 dim_v,
                                                                 i32 stages, bool draws) {
  const i32 panels_qk = round_up(dim_qk, 64), panels_v = round_up(dim_v, 64);
  BackwardTmaSm90Layout at = {};
  at.v = tile_k * panels_qk * 2;
  at.q = at.v + tile_k * panels_v * 2;
  at.d_o = at.q + stages * tile_q * panels_qk * 2;
  at.ds = at.d_o + 2 * tile_q * panels_v * 2;
  at.stats = at.ds + 2 * tile_q * tile_k * 2;
  at.selectors = at.stats + 2 * tile_q * kStatRowBytes;
  at.dq = at.selectors + 2 * 8 * kStatRowBytes;
  at.ring = at.dq + tile_q * dim_qk * 4;
  at.do_ring = at.ring + ring_bytes(stages);
  at.ds_ring = at.do_ring + ring_bytes(2);
  at.dq_ring = at.ds_ring + ring_bytes(2);
  at.keys_full = at.dq_ring + ring_bytes(2);
  at.keys_empty = at.keys_full + kBarrierBytes;
  at.values = at.keys_empty + kBarrierBytes;
  at.dq_settled = at.values + 4 * kBarrierBytes;
  at.landed = at.dq_settled + kBarrierBytes;
  at.do_landed = at.landed + stages * kBarrierBytes;
  at.work = round_up(at.do_landed + 2 * kBarrierBytes, 16);
  at.bytes = at.work + (draws ? ring_bytes(2) + 2 * i32(backward_tma_sm90_item_bytes()) : 0);
  return at;
}
// Its dQ lies transposed in the accumulator where the queries of a tile are no rows of wgmma's.
MICA_HD constexpr bool backward_transposes_dq(i32 tile_q) { return tile_q % 64 != 0; }

// K, V; `stages` of Q; dO, in two stages where there is room; two tiles of P and of dS; the rings of Q and of dO;
// barriers for K and V, for each stage of dO and of Q landed, and two for the order in which blocks add dQ; the
// statistics of each stage.
struct BackwardHalvesSm90Layout {
  i32 do_stages;
  i32 v, q, d_o, p, ds, ring, do_ring, keys_full, do_landed, q_landed, dq_open, dq_added, stats, bytes;
};
MICA_HD constexpr BackwardHalvesSm90Layout backward_halves_sm90_layout(i32 tile_q, i32 tile_k, i32 dim_qk, i32 dim_v,
                                                                       i32 stages) {
  BackwardHalvesSm90Layout at = {};
  for (at.do_stages = 2; at.do_stages > 0; --at.do_stages) {
    at.v = tile_k * dim_qk * 2;
    at.q = at.v + tile_k * dim_v * 2;
    at.d_o = at.q + stages * tile_q * dim_qk * 2;
    at.p = at.d_o + at.do_stages * tile_q * dim_v * 2;
    at.ds = at.p + 2 * tile_k * tile_q * 2;
    at.ring = at.ds + 2 * tile_k * tile_q * 2;
    at.do_ring = at.ring + ring_bytes(stages);
    at.keys_full = at.do_ring + ring_bytes(at.do_stages);
    at.do_landed = at.keys_full + kBarrierBytes;
    at.q_landed = at.do_landed + at.do_stages * kBarrierBytes;
    at.dq_open = at.q_landed + stages * kBarrierBytes;
    at.dq_added = at.dq_open + kBarrierBytes;
    at.stats = at.dq_added + kBarrierBytes;
    at.bytes = at.stats + stages * 2 * tile_q * 4;
    if (at.bytes <= hopper_smem_bytes(1)) break;
  }
  return at;
}
// Behind it come the factors of a tile's rows, by which dQ becomes whole numbers.
MICA_HD constexpr i32 backward_halves_factor_bytes(i32 tile_q) { return tile_q * 4; }
// A key tile's semaphores, for dK and dV of each warp.
MICA_HD constexpr i32 backward_halves_places(i32 consumers) { return 2 * 4 * consumers; }

}  // namespace mica
