// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernel that joins two results of the same queries (base/backend.h, Parts).
#pragma once

#include "cuda/kernels/params.h"

namespace mica {

struct JoinParams {
  const void* part_o[2];     // (batch * rows, heads, dim), dense
  const float* part_lse[2];  // (heads, batch * rows)
  RowsArg o;
  float* lse;  // null: not asked for
  i64 lse_stride_batch, lse_stride_row, lse_stride_head;
  i32 batch, rows, heads, dim;
  i32 dtype;  // of o and its parts
};

}  // namespace mica
