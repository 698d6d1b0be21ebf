// SPDX-License-Identifier: Apache-2.0
// Whole numbers that were added two at a time, as the halves of one of 64 bits (pair_sums.cuh).
#pragma once

#include "core/types.h"

namespace mica {

struct PairOfIntegers {
  i32 first, second;
};
// Two sums of 32 bits with a sign, each by `offset` larger when it was added, of which the first has carried into the
// second.
MICA_HD PairOfIntegers integers_of_pair(u32 low, u32 high, u64 offset) {
  const i32 first = i32(low - u32(offset));
  const u64 carried = (u64(i64(first)) + offset) >> 32;
  return {first, i32(high - u32(carried) - u32(offset))};
}

}  // namespace mica
