// SPDX-License-Identifier: Apache-2.0
// Philox against an implementation of its own and against published answers; dropout against counting.
#include "core/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <tuple>

namespace {

using Words = std::array<uint32_t, 4>;

// Written from the description in "Parallel random numbers: as easy as 1, 2, 3" (Salmon et al., 2011).
Words philox_4x32(Words counter, std::array<uint32_t, 2> key, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const uint64_t product0 = uint64_t(0xD2511F53) * counter[0];
    const uint64_t product1 = uint64_t(0xCD9E8D57) * counter[2];
    const uint32_t key0 = key[0] + uint32_t(round) * 0x9E3779B9u, key1 = key[1] + uint32_t(round) * 0xBB67AE85u;
    counter = {uint32_t(product1 >> 32) ^ counter[1] ^ key0, uint32_t(product1),
               uint32_t(product0 >> 32) ^ counter[3] ^ key1, uint32_t(product0)};
  }
  return counter;
}

Words core_philox(uint32_t row, uint32_t column, uint32_t head, const mica::PhiloxKey& key) {
  const auto block = mica::philox<mica::ScalarWords>(key, row, column, head);
  return {block.word[0], block.word[1], block.word[2], block.word[3]};
}

TEST(Philox, PublishedAnswers) {
  const uint32_t f = 0xffffffff;
  const Words pi = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
  const std::array<uint32_t, 2> pi_key = {0xa4093822, 0x299f31d0};
  // Ten rounds: that the test's own implementation is Philox.
  EXPECT_EQ(philox_4x32({}, {}, 10), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox_4x32({f, f, f, f}, {f, f}, 10), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox_4x32(pi, pi_key, 10), (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  // Seven rounds: the core.
  EXPECT_EQ(core_philox(0, 0, 0, {0, 0, 0}), (Words{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
  EXPECT_EQ(core_philox(f, f, f, {f, f, f}), (Words{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}));
  EXPECT_EQ(core_philox(pi[0], pi[1], pi[2], {pi_key[0], pi_key[1], pi[3]}),
            (Words{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}));
}

TEST(Philox, EveryCounterAgrees) {
  uint32_t x = 12345;
  const auto next = [&x] { return x = x * 1664525u + 1013904223u; };
  for (int trial = 0; trial < 1000000; ++trial) {
    const Words counter = {next(), next(), next(), next()};
    const std::array<uint32_t, 2> key = {next(), next()};
    ASSERT_EQ(core_philox(counter[0], counter[1], counter[2], {key[0], key[1], counter[3]}),
              philox_4x32(counter, key, 7));
  }
}

TEST(Philox, SeedAndOffsetBothMatterInEveryBit) {
  const mica::PhiloxKey base = mica::philox_key(0x0123456789abcdef, 0xfedcba9876543210);
  const auto differs = [&](const mica::PhiloxKey& k) {
    return std::tie(k.key0, k.key1, k.offset) != std::tie(base.key0, base.key1, base.offset);
  };
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_TRUE(differs(mica::philox_key(0x0123456789abcdef ^ (uint64_t(1) << bit), 0xfedcba9876543210)));
    EXPECT_TRUE(differs(mica::philox_key(0x0123456789abcdef, 0xfedcba9876543210 ^ (uint64_t(1) << bit))));
  }
}

// Each element has a place of its own, and 16 elements share a block.
TEST(Dropout, CellsCoverEachElementOnce) {
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> bytes_taken;
  for (uint32_t i = 0; i < 128; ++i)
    for (uint32_t j = 0; j < 256; ++j) {
      const mica::DropoutCell cell = mica::dropout_cell(i, j);
      ASSERT_LT(cell.byte, 16u);
      uint32_t& taken = bytes_taken[{cell.row, cell.column}];
      ASSERT_EQ(taken & (1u << cell.byte), 0u) << "element " << i << ',' << j;
      taken |= 1u << cell.byte;
    }
  ASSERT_EQ(bytes_taken.size(), 128u * 256u / 16u);
  for (const auto& [cell, taken] : bytes_taken) {
    ASSERT_EQ(taken, 0xffffu);
    ASSERT_LT(cell.first, 64u);
    ASSERT_LT(cell.second, 32u);
  }
}

// A thread of an m16n8 product holds rows g, g + 8 and columns 2t, 2t + 1 of each 8: one block over 32 columns.
TEST(Dropout, ACellIsWhatATensorCoreThreadHolds) {
  for (uint32_t g = 0; g < 8; ++g)
    for (uint32_t t = 0; t < 4; ++t)
      for (uint32_t k = 0; k < 16; ++k) {
        const uint32_t i = 48 + g + k / 8 * 8, j = 64 + k % 8 / 2 * 8 + 2 * t + k % 2;
        const mica::DropoutCell cell = mica::dropout_cell(i, j);
        ASSERT_EQ(cell.row, 24 + g);
        ASSERT_EQ(cell.column, 8 + t);
        ASSERT_EQ(cell.byte, k);
      }
}

TEST(Dropout, BitsAreTwoBytesOfTheBlockCyclic) {
  const auto block = mica::philox<mica::ScalarWords>(mica::philox_key(1, 2), 3, 4, 5);
  for (uint32_t k = 0; k < 16; ++k) {
    const auto byte = [&](uint32_t n) { return (block.word[n % 16 / 4] >> (8 * (n % 4))) & 0xff; };
    EXPECT_EQ(mica::dropout_bits(block, k), byte(k) | (byte(k + 1) << 8));
  }
}

TEST(Dropout, EveryThreshold) {
  EXPECT_EQ(mica::keep_threshold(0.0f), 65536u);
  EXPECT_EQ(mica::keep_threshold(std::nextafter(1.0f, 0.0f)), 0u);
  const auto block = mica::philox<mica::ScalarWords>(mica::philox_key(1, 0), 0, 0, 0);
  const uint32_t bits = mica::dropout_bits(block, 0);
  for (uint32_t t = 0; t <= 65536; ++t) {
    ASSERT_EQ(mica::keep_threshold(1.0f - float(t) / 65536.0f), t);
    ASSERT_EQ(mica::is_kept(mica::philox_key(1, 0), t, 0, 0, 0), bits < t);
  }
}

// Kept with the stated probability: overall, in each of the 16 places of a cell, and independent of the neighbour.
TEST(Dropout, KeepFrequency) {
  const mica::PhiloxKey key = mica::philox_key(42, 7);
  for (const float p : {0.5f, 0.1f, 0.9f, 0.017f}) {
    const uint32_t threshold = mica::keep_threshold(p);
    const double keep = threshold / 65536.0;
    const uint32_t rows = 512, columns = 2048;
    double kept = 0, place_kept[16] = {}, pair_kept = 0;
    for (uint32_t i = 0; i < rows; ++i) {
      bool previous = false;
      for (uint32_t j = 0; j < columns; ++j) {
        const bool k = mica::is_kept(key, threshold, 3, i, j);
        kept += k;
        place_kept[mica::dropout_cell(i, j).byte] += k;
        if (j % 2) pair_kept += k && previous;
        previous = k;
      }
    }
    const double n = double(rows) * columns, sigma = std::sqrt(keep * (1 - keep));
    // Neighbours in a block share a byte, which can at most double the variance of the total.
    EXPECT_NEAR(kept / n, keep, 5 * std::sqrt(2.0) * sigma / std::sqrt(n)) << "p " << p;
    for (const double place : place_kept) EXPECT_NEAR(place / (n / 16), keep, 5 * sigma / std::sqrt(n / 16));
    // The shared byte is the low one of the second: two neighbours agree by chance but for 2^-8 of the cases.
    const double pair_sigma = std::sqrt(keep * keep * (1 - keep * keep));
    EXPECT_NEAR(pair_kept / (n / 2), keep * keep, 5 * pair_sigma / std::sqrt(n / 2) + 1.0 / 256) << "p " << p;
  }
}

TEST(Dropout, HeadsSeedsAndOffsetsDrawTheirOwnBits) {
  const auto equal_share = [](const mica::PhiloxKey& a, uint32_t head_a, const mica::PhiloxKey& b, uint32_t head_b) {
    int equal = 0;
    for (uint32_t i = 0; i < 128; ++i)
      for (uint32_t j = 0; j < 128; ++j)
        equal += mica::is_kept(a, 32768, head_a, i, j) == mica::is_kept(b, 32768, head_b, i, j);
    return equal / 16384.0;
  };
  const mica::PhiloxKey key = mica::philox_key(1, 1);
  EXPECT_EQ(equal_share(key, 0, key, 0), 1.0);
  EXPECT_NEAR(equal_share(key, 0, key, 1), 0.5, 0.03);
  EXPECT_NEAR(equal_share(key, 0, mica::philox_key(2, 1), 0), 0.5, 0.03);
  EXPECT_NEAR(equal_share(key, 0, mica::philox_key(1, 2), 0), 0.5, 0.03);
  EXPECT_NEAR(equal_share(key, 0, mica::philox_key(1, 1 + (uint64_t(1) << 32)), 0), 0.5, 0.03);
}

}  // namespace
