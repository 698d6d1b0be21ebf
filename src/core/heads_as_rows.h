// SPDX-License-Identifier: Apache-2.0
// The query heads that share a key head, as further rows of one head: where nothing tells heads or rows apart, a
// forward kernel then reads keys and values once for all of them.
#pragma once

#include "core/mask.h"

namespace mica {

// Whether every row sees every key in use.
inline bool sees_all_keys(const Problem& p) {
  const bool last_row_alone = p.max_len_q == 1 && p.bottom_right && p.shift == 0;
  return p.chunk == 0 && p.window_left >= kUnlimited && (p.window_right >= kUnlimited || last_row_alone);
}

// Whether nothing but the band tells the rows of a group's heads apart.
inline bool treats_rows_alike(const Problem& p) {
  constexpr u32 kOfKeys = MICA_SEQUSED_K | MICA_CACHE_BATCH_IDX | MICA_CACHE_LEFTPAD;
  return (p.vectors & ~kOfKeys) == 0 && p.rotary_dim == 0 && !p.sinks.dtype && !p.alibi.dtype && !p.bias.dtype &&
         !p.boolean.dtype && !p.probs.dtype && p.dropout == 0;
}

// Makes one axis of a tensor's rows and the heads of a group: rows run first, or heads. Returns whether the strides
// allow it.
inline bool join_rows_and_heads(Tensor& t, int row_axis, int head_axis, const Problem& p, bool rows_first) {
  const i64 row = p.max_len_q == 1 ? t.stride[head_axis] : t.stride[row_axis], head = t.stride[head_axis];
  const bool is_one_axis =
      p.max_len_q == 1 || p.group == 1 || (rows_first ? head == p.max_len_q * row : row == p.group * head);
  t.shape[row_axis] = i64(p.max_len_q) * p.group;
  t.shape[head_axis] = p.heads_k;
  t.stride[row_axis] = rows_first || p.group == 1 ? row : head;
  t.stride[head_axis] = p.heads_k == 1 ? 0 : head * p.group;
  return is_one_axis;
}

inline bool join_rows_and_heads(const Problem& p, bool rows_first, Problem& joined) {
  joined = p;
  return join_rows_and_heads(joined.q, 1, 2, p, rows_first) && join_rows_and_heads(joined.o, 1, 2, p, rows_first);
}
inline bool join_lse(const Problem& p, bool rows_first, Problem& joined) {
  return !p.lse.dtype || join_rows_and_heads(joined.lse, 2, 1, p, rows_first);
}

// What the joined problem counts.
inline void count_joined_rows(const Problem& p, Problem& joined) {
  joined.heads_q = p.heads_k;
  joined.group = 1;
  joined.max_len_q = joined.hint_len_q = p.max_len_q * p.group;
  joined.total_q = i64(p.batch) * joined.max_len_q;
  joined.causal = 0;
}

// The problem with all query heads of a key head as rows of one. False if it would not be the same. lse_heads: heads of
// the LSE that are rows of a joined head; 1: its joined strides say where they are. Otherwise rows run within heads in
// the LSE but not in q: it keeps its shape, and the joined row r of head h is its row r / lse_heads of head
// h * lse_heads + r % lse_heads.
inline bool heads_as_rows(const Problem& p, Problem& joined, i32& lse_heads) {
  if (p.pass != MICA_FORWARD || !treats_rows_alike(p) || !sees_all_keys(p)) return false;
  lse_heads = 1;
  const bool is_joined = (join_rows_and_heads(p, true, joined) && join_lse(p, true, joined)) ||
                         (join_rows_and_heads(p, false, joined) && join_lse(p, false, joined));
  if (!is_joined) {
    if (!join_rows_and_heads(p, false, joined)) return false;
    lse_heads = p.group;
  }
  count_joined_rows(p, joined);
  joined.bottom_right = joined.shift = 0;
  joined.window_right = kUnlimited;
  return true;
}

// How joined rows come by the copy engine, 64 at a time or fewer: in boxes of whole groups of heads, or of an equal
// part of one. Boxes of less than eight rows would not begin where the swizzle does.
struct JoinedBoxes {
  i32 rows, rows_of_box;
};
constexpr i32 kBoxRows = 64;
inline JoinedBoxes joined_boxes(i32 group) {
  constexpr i32 kLeastRows = 8;
  if (group <= 0) return {};
  const i32 common = min_of(group & -group, kBoxRows);  // what both are multiples of: kBoxRows is a power of two
  if (common == group || common == kBoxRows) return {kBoxRows, kBoxRows};
  if (common >= kLeastRows) return {kBoxRows, common};
  i32 rows = group < kBoxRows ? kBoxRows / group * group : kBoxRows;
  while (group > kBoxRows && group % rows != 0) --rows;
  return {rows, rows};
}

// The same by boxes of some heads times some rows, which the copy engine takes from tensors of any strides: under a
// band, too, and where the rows of several key heads' groups alternate.
inline bool heads_in_boxes(const Problem& p, Problem& joined) {
  const i32 rows = joined_boxes(p.group).rows;
  if (p.pass != MICA_FORWARD || !treats_rows_alike(p) || p.group == 1 || 2 * rows < kBoxRows) return false;
  joined = p;
  count_joined_rows(p, joined);
  joined.joined_heads = p.group;
  joined.joined_rows = rows;
  // The last of all rows stands where the last query did.
  if (p.bottom_right) joined.shift += joined.max_len_q - p.max_len_q;
  return true;
}

// Rows of a tile of tile_q, which boxes need not fill.
inline i32 joined_tile(i32 tile_q, const Problem& p) {
  return p.joined_heads > 0 ? tile_q / kBoxRows * p.joined_rows : tile_q;
}

}  // namespace mica
