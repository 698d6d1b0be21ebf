// SPDX-License-Identifier: Apache-2.0
// Dropout of a row of probabilities; the bits are those of core/random.h.
#pragma once

#include "core/random.h"
#include "cpu/isa.h"
#include "cpu/vector.h"

namespace MICA_NS {

// row: count values of row i for keys from j_begin on. The dropped become 0. head_index = batch * heads_q + head.
inline void drop_row(const PhiloxKey& key, u32 threshold, u32 head_index, i32 i, i32 j_begin, float* row, i32 count) {
  for (i32 c = 0; c < count; ++c)
    if (!is_kept(key, threshold, head_index, u32(i), u32(j_begin + c))) row[c] = 0;
}

}  // namespace MICA_NS
