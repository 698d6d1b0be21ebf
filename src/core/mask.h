// SPDX-License-Identifier: Apache-2.0
// Which pair (query, key) the diagonal band makes visible, which key tiles a query tile touches, and which of those
// need no test. Backward asks the same questions of the transposed band.
#pragma once

#include "core/problem.h"

namespace mica {

// A window that hides nothing (MICA_MAX_SEQLEN).
constexpr i32 kUnlimited = 1 << 29;

// Row i sees keys [i + shift - left, i + shift + right], cut to [0, len_k).
// Lengths and windows are at most 2^29 (MICA_MAX_SEQLEN) and a piece's own shift 2^28, so that no sum here leaves 32
// bits.
struct Band {
  i32 len_q, len_k;
  i32 shift, left, right;
};

// Tile indices. [begin, end) are touched; of these, [full_begin, full_end) are visible in every pair.
struct TileRange {
  i32 begin, full_begin, full_end, end;
};

}  // namespace mica

namespace MICA_NS {

using mica::Band;
using mica::TileRange;

// P has bottom_right, shift, window_left and window_right.
template <class P>
MICA_HD Band band_of(const P& p, i32 len_q, i32 len_k) {
  return Band{len_q, len_k, p.shift + (p.bottom_right ? len_k - len_q : 0), p.window_left, p.window_right};
}

MICA_HD Range keys_of_row(const Band& m, i32 i) {
  const i32 begin = clamp_to(i + m.shift - m.left, 0, m.len_k);
  const i32 end = clamp_to(i + m.shift + m.right + 1, begin, m.len_k);
  return Range{begin, end};
}

MICA_HD bool is_visible(const Band& m, i32 i, i32 j) {
  const Range keys = keys_of_row(m, i);
  return i >= 0 && i < m.len_q && j >= keys.begin && j < keys.end;
}

// Keys that at least one of rows [row_begin, row_end) sees lie in this range (rows: not empty, inside len_q).
MICA_HD Range keys_of_any_row(const Band& m, i32 row_begin, i32 row_end) {
  const i32 begin = keys_of_row(m, row_begin).begin;
  const i32 end = keys_of_row(m, row_end - 1).end;
  return Range{begin, max_of(begin, end)};
}

// Keys that every one of these rows sees.
MICA_HD Range keys_of_every_row(const Band& m, i32 row_begin, i32 row_end) {
  const i32 begin = keys_of_row(m, row_end - 1).begin;
  const i32 end = keys_of_row(m, row_begin).end;
  return Range{begin, max_of(begin, end)};
}

MICA_HD TileRange key_tiles(const Band& m, i32 row_begin, i32 row_end, i32 tile_k) {
  const Range any = keys_of_any_row(m, row_begin, row_end);
  if (any.begin >= any.end) return TileRange{0, 0, 0, 0};
  const Range every = keys_of_every_row(m, row_begin, row_end);
  TileRange t;
  t.begin = any.begin / tile_k;
  t.end = ceil_div(any.end, tile_k);
  t.full_begin = clamp_to(ceil_div(every.begin, tile_k), t.begin, t.end);
  t.full_end = clamp_to(every.end / tile_k, t.full_begin, t.end);
  return t;
}

// The band seen from the keys: its "rows" are keys and its "keys" are queries.
MICA_HD Band transpose(const Band& m) { return Band{m.len_k, m.len_q, -m.shift, m.right, m.left}; }

}  // namespace MICA_NS
