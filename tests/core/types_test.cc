// SPDX-License-Identifier: Apache-2.0
// Every fp16 and bf16 value, and every rounding boundary between them, against an oracle in double.
#include "core/types.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace {

struct Format {
  const char* name;
  int mantissa_bits, min_exponent, max_exponent;
  float (*decode)(mica::u16);
  mica::u16 (*encode)(float);
};
const Format kFp16 = {"fp16",
                      10,
                      -14,
                      15,
                      [](mica::u16 x) { return mica::fp16_to_float(x); },
                      [](float x) { return mica::float_to_fp16(x); }};
const Format kBf16 = {"bf16",
                      7,
                      -126,
                      127,
                      [](mica::u16 x) { return mica::bf16_to_float(x); },
                      [](float x) { return mica::float_to_bf16(x); }};

// The value that 16 bits mean, from the format's definition.
double value_of(const Format& f, unsigned bits) {
  const int exponent_bits = 15 - f.mantissa_bits;
  const unsigned mantissa = bits & ((1u << f.mantissa_bits) - 1);
  const unsigned exponent = (bits >> f.mantissa_bits) & ((1u << exponent_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1u << exponent_bits) - 1) return mantissa ? std::nan("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, f.min_exponent - f.mantissa_bits);
  return sign * std::ldexp(mantissa + (1u << f.mantissa_bits), int(exponent) - 1 + f.min_exponent - f.mantissa_bits);
}

// Round to nearest, ties to even.
double rounded(const Format& f, double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int exponent = std::max(std::ilogb(x), f.min_exponent);
  const double quantum = std::ldexp(1.0, exponent - f.mantissa_bits);
  const double y = std::nearbyint(x / quantum) * quantum;
  return std::fabs(y) >= std::ldexp(1.0, f.max_exponent + 1) ? std::copysign(INFINITY, x) : y;
}

void expect_rounds(const Format& f, float x) {
  const double want = rounded(f, x), got = f.decode(f.encode(x));
  ASSERT_EQ(got, want) << f.name << " of " << x;
  ASSERT_EQ(std::signbit(got), std::signbit(x)) << f.name << " of " << x;
}

class Types : public testing::TestWithParam<const Format*> {};
INSTANTIATE_TEST_SUITE_P(Formats, Types, testing::Values(&kFp16, &kBf16),
                         [](const auto& info) { return info.param->name; });

TEST_P(Types, EveryValueMeansWhatTheFormatSaysAndComesBack) {
  const Format& f = *GetParam();
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const float x = f.decode(mica::u16(bits));
    const double want = value_of(f, bits);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(x)) << bits;
      ASSERT_TRUE(std::isnan(f.decode(f.encode(x)))) << bits;
      continue;
    }
    ASSERT_EQ(x, want) << bits;
    ASSERT_EQ(f.encode(x), bits);
  }
}

TEST_P(Types, EveryBoundaryRoundsToNearestEven) {
  const Format& f = *GetParam();
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const double low = value_of(f, bits), high = value_of(f, bits + 1);
    if (!std::isfinite(low) || (bits & 0x7fff) == 0x7fff) continue;
    // Past the largest value the boundary is where the next step would have been.
    const double step = std::isfinite(high) ? high - low : low - value_of(f, bits - 1);
    const float middle = float(low + step / 2);
    expect_rounds(f, middle);
    expect_rounds(f, std::nextafter(middle, INFINITY));
    expect_rounds(f, std::nextafter(middle, -INFINITY));
    expect_rounds(f, std::nextafter(float(low), INFINITY));
    expect_rounds(f, std::nextafter(float(low), -INFINITY));
  }
}

TEST_P(Types, RandomFloatsRound) {
  std::mt19937 random(9);
  for (int trial = 0; trial < 200000; ++trial) {
    const float x = mica::float_of(random());
    if (!std::isnan(x)) expect_rounds(*GetParam(), x);
  }
}

TEST_P(Types, SpecialValues) {
  const Format& f = *GetParam();
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(mica::infinity(), inf);
  for (const float x : {0.0f, -0.0f, inf, -inf, std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
                        std::numeric_limits<float>::denorm_min(), 65504.0f, 65519.996f, 65520.0f, -65520.0f})
    expect_rounds(f, x);
  // A NaN whose payload lies only in the bits that are cut off stays a NaN.
  for (const mica::u32 nan : {0x7f800001u, 0xff800001u, 0x7fc00000u, 0x7fffffffu})
    EXPECT_TRUE(std::isnan(f.decode(f.encode(mica::float_of(nan)))));
}

TEST(Arithmetic, SmallIntegers) {
  for (int a = 0; a <= 100; ++a)
    for (int b = 1; b <= 20; ++b) {
      ASSERT_EQ(mica::ceil_div(a, b), a / b + (a % b != 0));
      ASSERT_EQ(mica::round_up(a, b) % b, 0);
      ASSERT_GE(mica::round_up(a, b), a);
      ASSERT_LT(mica::round_up(a, b), a + b);
    }
  for (int x = -5; x <= 5; ++x)
    for (int low = -3; low <= 3; ++low)
      for (int high = low; high <= 3; ++high) ASSERT_EQ(mica::clamp_to(x, low, high), std::min(std::max(x, low), high));
}

TEST(Arithmetic, DivisionByAMultiplication) {
  std::mt19937 random(7);
  const mica::i64 limit = mica::i64(1) << 29;
  for (int trial = 0; trial < 20000; ++trial) {
    const mica::i32 divisor = trial < 5000 ? trial + 1 : mica::i32(random() % limit + 1);
    const mica::i32 near = mica::i32(random() % (2 * limit / divisor)) * divisor + mica::i32(random() % 3) - 1;
    const mica::Divisor by = mica::divisor_of(divisor);
    for (const mica::i32 n : {near, -near, mica::i32(random()), 0, -1, 1, 2147483647, -2147483647})
      ASSERT_EQ(mica::floor_div(n, by), mica::i32(std::floor(double(n) / divisor))) << n << " / " << divisor;
  }
}

TEST(Elements, LoadAndStoreByType) {
  const float values[] = {1.5f, -2.0f, 0.25f};
  for (const int dtype : {MICA_FP32, MICA_FP16, MICA_BF16}) {
    unsigned char memory[12] = {};
    for (int n = 0; n < 3; ++n) mica::store_float(memory, n, dtype, values[n]);
    for (int n = 0; n < 3; ++n) EXPECT_EQ(mica::load_as_float(memory, n, dtype), values[n]);
  }
  EXPECT_EQ(mica::dtype_bytes(MICA_FP32), 4);
  EXPECT_EQ(mica::dtype_bytes(MICA_INT32), 4);
  EXPECT_EQ(mica::dtype_bytes(MICA_FP16), 2);
  EXPECT_EQ(mica::dtype_bytes(MICA_BF16), 2);
  EXPECT_EQ(mica::dtype_bytes(MICA_BOOL), 1);
  EXPECT_EQ(mica::dtype_bytes(MICA_NONE), 0);
  EXPECT_EQ(mica::dtype_bytes(99), 0);
}

}  // namespace
