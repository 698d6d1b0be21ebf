// SPDX-License-Identifier: Apache-2.0
// Who takes what in a backward pass: blocks for key tiles, for whole heads, or for parts of them.
#pragma once

#include "cuda/registry.h"

namespace mica {

constexpr i32 kMostQueryParts = 8;  // of a key tile

struct BackwardShare {
  i32 part_heads;   // query heads of a group that a block takes
  i32 head_parts;   // how many blocks that makes of a group
  i32 query_parts;  // blocks that have the same heads, and each some of the queries
  i32 parts() const { return head_parts * query_parts; }
};

// Whether dQ has the same bits in any order: it is summed in whole numbers (kernels/whole/dq_integers.h). Not where
// several calls add to it, which do not know one another's keys.
bool sums_integers(const KernelRow& row, const Problem& problem);
// Whether that gains: where several blocks share a key tile, in its turn each would wait for the one before it, but the
// keys have to be measured first (docs/design/tuning.md).
bool suits_integers(const KernelRow& row, const Problem& problem, const Device& device);
// What then decides who takes what: the problem without its order.
Problem without_order(const KernelRow& row, const Problem& problem);

// Of a kernel whose blocks take single key tiles; there are key_blocks of them. Heads of a group and queries are shared
// out together.
BackwardShare share_key_tiles(const KernelRow& row, const Problem& problem, const Device& device, i64 key_blocks,
                              i32 most_query_parts = kMostQueryParts);

// Whether parts of a key tile are not taken together: all key tiles with the first part come before those with the
// second (BackwardMapsParams::by_parts then divides by the number of key tiles).
bool takes_parts_apart(const KernelRow& row, const Problem& problem);

// Heads whose key tiles such blocks take together (BackwardParams::section_heads).
i32 section_heads(const KernelRow& row, const Problem& problem, const Device& device, i32 parts);
// In a fixed order without a mask: key tiles of a head that begin at different queries and wait for one another, which
// takes a launch whose blocks all run at once (BackwardMapsParams::round_tiles). 0: a chain costs less.
i32 round_tiles(const KernelRow& row, const Problem& problem, const Device& device);
// Heads at the end whose key tiles are taken the longest first (BackwardParams::last_heads).
i32 last_heads(const KernelRow& row, const Problem& problem, const Device& device, const BackwardShare& share);

// Of a kernel whose blocks take whole heads.
BackwardShare share_heads(const KernelRow& row, const Problem& problem, const Device& device);

// Packed keys: whether blocks take the sequences from the longest on, and of how many items at the end all heads' first
// key tiles come first (BackwardMapsParams::tail_items). < 0: they take them as they lie.
i32 packed_tail(const KernelRow& row, const Problem& problem, const Device& device);

// Key heads whose part of dQ's accumulator the preparation sets to zero; the others' is left to the blocks that come so
// many heads before (BackwardMapsParams::clears_ahead). 0: all of it.
i32 clears_ahead(const KernelRow& row, const Problem& problem, const Device& device, const BackwardParams& params,
                 i32 parts);

// Whether blocks count when their dQ is done, so that a head's is converted while others are still at work
// (BackwardMapsParams::heads_done).
bool counts_heads(const KernelRow& row, const Problem& problem);

// Whether the block that comes first to a tile of dQ stores its part (BackwardMapsParams::dq_turns), and nobody writes
// zeros.
bool stores_dq_first(const KernelRow& row, const Problem& problem);

// Why a kernel whose blocks take whole heads should not run this; "": it should.
const char* why_not_whole_heads(const KernelRow& row, const Problem& problem, const Device& device);

}  // namespace mica
