// SPDX-License-Identifier: Apache-2.0
// What the last block of a tile of decode_sm80 has in shared memory when it joins the splits.
#pragma once

#include "core/types.h"

namespace mica {

constexpr i32 kMostJoinedSplits = 32;  // a lane each

// O of the parts (splits, rows, dim_v), their LSE (rows, splits), and a softmax state of each row.
struct JoinedSplits {
  i32 lse, state, bytes;
};
MICA_HD constexpr JoinedSplits joined_splits(i32 num_splits, i32 rows, i32 dim_v) {
  JoinedSplits at = {};
  at.lse = num_splits * rows * dim_v * 4;
  at.state = at.lse + num_splits * rows * 4;
  at.bytes = round_up(at.state + rows * 8, 16);
  return at;
}

}  // namespace mica
