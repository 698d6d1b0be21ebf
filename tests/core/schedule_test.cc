// SPDX-License-Identifier: Apache-2.0
#include "core/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <vector>

namespace {

TEST(Schedule, SplitsPartitionTheTiles) {
  for (int num_tiles = 0; num_tiles <= 70; ++num_tiles)
    for (int num_splits = 1; num_splits <= 20; ++num_splits)
      for (int length_tiles = 0; length_tiles <= 9; ++length_tiles) {
        const mica::Splits splits{num_splits, length_tiles};
        int next = 0;
        for (int split = 0; split < num_splits; ++split) {
          const mica::Range r = mica::split_tiles(splits, num_tiles, split);
          ASSERT_EQ(r.begin, next);
          ASSERT_LE(r.begin, r.end);
          if (length_tiles > 0) {
            ASSERT_LE(r.end - r.begin, length_tiles);
            // A split's place does not depend on how many tiles there are.
            if (r.begin < r.end) {
              ASSERT_EQ(r.begin, split * length_tiles);
            }
          } else {
            ASSERT_LE(r.end - r.begin, (num_tiles + num_splits - 1) / num_splits);
            ASSERT_GE(r.end - r.begin, num_tiles / num_splits);
          }
          next = r.end;
        }
        if (length_tiles == 0 || num_splits * length_tiles >= num_tiles) {
          ASSERT_EQ(next, num_tiles);
        }
      }
}

TEST(Schedule, SplitsOfTheLongestSequence) {
  const int num_tiles = 1 << 29;
  for (const int num_splits : {1, 3, 255, 256}) {
    int next = 0;
    for (int split = 0; split < num_splits; ++split) {
      const mica::Range r = mica::split_tiles(mica::Splits{num_splits, 0}, num_tiles, split);
      ASSERT_EQ(r.begin, next);
      next = r.end;
    }
    ASSERT_EQ(next, num_tiles);
  }
  const mica::Range past = mica::split_tiles(mica::Splits{256, INT_MAX}, num_tiles, 255);
  EXPECT_EQ(past.begin, num_tiles);
  EXPECT_EQ(past.end, num_tiles);
}

TEST(Schedule, ChosenSplitsKeepWorkersBusyWithWholePieces) {
  for (int work_items = 0; work_items <= 20; ++work_items)
    for (int num_tiles = 0; num_tiles <= 40; ++num_tiles)
      for (const int workers : {1, 2, 7, 16, 132})
        for (const int min_tiles : {0, 1, 4})
          for (const int max_splits : {1, 3, 128}) {
            const int fastest = mica::choose_fastest_splits(work_items, num_tiles, workers, min_tiles, max_splits, 4);
            const auto cost = [&](int s) {
              const int blocks = (work_items * s + workers - 1) / workers;
              return blocks * ((num_tiles + s - 1) / s + (s > 1 ? 8 : 4)) * 10 + (s > 1 ? s : 0);
            };
            ASSERT_GE(fastest, 1);
            ASSERT_LE(fastest, max_splits);
            if (fastest > 1) {
              ASSERT_GE(num_tiles, fastest * min_tiles);
            }
            for (int s = 1; s < fastest; ++s) ASSERT_LT(cost(fastest), cost(s));
            const int splits = mica::choose_splits(work_items, num_tiles, workers, min_tiles, max_splits);
            ASSERT_GE(splits, 1);
            ASSERT_LE(splits, max_splits);
            if (work_items >= workers) {
              ASSERT_EQ(splits, 1);
            }
            if (splits > 1) {
              ASSERT_GE(num_tiles, splits * min_tiles);
              ASSERT_LE(splits, num_tiles);
              ASSERT_LE(splits * work_items, workers);  // one wave
            }
          }
}

// Whoever is free takes the next block, the long ones first.
long long end_of(int workers, int long_blocks, int long_time, int short_blocks, int short_time) {
  std::priority_queue<long long, std::vector<long long>, std::greater<>> free_at;
  for (int worker = 0; worker < workers; ++worker) free_at.push(0);
  long long end = 0;
  for (int block = 0; block < long_blocks + short_blocks; ++block) {
    const long long done = free_at.top() + (block < long_blocks ? long_time : short_time);
    free_at.pop();
    free_at.push(done);
    end = std::max(end, done);
  }
  return end;
}

TEST(Schedule, BlocksOfTwoSizesAreCountedUpToAShortOne) {
  std::mt19937 random(1);
  const auto up_to = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  for (int run = 0; run < 5000; ++run) {
    const int workers = up_to(1, 20), long_time = up_to(1, 30), short_time = up_to(1, long_time);
    const int long_blocks = up_to(0, 60), short_blocks = up_to(0, 80);
    const long long counted = mica::time_of_two_sizes(workers, long_blocks, long_time, short_blocks, short_time);
    const long long end = end_of(workers, long_blocks, long_time, short_blocks, short_time);
    ASSERT_GE(counted, end);
    ASSERT_LT(counted, end + short_time);
  }
}

TEST(Schedule, TheFirstUnitsFillRoundsAndTheOthersAreCutFurther) {
  std::mt19937 random(2);
  const auto up_to = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  for (int run = 0; run < 2000; ++run) {
    const int units = up_to(1, 300), items = up_to(1, 16), tiles = up_to(0, 300), workers = up_to(1, 400);
    const int most = up_to(1, 16);
    const mica::TwoCuts cuts = mica::choose_two_cuts(units, items, tiles, workers, 4, most, 8);
    if (cuts.first_units == 0) continue;
    ASSERT_LT(cuts.first_units, units);
    ASSERT_GT(cuts.splits, cuts.first_splits);
    ASSERT_LE(cuts.splits, most);
    ASSERT_LE(cuts.splits * 4, tiles);
    const long long left_over = cuts.first_units * items * cuts.first_splits % workers;
    ASSERT_TRUE(left_over == 0 || workers - left_over < items * cuts.first_splits) << "another unit would fit";
  }
  // 88 sequences of three blocks are one round of 264; the other 8 are another one of as many blocks.
  const mica::TwoCuts cuts = mica::choose_two_cuts(96, 3, 128, 264, 4, 16, 8);
  EXPECT_EQ(cuts.first_units, 88);
  EXPECT_EQ(cuts.first_splits, 1);
  EXPECT_EQ(cuts.splits, 11);
  EXPECT_EQ(cuts.cost, (128 + 8 + 12 + 16) * 10 + 11);
}

// All ways to give up to four sequences up to five rows each.
template <class Visit>
void for_every_division(Visit visit) {
  for (int batch = 1; batch <= 4; ++batch) {
    std::vector<int> lengths(batch, 0);
    for (;;) {
      std::vector<int> cu_seqlens(1, 0);
      for (const int length : lengths) cu_seqlens.push_back(cu_seqlens.back() + length);
      visit(cu_seqlens);
      int axis = 0;
      while (axis < batch && ++lengths[axis] > 5) lengths[axis++] = 0;
      if (axis == batch) break;
    }
  }
}

TEST(Schedule, PackedTilesFindEachTileOfEachSequenceOnce) {
  for_every_division([](const std::vector<int>& cu_seqlens) {
    const int batch = int(cu_seqlens.size()) - 1;
    for (const int unowned : {0, 1, 5})  // rows of q after the last sequence
      for (int tile_q = 1; tile_q <= 6; ++tile_q) {
        const int total = cu_seqlens.back() + unowned;
        std::map<std::pair<int, int>, int> seen;
        const int count = int(mica::packed_tile_count(total, batch, tile_q));
        for (int index = 0; index < count; ++index) {
          const mica::QueryTile t = mica::find_packed_tile(cu_seqlens.data(), batch, total, tile_q, index);
          ASSERT_GE(t.batch, 0);
          ASSERT_LT(t.batch, batch);
          ASSERT_GE(t.tile, 0);
          ++seen[{t.batch, t.tile}];
        }
        for (const auto& [tile, times] : seen) ASSERT_EQ(times, 1);
        for (int b = 0; b < batch; ++b)
          for (int row = cu_seqlens[b]; row < cu_seqlens[b + 1]; row += tile_q)
            ASSERT_EQ((seen[{b, (row - cu_seqlens[b]) / tile_q}]), 1)
                << "sequence " << b << " row " << row - cu_seqlens[b] << " tile_q " << tile_q;
      }
  });
}

TEST(Schedule, NoSequenceNoTile) { EXPECT_EQ(mica::packed_tile_count(100, 0, 16), 0); }

// A device cannot refuse cu_seqlens: whatever it holds, a tile names a sequence that exists and no row before it, and
// no two tiles that hold rows are the same.
TEST(Schedule, HostileDivisionsStayInside) {
  std::mt19937 random(2);
  const int hostile[] = {INT_MIN, -1, 0, 1, 2, 3, 7, 19, 20, 21, 1000, INT_MAX};
  for (int trial = 0; trial < 100000; ++trial) {
    const int batch = 1 + int(random() % 5), tile_q = 1 + int(random() % 8), total = int(random() % 21);
    std::vector<int> cu_seqlens;
    for (int b = 0; b <= batch; ++b) cu_seqlens.push_back(hostile[random() % 12]);
    std::map<std::pair<int, int>, int> seen;
    const int count = int(mica::packed_tile_count(total, batch, tile_q));
    for (int index = 0; index < count; ++index) {
      const mica::QueryTile t = mica::find_packed_tile(cu_seqlens.data(), batch, total, tile_q, index);
      ASSERT_GE(t.batch, 0);
      ASSERT_LT(t.batch, batch);
      ASSERT_GE(t.tile, 0);
      ASSERT_LE(t.tile, count);
      if (t.tile * tile_q < total) {
        ASSERT_EQ(++seen[(std::pair{t.batch, t.tile})], 1);
      }
    }
  }
}

TEST(Schedule, HeavyFirstDealsEachTileOnce) {
  for (int count = 0; count <= 20; ++count)
    for (const bool last_is_heavy : {false, true}) {
      std::vector<int> seen(count, 0);
      for (int index = 0; index < count; ++index) {
        const int tile = mica::heavy_first(index, count, last_is_heavy);
        ASSERT_GE(tile, 0);
        ASSERT_LT(tile, count);
        ++seen[tile];
        if (index == 0 && last_is_heavy) {
          ASSERT_EQ(tile, count - 1);
        }
      }
      for (const int times : seen) ASSERT_EQ(times, 1);
    }
}

}  // namespace
