// SPDX-License-Identifier: Apache-2.0
// Backward by the copy engine: where blocks draw key tiles, how K, V and dQ of heads lie that are no whole panels of 64
// columns; which rows of a tile are few; where row statistics are columns of the products.
#pragma once

#include "cuda/kernels/parts/layouts_sm90.h"

namespace mica {

// The variants of a row whose blocks draw key tiles: they begin at their own diagonals and go round; dQ, and dK and dV
// where more than two blocks share them, are summed in whole numbers (dq_integers.h); or both.
constexpr i32 kRoundVariant = 1, kIntegersVariant = 2;

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

// Where V and the factors of rows lie, and how much a block takes in all. V that goes on to registers has plain rows
// behind everything else, free for the next key tile once it is taken, and dK and dV leave by the rows where it would
// lie otherwise. Factors, by which rows of dQ become whole numbers, are kept until dQ of their step is handed over, a
// step later: in four stages. Row statistics that are no columns leave room for them.
constexpr i32 kFactorStages = 4;
struct BackwardRoom {
  i32 v, factors, bytes;
};
MICA_HD constexpr BackwardRoom backward_room(const BackwardTmaSm90Layout& at, bool has_factors, bool has_stat_columns,
                                             bool holds_values, i32 tile_q, i32 tile_k, i32 dim_v) {
  constexpr i32 kBoxAlignment = 128;
  BackwardRoom room = {at.v, at.stats + 2 * 2 * tile_q * i32(sizeof(float)), at.bytes};
  if (has_factors && has_stat_columns) {
    room.factors = round_up(room.bytes, 16);
    // Where dQ lies transposed, its rows are scaled before, and one factor is left for all of them.
    room.bytes = room.factors + (backward_transposes_dq(tile_q) ? 1 : kFactorStages * tile_q) * i32(sizeof(float));
  }
  if (holds_values) {
    room.v = round_up(room.bytes, kBoxAlignment);
    room.bytes = room.v + tile_k * dim_v * 2;
  }
  return room;
}
static_assert(kFactorStages * sizeof(float) + 2 * 2 * sizeof(float) <= 2 * kStatRowBytes, "they fit behind them");

}  // namespace mica
