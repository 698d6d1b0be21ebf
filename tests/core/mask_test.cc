// SPDX-License-Identifier: Apache-2.0
// Every band over small lengths, against visibility written pair by pair from the definition in mica.h.
#include "core/mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/thin.h"

namespace {

constexpr int kUnlimited = 1 << 29;
constexpr int kMaxLength = 9;

// Lengths in steps: what is left out lies between two that are tried.
int length_step() { return is_thin() ? 3 : 1; }

bool visible_by_definition(const mica::Band& m, int64_t i, int64_t j) {
  const auto chunk_of = [&](int64_t position) { return std::floor(double(position) / m.chunk); };
  const bool in_chunk = m.chunk == 0 || chunk_of(i + m.row_origin) == chunk_of(j + m.key_origin);
  return i >= 0 && i < m.len_q && j >= 0 && j < m.len_k && j >= i + m.shift - m.left && j <= i + m.shift + m.right &&
         in_chunk;
}

mica::Band make_band(int len_q, int len_k, bool bottom_right, int left, int right, int chunk = 0, int phase = 0) {
  mica::Problem p = {};
  p.bottom_right = bottom_right;
  p.window_left = left;
  p.window_right = right;
  p.chunk = chunk;
  if (chunk) p.by_chunk = mica::divisor_of(chunk);
  p.chunk_phase = phase;
  return mica::band_of(p, len_q, len_k);
}

template <class Visit>
void for_every_band(Visit visit) {
  const int windows[] = {0, 1, 2, 3, 5, 8, 12, kUnlimited};
  for (int len_q = 0; len_q <= kMaxLength; len_q += length_step())
    for (int len_k = 0; len_k <= kMaxLength; len_k += length_step())
      for (const bool bottom_right : {false, true})
        for (const int left : windows)
          for (const int right : windows) visit(make_band(len_q, len_k, bottom_right, left, right));
}

template <class Visit>
void for_every_chunked_band(Visit visit) {
  const int windows[] = {0, 2, 5, kUnlimited};
  for (int len_q = 0; len_q <= kMaxLength; len_q += 1 + len_q / 3)
    for (int len_k = 0; len_k <= kMaxLength; len_k += 1 + len_k / 3)
      for (const bool bottom_right : {false, true})
        for (const int left : windows)
          for (const int right : windows)
            for (const int chunk : {1, 2, 3, 4, 7, 100})
              for (int phase = 0; phase < chunk; phase += 1 + chunk / 3)
                visit(make_band(len_q, len_k, bottom_right, left, right, chunk, phase));
}

std::string text_of(const mica::Band& m) {
  return "len_q " + std::to_string(m.len_q) + " len_k " + std::to_string(m.len_k) + " shift " +
         std::to_string(m.shift) + " left " + std::to_string(m.left) + " right " + std::to_string(m.right) + " chunk " +
         std::to_string(m.chunk) + " from " + std::to_string(m.key_origin);
}

// Of a band, how many pairs are visible in a rectangle: sums over rows [0, i) and keys [0, j) are made once.
class VisiblePairs {
 public:
  explicit VisiblePairs(const mica::Band& m) : len_k_(m.len_k) {
    for (int i = 0; i < m.len_q; ++i)
      for (int j = 0; j < m.len_k; ++j)
        sums_[i + 1][j + 1] = sums_[i][j + 1] + sums_[i + 1][j] - sums_[i][j] + visible_by_definition(m, i, j);
  }
  // Rows [row_begin, row_end) and the keys of one tile; none is visible past the last key.
  int in_tile(int row_begin, int row_end, int tile, int tile_k) const {
    const int begin = std::min(tile * tile_k, len_k_), end = std::min((tile + 1) * tile_k, len_k_);
    return sums_[row_end][end] - sums_[row_begin][end] - sums_[row_end][begin] + sums_[row_begin][begin];
  }

 private:
  int len_k_;
  int sums_[kMaxLength + 1][kMaxLength + 1] = {};
};

void check_tiles(const mica::Band& m) {
  const VisiblePairs visible(m);
  for (int row_begin = 0; row_begin < m.len_q; ++row_begin)
    for (int row_end = row_begin + 1; row_end <= m.len_q; ++row_end)
      for (const int tile_k : {1, 2, 3, 4, 7, 16}) {
        const mica::TileRange t = mica::key_tiles(m, row_begin, row_end, tile_k);
        ASSERT_LE(t.begin, t.full_begin) << text_of(m);
        ASSERT_LE(t.full_begin, t.full_end) << text_of(m);
        ASSERT_LE(t.full_end, t.end) << text_of(m);
        for (int tile = 0; tile < kMaxLength + 2; ++tile) {
          const int pairs = visible.in_tile(row_begin, row_end, tile, tile_k);
          const bool touched = tile >= t.begin && tile < t.end;
          const bool full = tile >= t.full_begin && tile < t.full_end;
          // Not ASSERT_EQ, which takes most of the time where nothing is optimised.
          if (touched != (pairs > 0) || full != (pairs == (row_end - row_begin) * tile_k))
            FAIL() << text_of(m) << " rows " << row_begin << ".." << row_end << " tile_k " << tile_k << " tile " << tile
                   << ": touched " << touched << " full " << full << ", visible pairs " << pairs;
        }
      }
}

void check_pairs(const mica::Band& m) {
  const mica::Band t = mica::transpose(m);
  ASSERT_EQ(t.len_q, m.len_k);
  ASSERT_EQ(t.len_k, m.len_q);
  for (int i = -1; i <= m.len_q; ++i)
    for (int j = -1; j <= m.len_k; ++j) {
      ASSERT_EQ(mica::is_visible(m, i, j), visible_by_definition(m, i, j)) << text_of(m) << " pair " << i << ',' << j;
      ASSERT_EQ(mica::is_visible(t, j, i), visible_by_definition(m, i, j)) << text_of(m) << " pair " << i << ',' << j;
    }
}

TEST(Mask, EveryPairAndItsTransposedOne) {
  for_every_band(check_pairs);
  for_every_chunked_band(check_pairs);
}

void check_rows(const mica::Band& m) {
  for (int i = 0; i < m.len_q; ++i) {
    const mica::Range keys = mica::keys_of_row(m, i);
    ASSERT_LE(0, keys.begin);
    ASSERT_LE(keys.begin, keys.end);
    ASSERT_LE(keys.end, m.len_k);
    for (int j = 0; j < m.len_k; ++j)
      ASSERT_EQ(j >= keys.begin && j < keys.end, visible_by_definition(m, i, j)) << text_of(m);
  }
}

TEST(Mask, RowRangesHoldExactlyTheVisibleKeys) {
  for_every_band(check_rows);
  for_every_chunked_band(check_rows);
}

// Touched is exactly "holds a visible pair", and full is exactly "every pair is visible".
TEST(Mask, TilesTouchedAndFull) {
  for_every_band(check_tiles);
  for_every_chunked_band(check_tiles);
}

// Backward walks the query tiles of a key tile: those of the transposed band.
TEST(Mask, TransposedTilesTouchedAndFull) {
  for_every_band([](const mica::Band& m) { check_tiles(mica::transpose(m)); });
  for_every_chunked_band([](const mica::Band& m) { check_tiles(mica::transpose(m)); });
}

// Lengths, windows and chunks up to 2^29: no sum leaves 32 bits (the sanitizer build would say so), and ranges stay
// exact.
TEST(Mask, NearTheLimits) {
  std::mt19937 random(1);
  const int64_t limit = kUnlimited;
  const auto near = [&](int64_t low) {
    const int64_t values[] = {low, low + 1, 63, 4096, limit / 2, limit - 1, limit};
    return int(values[random() % 7]);
  };
  for (int trial = 0; trial < 200000; ++trial) {
    const int chunk = random() % 2 ? near(1) : 0, phase = chunk ? int(random() % unsigned(chunk)) : 0;
    mica::Band m = make_band(near(1), near(0), random() % 2, near(0), near(0), chunk, phase);
    if (random() % 2) m = mica::transpose(m);
    if (m.len_q == 0) continue;
    const int rows[] = {0, m.len_q / 3, m.len_q / 2, m.len_q - 1};
    const int i = rows[random() % 4];
    int64_t begin = int64_t(i) + m.shift - m.left, end = int64_t(i) + m.shift + m.right + 1;
    if (m.chunk > 0) {
      const int64_t position = int64_t(i) + m.row_origin, past = (position % m.chunk + m.chunk) % m.chunk;
      begin = std::max(begin, position - past - m.key_origin);
      end = std::min(end, position - past - m.key_origin + m.chunk);
    }
    begin = std::clamp<int64_t>(begin, 0, m.len_k);
    end = std::clamp<int64_t>(end, begin, m.len_k);
    const mica::Range keys = mica::keys_of_row(m, i);
    ASSERT_EQ(keys.begin, begin) << text_of(m) << " row " << i;
    ASSERT_EQ(keys.end, end) << text_of(m) << " row " << i;
    const int tile_k = 1 << random() % 9;
    const int row_end = int(std::min<int64_t>(int64_t(i) + 128, m.len_q));
    const mica::TileRange t = mica::key_tiles(m, i, row_end, tile_k);
    ASSERT_LE(t.begin, t.full_begin);
    ASSERT_LE(t.full_begin, t.full_end);
    ASSERT_LE(t.full_end, t.end);
    ASSERT_LE(int64_t(t.end) * tile_k, int64_t(m.len_k) + tile_k - 1);
    for (const int row : {i, row_end - 1})
      for (const int64_t j :
           {int64_t(row) + m.shift - m.left, int64_t(row) + m.shift + m.right, int64_t(0), int64_t(m.len_k) - 1})
        if (visible_by_definition(m, row, j)) {
          ASSERT_LE(t.begin, j / tile_k);
          ASSERT_GT(t.end, j / tile_k);
        }
  }
}

}  // namespace
