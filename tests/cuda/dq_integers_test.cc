// SPDX-License-Identifier: Apache-2.0
// Whole numbers instead of floats: that a bound and its scale leave room for sums, and what a unit is worth.
#include "cuda/kernels/whole/dq_integers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cuda/kernels/whole/pair_integers.h"

namespace mica {
namespace {

TEST(Integers, ABoundBecomesAboutAQuarterOfTheirRange) {
  for (int exponent = -90; exponent < 127; ++exponent)
    for (const float fraction : {1.0f, 1.25f, 1.999f}) {
      const float bound = std::ldexp(fraction, exponent);
      const double largest = double(bound) * integers_scale(bound);
      EXPECT_LE(largest, 0x1p30) << bound;
      EXPECT_GE(largest, 0x1p29) << bound;
      EXPECT_EQ(double(integers_scale(bound)) * integers_unit(bound), 1.0) << bound;
    }
}

TEST(Integers, SmallBoundsHaveUnitsThatFloatsHave) {
  for (const float bound : {0.0f, 1e-45f, 1e-38f, 1e-30f}) {
    EXPECT_TRUE(std::isnormal(integers_scale(bound))) << bound;
    EXPECT_TRUE(std::isnormal(integers_unit(bound))) << bound;
    EXPECT_LE(double(bound) * integers_scale(bound), 0x1p30) << bound;
  }
}

TEST(Integers, AsManyAsShareATileHaveRoomTogether) {
  for (const i32 parts : {1, 2, 3, 5, 8, 64, 65}) {
    const i32 spare = spare_bits_of(parts);
    EXPECT_GE(1 << spare, parts);
    EXPECT_LT(1 << spare, 2 * parts);
    const float largest = 3.0f;
    EXPECT_LE(double(largest) * integers_scale(largest, spare) * parts, 0x1p30) << parts;
    EXPECT_EQ(double(integers_scale(largest, spare)) * integers_unit(largest, spare), 1.0) << parts;
  }
}

TEST(Integers, WithoutABoundARowIsNoNumber) {
  EXPECT_TRUE(std::isnan(dq_unit(std::numeric_limits<float>::infinity())));
  EXPECT_TRUE(std::isnan(dq_unit(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(dq_unit(6.0f), 0x1p-27f);
}

TEST(Integers, AnOffsetLeavesNumbersInTheLowBits) {
  for (const i32 number : {0, 1, -1, 4194303, -4194304}) {
    const u32 bits = bits_of(float(number) + kOffset);
    EXPECT_EQ(i32(bits - kOffsetBits), number);
    EXPECT_EQ((bits ^ kOffsetExponent) & kExponentMask, 0u) << number;
  }
  for (const float number : {4194304.0f, -4194305.0f, 1e9f, -1e9f, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_NE((bits_of(number + kOffset) ^ kOffsetExponent) & kExponentMask, 0u) << number;
}

// Two sums in one of 64 bits, with any number of parts and of any sign.
TEST(Integers, PairsCarryAndComeApart) {
  const i32 numbers[] = {0, 1, -1, 4194303, -4194304, 1 << 30, -(1 << 30)};
  for (const i32 first : numbers)
    for (const i32 second : numbers)
      for (const u32 parts : {1u, 2u, 3u, 7u, 400u}) {
        u64 sum = 0, offset = 0;
        for (u32 part = 0; part < parts; ++part) {
          // The numbers in one part, what cancels out in the others.
          const i32 one = part == 0 ? first : part % 2 ? 12345 : -12345, other = part == 0 ? second : -one;
          sum += u64(u32(other) + kOffsetBits) << 32 | (u32(one) + kOffsetBits);
          offset += kOffsetBits;
        }
        const i32 left = parts % 2 ? 0 : 12345;
        const PairOfIntegers got = integers_of_pair(u32(sum), u32(sum >> 32), offset);
        EXPECT_EQ(got.first, first + left) << second << " in " << parts;
        EXPECT_EQ(got.second, second - left) << first << " in " << parts;
      }
}

TEST(Integers, HeadsWithOneLoudKeyHaveNoScale) {
  const auto head = [](float largest, i32 usual_exponent) {
    return KeyNorms{largest, 1.0f, 100 * usual_exponent, 100 * 127, 100, 100, {}};
  };
  EXPECT_TRUE(have_one_scale(head(1.5f, 127)));
  EXPECT_TRUE(have_one_scale(head(256.0f, 127)));
  EXPECT_FALSE(have_one_scale(head(512.0f, 127)));
  EXPECT_FALSE(have_one_scale(head(0.0f, 127))) << "all keys are zero";
  EXPECT_FALSE(have_one_scale(head(1e25f, exponent_of(1e25f)))) << "its square is infinite";
  EXPECT_FALSE(have_one_scale(head(std::numeric_limits<float>::quiet_NaN(), 127)));
  EXPECT_FALSE(have_one_scale(KeyNorms{})) << "there are no keys";
}

TEST(Integers, ChunksOfKeysAreAllOfThem) {
  for (const i32 keys : {1, 8, 255, 2048, 2049, 100000}) {
    EXPECT_LE(ceil_div(keys, keys_of_norm_chunk(keys)), kNormChunks) << keys;
    EXPECT_GE(keys_of_norm_chunk(keys), 64);
  }
}

}  // namespace
}  // namespace mica
