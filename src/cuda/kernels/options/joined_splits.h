// SPDX-License-Identifier: Apache-2.0
// Which kernels of decode_sm80 can join splits in the last block of a tile (split_joiner.cuh), and what that block has
// in shared memory.
#pragma once

#include "core/types.h"

namespace mica {

constexpr i32 kMostJoinedSplits = 16;
// Those with few options; 256 columns are slower by it, with any number of splits.
MICA_HD constexpr bool joins_splits(bool serves_all, i32 dim_qk) { return !serves_all && dim_qk <= 128; }

// O of the parts (splits, rows, dim_v), their LSE (rows, splits), a softmax state of each row, and which row it is.
struct JoinedSplits {
  i32 lse, state, row, bytes;
};
MICA_HD constexpr JoinedSplits joined_splits(i32 num_splits, i32 rows, i32 dim_v) {
  JoinedSplits at = {};
  at.lse = num_splits * rows * dim_v * 4;
  at.state = at.lse + round_up(num_splits * rows * 4, 16);
  at.row = at.state + rows * 8;
  at.bytes = round_up(at.row + rows * 8, 16);
  return at;
}

}  // namespace mica
