// SPDX-License-Identifier: Apache-2.0
// What the host and forward_sm90 agree on about packed sequences, and how query tiles are dealt out.
#pragma once

#include "core/types.h"

namespace mica {

// The next query tile is drawn so many key tiles before this one's last is asked for: late, since whoever is free first
// should get it, but early enough for its Q and first keys to be there in time.
constexpr i32 kDrawnAhead = 3;

// ForwardParams::packed_q where sequences are of about one length: query tiles are numbered as if all were as long as
// the longest is said to be, so that nobody searches for them.
constexpr i32 kPackedEvenly = 2;

// MappedRows::rows of packed sequences whose boxes end with them, past which the copy engine brings zeros and writes
// nothing. Slot s of the map are the box_rows rows from row s on: a box of n rows from row r on begins at row
// box_rows - n of slot r + n - box_rows, if there are as many rows before it.
constexpr i64 kCutRows = 0;

// Which rows of kernels.def know of that.
MICA_HD constexpr bool forward_sm90_cuts(u32 served, i32 cluster) { return served == 0 && cluster == 0; }

// Of the features that a row of forward_sm90 has, blocks in pairs do without joined heads.
MICA_HD constexpr u32 forward_sm90_features(u32 features, u32 joined_heads, i32 cluster) {
  return cluster > 0 ? features & ~joined_heads : features;
}

}  // namespace mica
