// SPDX-License-Identifier: Apache-2.0
// Key tiles that go round in a fixed order: who adds when, and that nobody waits for ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "cuda/kernels/parts/backward_order.h"

namespace mica {
namespace {

// round_tiles, key tiles of the head, steps of each.
class BackwardRoundTest : public ::testing::TestWithParam<std::tuple<i32, i32, i32>> {
 protected:
  const i32 round_tiles = std::get<0>(GetParam()), key_tiles = std::get<1>(GetParam()), steps = std::get<2>(GetParam());
  BackwardRound of(i32 key_tile) const { return BackwardRound::of(key_tile, round_tiles, key_tiles, steps); }
};

TEST_P(BackwardRoundTest, EveryKeyTileHasOneTurnInEveryStep) {
  for (i32 step = 0; step < steps; ++step) {
    std::vector<i32> turns;
    for (i32 key_tile = 0; key_tile < key_tiles; ++key_tile) turns.push_back(of(key_tile).added_before(key_tile, step));
    std::sort(turns.begin(), turns.end());
    for (i32 turn = 0; turn < key_tiles; ++turn) ASSERT_EQ(turns[turn], turn) << "step " << step;
  }
}

TEST_P(BackwardRoundTest, EveryKeyTileBeginsInItsSteps) {
  for (i32 key_tile = 0; key_tile < key_tiles; ++key_tile) {
    ASSERT_GE(of(key_tile).begin(key_tile), 0);
    ASSERT_LT(of(key_tile).begin(key_tile), steps);
  }
}

// As add_dq_in_round does: a part that is a step late is released after the next one's turn.
TEST_P(BackwardRoundTest, AllThatRunAtOnceEnd) {
  struct Walker {
    i32 key_tile, done, unreleased;
  };
  std::vector<i32> added(steps, 0);
  for (i32 first = 0; first < key_tiles; first += round_tiles) {
    std::vector<Walker> walkers;
    for (i32 key_tile = first; key_tile < std::min(first + round_tiles, key_tiles); ++key_tile)
      walkers.push_back({key_tile, 0, -1});
    i32 rounds = 0;
    for (bool all_done = false; !all_done; ++rounds) {
      bool goes_on = false;
      all_done = true;
      for (Walker& w : walkers) {
        if (w.done == steps) continue;
        const BackwardRound round = of(w.key_tile);
        const i32 step = (round.begin(w.key_tile) + w.done) % steps;
        if (added[step] == round.added_before(w.key_tile, step)) {
          goes_on = true;
          if (w.unreleased >= 0) ++added[w.unreleased];
          w.unreleased = step;
          if (++w.done == steps || !round.is_spread()) {
            ++added[step];
            w.unreleased = -1;
          }
        }
        all_done &= w.done == steps;
      }
      ASSERT_TRUE(goes_on) << "all wait, from key tile " << first << " on";
    }
    // Where they begin apart nobody waits.
    if (of(first).is_spread()) {
      EXPECT_LE(rounds, steps + 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, BackwardRoundTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 7, 16, 132), ::testing::Values(1, 2, 7, 16, 33),
                                            ::testing::Values(1, 2, 5, 8, 32, 33, 64, 140)));

}  // namespace
}  // namespace mica
