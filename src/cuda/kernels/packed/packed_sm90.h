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

// Packed sequences to the copy engine: slots of MappedRows::rows rows, one from each row of the tensor on. A sequence
// that ends with a slot is its last rows: past them the engine brings zeros and writes nothing. Before the first slot's
// end sequences end in it: their last boxes reach into the next one. (A map must begin within its tensor.)
//
// Which rows of kernels.def know of that.
MICA_HD constexpr bool forward_sm90_cuts(u32 served, i32 cluster) { return served == 0 && cluster == 0; }

// Of the features that a row of forward_sm90 has, blocks in pairs do without joined heads.
MICA_HD constexpr u32 forward_sm90_features(u32 features, u32 joined_heads, i32 cluster) {
  return cluster > 0 ? features & ~joined_heads : features;
}

}  // namespace mica
