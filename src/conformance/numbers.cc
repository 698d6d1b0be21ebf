// SPDX-License-Identifier: Apache-2.0
#include "conformance/numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace mica::conformance {
namespace {

// A binary format: bits of the mantissa (without the leading one) and the exponents of its normal numbers.
struct Format {
  int mantissa_bits;
  int min_exponent, max_exponent;
};
constexpr Format kHalf = {10, -14, 15}, kBrain = {7, -126, 127}, kSingle = {23, -126, 127};
constexpr double kLargestE4m3 = 448;

Format format_of(int32_t dtype) { return dtype == MICA_FP16 ? kHalf : (dtype == MICA_BF16 ? kBrain : kSingle); }

// ldexp and ilogb of doubles that are normal numbers; as calls they are an eighth of all time that a case takes.
double power_of_two(int exponent) { return std::bit_cast<double>(uint64_t(exponent + 1023) << 52); }
// Of a subnormal or 0: less than any format's exponent.
int exponent_of(double x) { return int(std::bit_cast<uint64_t>(x) >> 52 & 0x7ff) - 1023; }

double round_to_format(const Format& f, double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int exponent = std::max(exponent_of(x), f.min_exponent);  // subnormal: the spacing stops shrinking
  const double spacing = power_of_two(exponent - f.mantissa_bits);
  const double rounded = std::nearbyint(x / spacing) * spacing;  // ties to even, the default rounding mode
  const double largest = (2.0 - power_of_two(-f.mantissa_bits)) * power_of_two(f.max_exponent);
  return std::fabs(rounded) > largest ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
}

// The finite variant: 4 bits of exponent with bias 7, 3 of mantissa, saturating; all ones are NaN.
double round_to_e4m3(double x) {
  if (std::isnan(x) || x == 0) return x;
  if (std::fabs(x) >= kLargestE4m3) return std::copysign(kLargestE4m3, x);
  const double spacing = power_of_two(std::max(exponent_of(x), -6) - 3);
  return std::nearbyint(x / spacing) * spacing;
}

double decode_e4m3(unsigned char bits) {
  const double sign = bits & 0x80 ? -1.0 : 1.0;
  const int field = bits >> 3 & 15, mantissa = bits & 7;
  if (field == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  return sign * (field ? (8 + mantissa) * power_of_two(field - 10) : mantissa * power_of_two(-9));
}

// x is a value of the type.
unsigned char encode_e4m3(double x) {
  const int sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return static_cast<unsigned char>(sign | 0x7f);
  const double magnitude = std::fabs(x);
  const int exponent = std::max(exponent_of(magnitude), -6);
  const int eighths = static_cast<int>(magnitude * power_of_two(3 - exponent));  // 8 to 15; below 8: subnormal
  return static_cast<unsigned char>(sign | (eighths < 8 ? eighths : ((exponent + 7) << 3) + eighths - 8));
}

// x is a value of the format.
uint16_t encode16(const Format& f, double x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const uint16_t exponent_field_max = uint16_t(f.max_exponent * 2 + 1);
  if (std::isnan(x)) return uint16_t(sign | (exponent_field_max << f.mantissa_bits) | (1u << (f.mantissa_bits - 1)));
  if (std::isinf(x)) return uint16_t(sign | (exponent_field_max << f.mantissa_bits));
  if (x == 0) return sign;
  const double magnitude = std::fabs(x);
  const int exponent = exponent_of(magnitude);
  if (exponent < f.min_exponent)
    return uint16_t(sign | uint16_t(magnitude * power_of_two(f.mantissa_bits - f.min_exponent)));
  const auto mantissa = uint16_t(magnitude * power_of_two(f.mantissa_bits - exponent) - power_of_two(f.mantissa_bits));
  return uint16_t(sign | ((exponent + f.max_exponent) << f.mantissa_bits) | mantissa);
}

double decode16(const Format& f, uint16_t bits) {
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  const int field = (bits & 0x7fff) >> f.mantissa_bits;
  const int mantissa = bits & ((1 << f.mantissa_bits) - 1);
  if (field == f.max_exponent * 2 + 1)
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (field == 0) return sign * mantissa * power_of_two(f.min_exponent - f.mantissa_bits);
  return sign * (mantissa + (1 << f.mantissa_bits)) * power_of_two(field - f.max_exponent - f.mantissa_bits);
}

}  // namespace

size_t element_bytes(int32_t dtype) {
  switch (dtype) {
    case MICA_FP32:
    case MICA_INT32: return 4;
    case MICA_FP16:
    case MICA_BF16: return 2;
    case MICA_BOOL:
    case MICA_FP8_E4M3: return 1;
    default: return 0;
  }
}

const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case MICA_FP32: return "fp32";
    case MICA_FP16: return "fp16";
    case MICA_BF16: return "bf16";
    case MICA_BOOL: return "bool";
    case MICA_INT32: return "int32";
    case MICA_FP8_E4M3: return "e4m3";
    default: return "none";
  }
}

double round_to(int32_t dtype, double x) {
  if (dtype == MICA_FP32) return static_cast<float>(x);
  if (dtype == MICA_FP8_E4M3) return round_to_e4m3(x);
  return round_to_format(format_of(dtype), x);
}

double load_element(int32_t dtype, const void* address) {
  switch (dtype) {
    case MICA_FP32: {
      float x;
      std::memcpy(&x, address, 4);
      return x;
    }
    case MICA_INT32: {
      int32_t x;
      std::memcpy(&x, address, 4);
      return x;
    }
    case MICA_BOOL: return *static_cast<const unsigned char*>(address) != 0;
    case MICA_FP8_E4M3: return decode_e4m3(*static_cast<const unsigned char*>(address));
    default: {
      uint16_t bits;
      std::memcpy(&bits, address, 2);
      return decode16(format_of(dtype), bits);
    }
  }
}

void store_element(int32_t dtype, void* address, double value) {
  switch (dtype) {
    case MICA_FP32: {
      const float x = static_cast<float>(value);
      std::memcpy(address, &x, 4);
      return;
    }
    case MICA_INT32: {
      const int32_t x = static_cast<int32_t>(value);
      std::memcpy(address, &x, 4);
      return;
    }
    case MICA_BOOL: *static_cast<unsigned char*>(address) = value != 0; return;
    case MICA_FP8_E4M3: *static_cast<unsigned char*>(address) = encode_e4m3(round_to_e4m3(value)); return;
    default: {
      const uint16_t bits = encode16(format_of(dtype), round_to(dtype, value));
      std::memcpy(address, &bits, 2);
      return;
    }
  }
}

bool DropoutBits::is_kept(uint32_t head_index, uint32_t i, uint32_t j) const {
  // The block of 16 bytes: rows i and i + 8 of a group of 16, column pairs of every 8 columns over a group of 32.
  const uint32_t block_row = i / 16 * 8 + i % 8;
  const uint32_t block_column = j / 32 * 4 + j % 8 / 2;
  uint32_t counter[4] = {block_row, block_column, head_index, static_cast<uint32_t>(offset)};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  key[1] ^= static_cast<uint32_t>(offset >> 32) * 0x9E3779B9u;
  for (int round = 0; round < 7; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    std::memcpy(counter, next, sizeof next);
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  // Element's place in the block: 8 per row, 2 per column pair.
  const uint32_t first_byte = (i % 16 >= 8 ? 8 : 0) + j % 32 / 8 * 2 + j % 2;
  const uint32_t second_byte = (first_byte + 1) % 16;
  const uint32_t low = counter[first_byte / 4] >> (8 * (first_byte % 4)) & 0xff;
  const uint32_t high = counter[second_byte / 4] >> (8 * (second_byte % 4)) & 0xff;
  // The threshold is defined in fp32: 1 - probability is rounded.
  const float threshold = (1.0f - static_cast<float>(probability)) * 65536.0f + 0.5f;
  return (high << 8 | low) < static_cast<uint32_t>(threshold);
}

uint64_t Random::next() {
  state_ += 0x9E3779B97F4A7C15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

int64_t Random::integer(int64_t begin, int64_t end) {
  return begin + static_cast<int64_t>(next() % static_cast<uint64_t>(end - begin));
}

double Random::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

double Random::normal() {
  double sum = 0;  // twelve uniforms have variance 1
  for (int n = 0; n < 12; ++n) sum += uniform();
  return sum - 6;
}

}  // namespace mica::conformance
