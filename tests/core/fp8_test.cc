// SPDX-License-Identifier: Apache-2.0
// Every e4m3 value, and every rounding boundary between them, against the format's definition in double.
#include "core/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace {

double value_of(int code) {
  const int field = code >> 3 & 15, mantissa = code & 7;
  const double magnitude = field ? std::ldexp(8 + mantissa, field - 10) : std::ldexp(mantissa, -9);
  return code & 0x80 ? -magnitude : magnitude;
}
bool is_nan(int code) { return (code & 0x7f) == 0x7f; }

TEST(E4m3, EveryCodeDecodes) {
  for (int code = 0; code < 256; ++code) {
    const float got = mica::e4m3_to_float(mica::u8(code));
    if (is_nan(code)) {
      EXPECT_TRUE(std::isnan(got));
    } else {
      EXPECT_EQ(double(got), value_of(code)) << code;
      EXPECT_EQ(std::signbit(got), (code & 0x80) != 0) << code;
    }
  }
}

TEST(E4m3, EveryValueIsItself) {
  for (int code = 0; code < 256; ++code) EXPECT_EQ(int(mica::float_to_e4m3(mica::e4m3_to_float(mica::u8(code)))), code);
}

// Between neighbours: below the middle down, above it up, in the middle to the even code.
TEST(E4m3, RoundsToNearestEven) {
  for (int code = 0; code < 0x7e; ++code)
    for (const int sign : {0, 0x80}) {
      const float middle = float((value_of(code | sign) + value_of((code + 1) | sign)) / 2);
      EXPECT_EQ(int(mica::float_to_e4m3(middle)), (code + code % 2) | sign) << middle;
      EXPECT_EQ(int(mica::float_to_e4m3(std::nextafter(middle, 0.0f))), code | sign) << middle;
      EXPECT_EQ(int(mica::float_to_e4m3(std::nextafter(middle, sign ? -1e9f : 1e9f))), (code + 1) | sign) << middle;
    }
}

TEST(E4m3, Saturates) {
  for (const float large : {448.0f, 449.0f, 464.0f, 480.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(mica::e4m3_to_float(mica::float_to_e4m3(large)), 448.0f) << large;
    EXPECT_EQ(mica::e4m3_to_float(mica::float_to_e4m3(-large)), -448.0f) << large;
  }
  EXPECT_TRUE(std::isnan(mica::e4m3_to_float(mica::float_to_e4m3(std::nanf("")))));
}

TEST(Descale, BroadcastsAndIsOneWhereAbsent) {
  const float factors[6] = {1, 2, 3, 4, 5, 6};
  mica::Tensor t = {};
  EXPECT_EQ(mica::descale_at(mica::descale_of(t, nullptr), 3, 1), 1.0f);
  t.dtype = MICA_FP32;
  t.stride[0] = 2, t.stride[1] = 1;
  EXPECT_EQ(mica::descale_at(mica::descale_of(t, factors), 2, 1), 6.0f);
  t.stride[0] = 0;
  EXPECT_EQ(mica::descale_at(mica::descale_of(t, factors), 2, 1), 2.0f);
}

}  // namespace
