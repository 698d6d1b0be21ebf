// SPDX-License-Identifier: Apache-2.0
// Backward by the copy engine: where blocks draw key tiles, how K, V and dQ of heads lie that are no whole panels of 64
// columns; which rows of a tile are few; where row statistics are columns of the products.
#pragma once

#include "cuda/kernels/parts/layouts_sm90.h"

namespace mica {

// Columns in a panel of K. Two consumers make dQ of half of the columns each: a product's columns begin with a panel.
MICA_HD constexpr i32 backward_drawn_key_columns(i32 dim_qk) { return dim_qk % 64 == 0 ? 64 : dim_qk / 2; }

// Whether blocks of eight columns of dQ come one after the other in the accumulator, each with all rows (16 at a time,
// in the order of the fragments): the columns that somebody has are one piece of what a consumer adds. So it is with
// such heads, and where key tiles go round, whose lane that adds has little time.
MICA_HD constexpr bool backward_dq_lies_by_columns(i32 dim_qk, bool goes_round) {
  return dim_qk % 64 != 0 || (goes_round && dim_qk > 64);
}
MICA_HD constexpr i32 backward_dq_index_by_columns(i32 tile_q, i32 row_block, i32 column_block, i32 lane) {
  return ((column_block * (tile_q / 16) + row_block) * 32 + lane) * 4;
}

// Rows of a sequence's last query tile that are few: their step leaves the others out.
MICA_HD constexpr i32 backward_few_rows() { return 80; }

// Whether the row statistics are columns of the products: tiles of 64 queries gain by it where key tiles go round.
MICA_HD constexpr bool backward_row_has_stat_columns(i32 tile_q, bool is_plain, bool goes_round) {
  return goes_round || backward_has_stat_columns(tile_q, is_plain);
}

// Whether consumers keep V in registers, where these suffice: shared memory has less to deliver in every step.
MICA_HD constexpr bool backward_holds_values(bool draws, i32 dim_v) { return draws && dim_v == 96; }

// Where V lies, and how much a block takes in all. V that goes on to registers has plain rows behind everything else,
// free for the next key tile once it is taken, and dK and dV leave by the rows where it would lie otherwise.
struct BackwardValues {
  i32 v, bytes;
};
MICA_HD constexpr BackwardValues backward_values(const BackwardTmaSm90Layout& at, bool holds_values, i32 tile_k,
                                                 i32 dim_v) {
  constexpr i32 kBoxAlignment = 128;
  const i32 behind = round_up(at.bytes, kBoxAlignment);
  return holds_values ? BackwardValues{behind, behind + tile_k * dim_v * 2} : BackwardValues{at.v, at.bytes};
}

}  // namespace mica
