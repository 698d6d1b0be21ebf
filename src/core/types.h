// SPDX-License-Identifier: Apache-2.0
// Fixed-width types, the function qualifiers and small arithmetic of the core. No standard header: NVRTC has none.
#pragma once

#include "mica/enums.h"

// Functions of the core live in MICA_NS. The CPU backend compiles them once per instruction set, each time under
// another namespace, so that the linker can never keep the AVX-512 copy of an inline function for the whole program.
#ifndef MICA_NS
#define MICA_NS mica
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define MICA_HD __host__ __device__ __forceinline__
#else
#define MICA_HD inline __attribute__((always_inline))
#endif

namespace mica {

using u8 = unsigned char;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
static_assert(sizeof(u16) == 2 && sizeof(i32) == 4 && sizeof(i64) == 8);

// Half-open.
struct Range {
  i32 begin, end;
};

// A divisor from 1 to 2^29, made ready by divisor_of: dividing by it is a multiplication, which holds no register of a
// GPU beyond the line that does it.
struct Divisor {
  u32 multiplier;
  i32 shift;
};

}  // namespace mica

namespace MICA_NS {

using mica::Divisor;
using mica::i32;
using mica::i64;
using mica::Range;
using mica::u16;
using mica::u32;
using mica::u64;
using mica::u8;

template <class T>
MICA_HD constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
template <class T>
MICA_HD constexpr T round_up(T a, T b) {
  return ceil_div(a, b) * b;
}
template <class T>
MICA_HD constexpr T min_of(T a, T b) {
  return a < b ? a : b;
}
template <class T>
MICA_HD constexpr T max_of(T a, T b) {
  return a < b ? b : a;
}
template <class T>
MICA_HD constexpr T clamp_to(T x, T low, T high) {
  return x < low ? low : (high < x ? high : x);
}

// multiplier = ceil(2^(31 + shift) / divisor) with 2^(shift - 1) < divisor <= 2^shift: exact for numerators below 2^31.
MICA_HD constexpr Divisor divisor_of(i32 divisor) {
  i32 shift = 0;
  while ((i32(1) << shift) < divisor) ++shift;
  return Divisor{u32(ceil_div<u64>(u64(1) << (31 + shift), u64(divisor))), shift};
}
// floor(n / divisor), for n of either sign.
MICA_HD constexpr i32 floor_div(i32 n, const Divisor& by) {
  const u32 sign = n < 0 ? ~0u : 0u, magnitude = u32(n) ^ sign;  // -1 - n where n is negative
  return i32((u32((u64(magnitude * 2) * by.multiplier) >> 32) >> by.shift) ^ sign);
}

// The same for n that is not negative.
MICA_HD constexpr i32 divided(i32 n, const Divisor& by) {
  return i32(u32((u64(u32(n) * 2) * by.multiplier) >> 32) >> by.shift);
}

MICA_HD constexpr i32 dtype_bytes(i32 dtype) {
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

union FloatBits {
  float f;
  u32 u;
};

MICA_HD u32 bits_of(float x) {
  FloatBits b;
  b.f = x;
  return b.u;
}
MICA_HD float float_of(u32 u) {
  FloatBits b;
  b.u = u;
  return b.f;
}

MICA_HD float infinity() { return float_of(0x7f800000u); }

MICA_HD float bf16_to_float(u16 x) { return float_of(u32(x) << 16); }

// Round to nearest even; NaN stays NaN.
MICA_HD u16 float_to_bf16(float x) {
  const u32 u = bits_of(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return u16((u >> 16) | 0x40u);
  return u16((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

MICA_HD float fp16_to_float(u16 h) {
  const u32 sign = u32(h & 0x8000u) << 16;
  const u32 exponent = (h >> 10) & 0x1fu;
  const u32 mantissa = h & 0x3ffu;
  if (exponent == 0x1fu) return float_of(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = float(mantissa) * float_of(0x33800000u);
    return float_of(sign | bits_of(magnitude));
  }
  return float_of(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

// Round to nearest even; overflow gives infinity, NaN stays NaN.
MICA_HD u16 float_to_fp16(float x) {
  const u32 u = bits_of(x);
  const u32 sign = (u >> 16) & 0x8000u;
  const u32 magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return u16(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return u16(sign | 0x7c00u);  // rounds to 65536 or above
  if (magnitude < 0x38800000u) {                             // subnormal half: let the float adder round at 2^-24
    const float shifted = float_of(magnitude) + float_of(0x3f000000u);
    return u16(sign | (bits_of(shifted) - 0x3f000000u));
  }
  const u32 odd = (magnitude >> 13) & 1u;
  return u16(sign | ((magnitude + 0xfffu + odd - (112u << 23)) >> 13));
}

// One element of any floating type. For the rare paths; inner loops load vectors.
MICA_HD float load_as_float(const void* base, i64 index, i32 dtype) {
  if (dtype == MICA_FP32) return static_cast<const float*>(base)[index];
  const u16 half = static_cast<const u16*>(base)[index];
  return dtype == MICA_FP16 ? fp16_to_float(half) : bf16_to_float(half);
}
MICA_HD void store_float(void* base, i64 index, i32 dtype, float x) {
  if (dtype == MICA_FP32)
    static_cast<float*>(base)[index] = x;
  else
    static_cast<u16*>(base)[index] = dtype == MICA_FP16 ? float_to_fp16(x) : float_to_bf16(x);
}

}  // namespace MICA_NS
