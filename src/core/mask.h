// SPDX-License-Identifier: Apache-2.0
// Which pair (query, key) the diagonal band makes visible, which key tiles a query tile touches, and which of those
// need no test. Backward asks the same questions of the transposed band.
#pragma once

#include "core/problem.h"

namespace mica {

// A window that hides nothing (MICA_MAX_SEQLEN).
constexpr i32 kUnlimited = 1 << 29;

// Row i sees keys [i + shift - left, i + shift + right], cut to [0, len_k) and to its chunk: row i lies at position
// i + row_origin, key j at j + key_origin, and both positions are in the same chunk.
// Lengths, windows and chunks are at most 2^29 (MICA_MAX_SEQLEN) and a piece's own shift 2^28, so that no sum here
// leaves 32 bits.
struct Band {
  i32 len_q, len_k;
  i32 shift, left, right;
  i32 chunk;  // positions per chunk; 0: no chunks
  Divisor by_chunk;
  i32 row_origin, key_origin;
};

// Tile indices. [begin, end) are touched; of these, [full_begin, full_end) are visible in every pair.
struct TileRange {
  i32 begin, full_begin, full_end, end;
};

}  // namespace mica

namespace MICA_NS {

using mica::Band;
using mica::TileRange;

// P has bottom_right, shift, window_left, window_right, chunk, by_chunk and chunk_phase.
template <class P>
MICA_HD Band band_of(const P& p, i32 len_q, i32 len_k) {
  const i32 shift = p.shift + (p.bottom_right ? len_k - len_q : 0);
  return Band{len_q,        len_k, shift, p.window_left, p.window_right, p.chunk, p.by_chunk, p.chunk_phase + shift,
              p.chunk_phase};
}

// Whether the band hides any pair, whatever the lengths. P as above.
template <class P>
MICA_HD bool is_banded(const P& p) {
  return p.window_left < mica::kUnlimited || p.window_right < mica::kUnlimited || p.chunk > 0;
}

// The first key of row i's chunk; the chunk may begin before key 0.
MICA_HD i32 chunk_begin(const Band& m, i32 i) {
  return floor_div(i + m.row_origin, m.by_chunk) * m.chunk - m.key_origin;
}

MICA_HD Range keys_of_row(const Band& m, i32 i) {
  i32 begin = i + m.shift - m.left, end = i + m.shift + m.right + 1;
  if (m.chunk > 0) {
    const i32 first = chunk_begin(m, i);
    begin = max_of(begin, first);
    end = min_of(end, first + m.chunk);
  }
  begin = clamp_to(begin, 0, m.len_k);
  return Range{begin, clamp_to(end, begin, m.len_k)};
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
MICA_HD Band transpose(const Band& m) {
  return Band{m.len_k, m.len_q, -m.shift, m.right, m.left, m.chunk, m.by_chunk, m.key_origin, m.row_origin};
}

}  // namespace MICA_NS
