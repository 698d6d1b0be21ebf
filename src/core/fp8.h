// SPDX-License-Identifier: Apache-2.0
// e4m3 (the finite variant, "fn"): 4 bits of exponent with bias 7, 3 of mantissa, no infinities, one NaN (0x7f). And
// what a stored element stands for: itself times a factor, its descale.
#pragma once

#include "core/problem.h"

namespace mica {

constexpr float kLargestE4m3 = 448.0f;

// Factors of one tensor: fp32 (batch or page, key head); null: 1.
struct Descale {
  const float* factor;
  i64 stride_slot, stride_head;
};

}  // namespace mica

namespace MICA_NS {

using mica::Descale;
using mica::kLargestE4m3;

MICA_HD float e4m3_to_float(u8 x) {
  const u32 sign = u32(x & 0x80u) << 24, magnitude = x & 0x7fu;
  if (magnitude == 0x7fu) return float_of(sign | 0x7fc00000u);
  if (magnitude < 8u) return float_of(sign | bits_of(float(magnitude) * float_of(0x3b000000u)));  // times 2^-9
  return float_of(sign | ((magnitude << 20) + (120u << 23)));
}

// Round to nearest even; beyond the largest: the largest; NaN stays NaN.
MICA_HD u8 float_to_e4m3(float x) {
  const u32 u = bits_of(x), sign = (u >> 24) & 0x80u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return u8(sign | 0x7fu);
  if (magnitude >= bits_of(kLargestE4m3)) return u8(sign | 0x7eu);
  if (magnitude < 0x3c800000u) {  // below 2^-6, subnormal: let the float adder round at 2^-9
    const float shifted = float_of(magnitude) + float_of(0x46800000u);  // 2^14
    return u8(sign | (bits_of(shifted) - 0x46800000u));
  }
  const u32 odd = (magnitude >> 20) & 1u;
  return u8(sign | ((magnitude + 0x7ffffu + odd - (120u << 23)) >> 20));
}

MICA_HD Descale descale_of(const mica::Tensor& t, const float* factor) {
  return t.dtype == MICA_NONE ? Descale{nullptr, 0, 0} : Descale{factor, t.stride[0], t.stride[1]};
}
// slot: the sequence, or the page where factors go by pages.
MICA_HD float descale_at(const Descale& d, i32 slot, i32 head_k) {
  return d.factor ? d.factor[slot * d.stride_slot + head_k * d.stride_head] : 1.0f;
}

}  // namespace MICA_NS
