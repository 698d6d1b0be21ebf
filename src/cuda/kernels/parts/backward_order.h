// SPDX-License-Identifier: Apache-2.0
// In which order backward's blocks take key tiles, where sums have a fixed order.
#pragma once

#include "core/types.h"

namespace mica {

// Blocks that share a key tile add to its dK and dV one after the other. Where they began together they would end
// together, and wait: all key tiles with the first part come before those with the second. Wider heads take the parts
// of a key tile together, since blocks set dQ's sums to zero some heads ahead.
MICA_HD constexpr bool backward_takes_parts_apart(i32 dim_qk) { return dim_qk <= 128; }
// Two floats have the same sum in either order, if nothing was there before.
constexpr i32 kEitherOrder = 2;

// Key tiles of a head that begin at different queries: nobody's first turn is at the end of a chain. A key tile goes
// through the steps of its head from its own place on, and then round to it; at every step the one that came by last
// adds after those that came before it. These are some of a head's key tiles, which run at the same time.
struct BackwardRound {
  i32 first, count;  // key tiles
  i32 span;          // steps in which they begin: some apart, so that a part has arrived when the next one is there

  MICA_HD static constexpr BackwardRound of(i32 key_tile, i32 round_tiles, i32 key_tiles, i32 steps) {
    constexpr i32 kStepsApart = 4;
    const i32 first = key_tile / round_tiles * round_tiles;
    const i32 left = key_tiles - first, count = left < round_tiles ? left : round_tiles;
    return {first, count, steps < kStepsApart * count ? steps : kStepsApart * count};
  }
  // Whether each begins two steps or more after the one before it: then nobody waits for what is released a step late.
  MICA_HD constexpr bool is_spread() const { return span >= 2 * count; }
  // The step with which a key tile begins.
  MICA_HD constexpr i32 begin(i32 key_tile) const { return (key_tile - first) * span / count; }
  // How many key tiles of the head add before this one in a step: first those that began there or shortly before it.
  MICA_HD constexpr i32 added_before(i32 key_tile, i32 step) const {
    const i32 newest = step >= span ? count - 1 : ((step + 1) * count - 1) / span;
    const i32 behind = newest - (key_tile - first);
    return first + (behind < 0 ? behind + count : behind);
  }
};

}  // namespace mica
