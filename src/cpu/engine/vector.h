// SPDX-License-Identifier: Apache-2.0
// The arithmetic that core's templates take (see core/score.h): a Highway vector, and one float by the same
// polynomials. Everything in this folder's headers that is in MICA_NS is compiled once per instruction set, with flags
// that cover what Highway's functions ask for (so that both inline into each other without HWY_BEFORE_NAMESPACE).
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>
#endif
// NOTE: where bf16 instructions are on, Highway 1.0.7 (Ubuntu 24.04) takes the compiler's bfloat16_t for its own and
// does not compile. Nothing here asks Highway for bf16, so it is not told of them.
#pragma push_macro("__ARM_FEATURE_BF16_VECTOR_ARITHMETIC")
#undef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#include <hwy/highway.h>
#pragma pop_macro("__ARM_FEATURE_BF16_VECTOR_ARITHMETIC")

#include "core/fp8.h"
#include "core/softmax.h"

namespace MICA_NS {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::RebindToSigned<FloatTag>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using Vector = hn::Vec<FloatTag>;
constexpr i32 kLanes = i32(hn::MaxLanes(FloatTag()));

HWY_API Vector set(float x) { return hn::Set(FloatTag(), x); }
HWY_API Vector load(const float* p) { return hn::LoadU(FloatTag(), p); }
HWY_API void store(Vector v, float* p) { hn::StoreU(v, FloatTag(), p); }

// The larger; x where x is NaN. (Highway leaves open what its Max does then.)
HWY_API Vector max_or_nan(Vector low, Vector x) {
#if HWY_TARGET == HWY_NEON
  return Vector(vmaxq_f32(low.raw, x.raw));
#else
  return hn::Max(low, x);  // maxps gives its second operand
#endif
}

struct VectorMath {
  using V = Vector;
  static HWY_INLINE V set(float x) { return hn::Set(FloatTag(), x); }
  static HWY_INLINE V add(V a, V b) { return hn::Add(a, b); }
  static HWY_INLINE V sub(V a, V b) { return hn::Sub(a, b); }
  static HWY_INLINE V mul(V a, V b) { return hn::Mul(a, b); }
  static HWY_INLINE V div(V a, V b) { return hn::Div(a, b); }
  static HWY_INLINE V mul_add(V a, V b, V c) { return hn::MulAdd(a, b, c); }
  static HWY_INLINE V max(V a, V b) { return hn::Max(a, b); }
  static HWY_INLINE V abs(V a) { return hn::Abs(a); }
  static HWY_INLINE V select_if_equal(V a, V b, V yes, V no) { return hn::IfThenElse(hn::Eq(a, b), yes, no); }

  // 2^x for x up to 127; 0 from -127 down (also for -inf). Relative error of the polynomial: below 1e-7.
  static HWY_INLINE V exp2(V x) {
    return times_whole_power(x, [](V f) HWY_ATTR {
      V p = set(1.32647e-03f);
      p = hn::MulAdd(p, f, set(9.67151e-03f));
      p = hn::MulAdd(p, f, set(5.550734e-02f));
      p = hn::MulAdd(p, f, set(2.4022242e-01f));
      p = hn::MulAdd(p, f, set(6.9314698e-01f));
      return hn::MulAdd(p, f, set(1.0f));
    });
  }

  // The same for what is rounded to 16 bits: below 3e-6.
  static HWY_INLINE V exp2_for_16_bits(V x) {
    return times_whole_power(x, [](V f) HWY_ATTR {
      V p = set(9.58285e-03f);
      p = hn::MulAdd(p, f, set(5.590643e-02f));
      p = hn::MulAdd(p, f, set(2.4024099e-01f));
      p = hn::MulAdd(p, f, set(6.9312419e-01f));
      return hn::MulAdd(p, f, set(1.0f));
    });
  }

  // Small arguments by an odd polynomial (relative error 1e-8), others by 1 - 2 / (e^2|x| + 1).
  static HWY_INLINE V tanh(V x) {
    const V magnitude = hn::Min(hn::Abs(x), set(10.0f));
    const V z = hn::Mul(x, x);
    V p = set(2.270008470e-03f);
    p = hn::MulAdd(p, z, set(-8.323738276e-03f));
    p = hn::MulAdd(p, z, set(2.176272024e-02f));
    p = hn::MulAdd(p, z, set(-5.395849894e-02f));
    p = hn::MulAdd(p, z, set(1.333330041e-01f));
    p = hn::MulAdd(p, z, set(-3.333333315e-01f));
    const V small = hn::MulAdd(hn::Mul(p, z), x, x);
    const V e = exp2(hn::Mul(magnitude, set(2.0f * kLog2E)));
    const V large = hn::Sub(set(1.0f), hn::Div(set(2.0f), hn::Add(e, set(1.0f))));
    return hn::IfThenElse(hn::Lt(magnitude, set(0.625f)), small, hn::CopySign(large, x));
  }

 private:
  // 2^x = 2^f * 2^n: n is the nearest whole number, power_of_fraction gives 2^f for f in [-1/2, 1/2]. No result is
  // subnormal, which would be slow to compute with.
  template <class Power>
  static HWY_INLINE V times_whole_power(V x, const Power& power_of_fraction) {
#if defined(__AVX512DQ__)
    constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const __m512 f = _mm512_reduce_ps(x.raw, kToNearest);
    const __mmask16 is_normal = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);  // or NaN
    return V{_mm512_maskz_scalef_ps(is_normal, power_of_fraction(V{f}).raw, _mm512_sub_ps(x.raw, f))};
#else
    // Adding 1.5 * 2^23 + 127 rounds to a whole number and leaves, in the low bits, the biased exponent of its power.
    const V magic = set(12582912.0f + 127.0f);
    const V clamped = max_or_nan(set(-127.0f), x);
    const V shifted = hn::Add(clamped, magic);
    const V f = hn::Sub(clamped, hn::Sub(shifted, magic));
    return hn::Mul(power_of_fraction(f), hn::BitCast(FloatTag(), hn::ShiftLeft<23>(hn::BitCast(IntTag(), shifted))));
#endif
  }
};

struct ScalarMath {
  using V = float;
  static HWY_INLINE V set(float x) { return x; }
  static HWY_INLINE V add(V a, V b) { return a + b; }
  static HWY_INLINE V sub(V a, V b) { return a - b; }
  static HWY_INLINE V mul(V a, V b) { return a * b; }
  static HWY_INLINE V div(V a, V b) { return a / b; }
  static HWY_INLINE V mul_add(V a, V b, V c) { return __builtin_fmaf(a, b, c); }
  static HWY_INLINE V max(V a, V b) { return a < b ? b : a; }
  static HWY_INLINE V abs(V a) { return __builtin_fabsf(a); }
  static HWY_INLINE V select_if_equal(V a, V b, V yes, V no) { return a == b ? yes : no; }
  static HWY_INLINE V exp2(V x) { return hn::GetLane(VectorMath::exp2(hn::Set(FloatTag(), x))); }
  static HWY_INLINE V tanh(V x) { return hn::GetLane(VectorMath::tanh(hn::Set(FloatTag(), x))); }
  static HWY_INLINE V log2(V x) { return __builtin_log2f(x); }
};

HWY_API float reduce_max(Vector v) { return hn::GetLane(hn::MaxOfLanes(FloatTag(), v)); }
HWY_API float reduce_sum(Vector v) { return hn::GetLane(hn::SumOfLanes(FloatTag(), v)); }

template <class D, class V>
HWY_INLINE void store_sum_of_blocks(D d, V v, float* to) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(v, d, to);
  } else {
    const hn::Half<D> half;
    store_sum_of_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), to);
  }
}
// The sums of the lanes of four vectors: each four lanes become the four sums of theirs, then the fours are added.
HWY_INLINE void store_four_sums(const Vector (&x)[4], float* to) {
  const FloatTag d;
  const hn::RepartitionToWide<WordTag> wide;
  const auto a = hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, x[0], x[1]), hn::InterleaveUpper(d, x[0], x[1])));
  const auto b = hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, x[2], x[3]), hn::InterleaveUpper(d, x[2], x[3])));
  const Vector low = hn::BitCast(d, hn::InterleaveLower(wide, a, b));
  store_sum_of_blocks(d, hn::Add(low, hn::BitCast(d, hn::InterleaveUpper(wide, a, b))), to);
}

// Each 128 bits of v, 4 * step floats apart.
template <class D, class V>
HWY_INLINE void store_blocks(D d, V v, float* dst, i64 step) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(v, d, dst);
  } else {
    const hn::Half<D> half;
    store_blocks(half, hn::LowerHalf(half, v), dst, step);
    store_blocks(half, hn::UpperHalf(half, v), dst + i64(hn::MaxLanes(half)) * step, step);
  }
}

// Lane l of rows 0 to 3 goes to the four floats at dst + l * step: 4 x 4 transposes inside each 128 bits.
template <class D, class V>
HWY_INLINE void store_transposed(D d, V row0, V row1, V row2, V row3, float* dst, i64 step) {
  const hn::RepartitionToWide<hn::RebindToUnsigned<D>> wide;
  const auto a = hn::BitCast(wide, hn::InterleaveLower(d, row0, row1));
  const auto b = hn::BitCast(wide, hn::InterleaveLower(d, row2, row3));
  const auto e = hn::BitCast(wide, hn::InterleaveUpper(d, row0, row1));
  const auto f = hn::BitCast(wide, hn::InterleaveUpper(d, row2, row3));
  store_blocks(d, hn::BitCast(d, hn::InterleaveLower(wide, a, b)), dst, step);
  store_blocks(d, hn::BitCast(d, hn::InterleaveUpper(wide, a, b)), dst + step, step);
  store_blocks(d, hn::BitCast(d, hn::InterleaveLower(wide, e, f)), dst + 2 * step, step);
  store_blocks(d, hn::BitCast(d, hn::InterleaveUpper(wide, e, f)), dst + 3 * step, step);
}

// kLanes elements at p (no alignment) as floats.
template <i32 kDtype>
HWY_API Vector load_as(const void* p) {
  if constexpr (kDtype == MICA_FP32) {
    return load(static_cast<const float*>(p));
  } else if constexpr (kDtype == MICA_BF16) {
#if HWY_TARGET == HWY_NEON
    return Vector(vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(static_cast<const u16*>(p)), 16)));
#else
    const hn::Rebind<u16, FloatTag> half;
    const auto words = hn::PromoteTo(WordTag(), hn::LoadU(half, static_cast<const u16*>(p)));
    return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(words));
#endif
  } else {
    const hn::Rebind<u16, FloatTag> bits;
    const hn::Rebind<hwy::float16_t, FloatTag> half;
    return hn::PromoteTo(FloatTag(), hn::BitCast(half, hn::LoadU(bits, static_cast<const u16*>(p))));
  }
}

// The first `count` of kLanes elements, of which there are some, then zeros. Nothing is read behind them.
template <i32 kDtype>
HWY_INLINE Vector load_some(const void* p, i32 count) {
#if defined(__AVX2__)
  if constexpr (kDtype == MICA_FP32)
    return hn::MaskedLoad(hn::FirstN(FloatTag(), size_t(count)), FloatTag(), static_cast<const float*>(p));
#endif
  float some[kLanes] = {};
  for (i32 n = 0; n < count; ++n) some[n] = load_as_float(p, n, kDtype);
  return load(some);
}

// The same of e4m3 (see e4m3_to_float).
HWY_API Vector load_e4m3(const u8* p) {
  const hn::Rebind<u8, FloatTag> bytes;
  const auto words = hn::PromoteTo(WordTag(), hn::LoadU(bytes, p));
  const auto magnitude = hn::And(words, hn::Set(WordTag(), 0x7fu));
  const auto sign = hn::ShiftLeft<24>(hn::And(words, hn::Set(WordTag(), 0x80u)));
  const Vector normal = hn::BitCast(FloatTag(), hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(WordTag(), 120u << 23)));
  const Vector whole = hn::ConvertTo(FloatTag(), hn::BitCast(IntTag(), magnitude));
  const Vector small = hn::Mul(whole, set(0x1p-9f));
  const Vector value = hn::IfThenElse(hn::Lt(whole, set(8.0f)), small, normal);
  const Vector nan = hn::BitCast(FloatTag(), hn::Set(WordTag(), 0x7fc00000u));
  const Vector numbered = hn::IfThenElse(hn::Eq(whole, set(127.0f)), nan, value);
  return hn::BitCast(FloatTag(), hn::Or(hn::BitCast(WordTag(), numbered), sign));
}

// Round to nearest even. NOTE: the bf16 path takes a NaN to a NaN only if it has a bit in its upper half, as those of
// arithmetic do.
template <i32 kDtype>
HWY_API void store_as(Vector v, void* p) {
  if constexpr (kDtype == MICA_FP32) {
    store(v, static_cast<float*>(p));
  } else if constexpr (kDtype == MICA_BF16) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    vst1_u16(static_cast<u16*>(p), vreinterpret_u16_bf16(vcvt_bf16_f32(v.raw)));
#elif defined(__AVX512BF16__)
    _mm256_storeu_si256(static_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(v.raw));
#else
    const auto bits = hn::BitCast(WordTag(), v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(WordTag(), 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(WordTag(), 0x7fffu)), odd));
    const auto kept = hn::IfThenElse(hn::RebindMask(WordTag(), hn::Eq(v, v)), rounded, hn::ShiftRight<16>(bits));
    const hn::Rebind<u16, FloatTag> half;
    // Below 2^16, so that nothing saturates (TruncateTo came with Highway 1.0; Ubuntu 22.04 has 0.16).
    const auto narrow = hn::DemoteTo(half, hn::BitCast(hn::RebindToSigned<WordTag>(), kept));
    hn::StoreU(narrow, half, static_cast<u16*>(p));
#endif
  } else {
    const hn::Rebind<u16, FloatTag> bits;
    const hn::Rebind<hwy::float16_t, FloatTag> half;
    hn::StoreU(hn::BitCast(bits, hn::DemoteTo(half, v)), bits, static_cast<u16*>(p));
  }
}

template <i32 kDtype>
HWY_INLINE void load_row_as(float* dst, const void* src, i32 count) {
  constexpr i32 kBytes = kDtype == MICA_FP32 ? 4 : 2;
  i32 c = 0;
  for (; c + kLanes <= count; c += kLanes) store(load_as<kDtype>(static_cast<const char*>(src) + c * kBytes), dst + c);
  for (; c < count; ++c) dst[c] = load_as_float(src, c, kDtype);
}

// count e4m3 elements times their factor.
inline void load_row_e4m3(float* dst, const void* src, float factor, i32 count) {
  const u8* from = static_cast<const u8*>(src);
  i32 c = 0;
  for (; c + kLanes <= count; c += kLanes) store(hn::Mul(load_e4m3(from + c), set(factor)), dst + c);
  for (; c < count; ++c) dst[c] = e4m3_to_float(from[c]) * factor;
}

// count elements of any floating type of 16 or 32 bits to floats, and back.
inline void load_row(float* dst, const void* src, i32 dtype, i32 count) {
  if (dtype == MICA_FP32)
    load_row_as<MICA_FP32>(dst, src, count);
  else if (dtype == MICA_BF16)
    load_row_as<MICA_BF16>(dst, src, count);
  else
    load_row_as<MICA_FP16>(dst, src, count);
}

template <i32 kDtype>
HWY_INLINE void store_row_scaled_as(void* dst, const float* src, float factor, i32 count) {
  constexpr i32 kBytes = kDtype == MICA_FP32 ? 4 : 2;
  const Vector f = set(factor);
  i32 c = 0;
  for (; c + kLanes <= count; c += kLanes)
    store_as<kDtype>(hn::Mul(load(src + c), f), static_cast<char*>(dst) + c * kBytes);
  for (; c < count; ++c) store_float(dst, c, kDtype, src[c] * factor);
}

// dst = src * factor.
inline void store_row_scaled(void* dst, const float* src, float factor, i32 dtype, i32 count) {
  if (dtype == MICA_FP32)
    store_row_scaled_as<MICA_FP32>(dst, src, factor, count);
  else if (dtype == MICA_BF16)
    store_row_scaled_as<MICA_BF16>(dst, src, factor, count);
  else
    store_row_scaled_as<MICA_FP16>(dst, src, factor, count);
}

}  // namespace MICA_NS
