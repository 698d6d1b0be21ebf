// SPDX-License-Identifier: Apache-2.0
// Shared memory of forward_fp8_sm90, whose blocks may come in pairs.
#pragma once

#include "cuda/kernels/parts/layouts_sm90.h"

namespace mica {

// Key tiles whose products the tensor cores add to an O of 256 columns before it goes to sums in fp32
// (Fp8KeptSums), and the bytes of these for a block.
constexpr i32 kFp8KeptTiles = 32;
MICA_HD constexpr i32 fp8_kept_bytes(i32 tile_q, i32 dim_v) {
  return dim_v == 256 ? tile_q * dim_v * i32(sizeof(float)) : 0;
}

// The rows' references of Fp8KeptSums. A block of a pair fetches half of V's columns, so that its room has twice as
// many stages, whose ring is at the end, and room for messages (forward_work_sm90.cuh) after it.
struct ForwardFp8PairsSm90Layout : ForwardFp8Sm90Layout {
  i32 landings, references, mail;
};
MICA_HD constexpr ForwardFp8PairsSm90Layout forward_fp8_pairs_sm90_layout(i32 tile_q, i32 tile_k, i32 dim_qk, i32 dim_v,
                                                                          i32 stages, i32 cluster) {
  ForwardFp8PairsSm90Layout at = {forward_fp8_sm90_layout(tile_q, tile_k, dim_qk, dim_v, stages), 2, 0, 0};
  at.references = at.bytes;
  if (dim_v == 256) at.bytes += tile_q * i32(sizeof(float));
  if (cluster == 2) {
    at.landings = 4;
    at.v_ring = at.bytes;
    at.mail = at.v_ring + ring_bytes(at.landings);
    at.bytes = at.mail + forward_sm90_lengths_bytes();
  }
  return at;
}

}  // namespace mica
