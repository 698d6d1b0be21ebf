// SPDX-License-Identifier: Apache-2.0
// In which order backward's blocks take key tiles, where sums have a fixed order.
#pragma once

#include "core/types.h"

namespace mica {

// Blocks that share a key tile add to its dK and dV one after the other. Where they began together they would end
// together, and wait: all key tiles with the first part come before those with the second. Wider heads take the parts
// of a key tile together, since blocks set dQ's sums to zero some heads ahead.
MICA_HD constexpr bool backward_takes_parts_apart(i32 dim_qk) { return dim_qk <= 128; }

}  // namespace mica
