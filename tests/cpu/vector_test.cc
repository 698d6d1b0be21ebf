// SPDX-License-Identifier: Apache-2.0
// The vector arithmetic of every instruction set that this machine can run, against libm and the core's scalar code.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/random.h"
#include "cpu/isa/isa_list.h"
#include "tests/cpu/vector_probe.h"

#define MICA_DECLARE_PROBE(isa)                       \
  namespace probe_##isa {                             \
    extern const mica_test::VectorProbe vector_probe; \
  }
MICA_DECLARE_PROBE(neon)
MICA_DECLARE_PROBE(bfmmla)
MICA_DECLARE_PROBE(avx2)
MICA_DECLARE_PROBE(avx512)
MICA_DECLARE_PROBE(amx)
// Of those that this build has.
static const mica_test::VectorProbe* const kProbes[] = {
#ifdef MICA_HAS_ISA_neon
    &probe_neon::vector_probe,
#endif
#ifdef MICA_HAS_ISA_bfmmla
    &probe_bfmmla::vector_probe,
#endif
#ifdef MICA_HAS_ISA_avx2
    &probe_avx2::vector_probe,
#endif
#ifdef MICA_HAS_ISA_avx512
    &probe_avx512::vector_probe,
#endif
#ifdef MICA_HAS_ISA_amx
    &probe_amx::vector_probe,
#endif
};

namespace mica {
namespace {

class Vectors : public testing::TestWithParam<const mica_test::VectorProbe*> {
 protected:
  void SetUp() override {
    for (i32 n = 0; n < kNumIsas; ++n)
      if (std::string(kIsas[n].table().name) == GetParam()->isa) {
        if (!kIsas[n].is_available()) GTEST_SKIP() << "this CPU lacks " << GetParam()->isa;
        return;
      }
    FAIL() << GetParam()->isa << " is not in the library's list";
  }
  const mica_test::VectorProbe& probe() const { return *GetParam(); }
};

TEST_P(Vectors, Exp2IsWithinTwoRoundings) {
  std::vector<float> x;
  for (float at = -126.0f; at < 127.0f; at += 0.00173f) x.push_back(at);
  x.resize(x.size() / 16 * 16);
  std::vector<float> y = x;
  probe().exp2(y.data(), i32(y.size()));
  for (size_t n = 0; n < x.size(); ++n) {
    const double want = std::exp2(double(x[n]));
    ASSERT_LE(std::abs(y[n] - want), 1.8e-7 * want) << x[n];
  }
}

TEST_P(Vectors, Exp2AtItsEnds) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  float x[16] = {0, 1, -1, 127, -126, -127, -128, -1000, -1e30f, -kInf, 10, -20, std::nanf(""), 64, -64, 5};
  probe().exp2(x, 16);
  const float want[16] = {1, 2, 0.5f, 0x1p127f, 0x1p-126f, 0, 0, 0, 0, 0, 1024, 0x1p-20f, 0, 0x1p64f, 0x1p-64f, 32};
  for (int n = 0; n < 16; ++n) {
    if (n == 12)
      EXPECT_TRUE(std::isnan(x[n]));
    else
      EXPECT_EQ(x[n], want[n]) << n;
  }
}

TEST_P(Vectors, TanhIsRelativelyRight) {
  std::vector<float> x;
  for (float at = 1e-6f; at < 20.0f; at *= 1.0003f) x.insert(x.end(), {at, -at});
  x.resize(x.size() / 16 * 16);
  std::vector<float> y = x;
  probe().tanh(y.data(), i32(y.size()));
  for (size_t n = 0; n < x.size(); ++n) {
    const double want = std::tanh(double(x[n]));
    ASSERT_LE(std::abs(y[n] - want), 3e-7 * std::abs(want)) << x[n];
  }
}

TEST_P(Vectors, EveryHalfIsReadAsTheCoreReadsItAndWrittenBack) {
  for (const i32 dtype : {i32(MICA_FP16), i32(MICA_BF16)}) {
    std::vector<u16> all(65536 + 3), back(all.size());
    for (size_t n = 0; n < all.size(); ++n) all[n] = u16(n);
    std::vector<float> floats(all.size());
    probe().load_row(floats.data(), all.data(), dtype, i32(all.size()));
    for (size_t n = 0; n < all.size(); ++n) {
      const float want = load_as_float(all.data(), i64(n), dtype);
      ASSERT_TRUE(floats[n] == want || (std::isnan(floats[n]) && std::isnan(want))) << n;
    }
    probe().store_row(back.data(), floats.data(), dtype, i32(all.size()));
    for (size_t n = 0; n < all.size(); ++n)
      if (!std::isnan(floats[n])) {
        // x86 takes bf16's subnormals for 0 when it rounds by instruction.
        const bool is_flushed = dtype == MICA_BF16 && (all[n] & 0x7f80) == 0 && (back[n] & 0x7fff) == 0;
        ASSERT_TRUE(back[n] == all[n] || is_flushed) << n;
      }
  }
}

TEST_P(Vectors, HalvesAreRoundedToNearestEven) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> exponent(-13, 15), mantissa(-2, 2);
  std::vector<float> x(4097);
  for (float& v : x) v = mantissa(random) * std::exp2(std::round(exponent(random)));
  for (size_t n = 0; n + 1 < x.size(); n += 2) x[n] = float_of(bits_of(x[n]) & 0xfffff000u);  // some ties
  std::vector<u16> got(x.size());
  for (const i32 dtype : {i32(MICA_FP16), i32(MICA_BF16)}) {
    probe().store_row(got.data(), x.data(), dtype, i32(x.size()));
    for (size_t n = 0; n < x.size(); ++n)
      ASSERT_EQ(got[n], dtype == MICA_FP16 ? float_to_fp16(x[n]) : float_to_bf16(x[n])) << x[n];
  }
}

TEST_P(Vectors, DropoutTakesTheBitsOfTheCore) {
  const PhiloxKey key = philox_key(0x123456789abcdef0ull, 0xfedcba987ull);
  const u32 threshold = keep_threshold(0.35f);
  for (const i32 j_begin : {0, 32, 5, 127, 4096 + 31})
    for (const i32 count : {1, 16, 64, 131})
      for (i32 i = 0; i < 40; ++i) {
        std::vector<float> row(size_t(count), 1.0f);
        probe().drop_row(key, threshold, 77, u32(i), j_begin, row.data(), count);
        for (i32 c = 0; c < count; ++c)
          ASSERT_EQ(row[size_t(c)] != 0, is_kept(key, threshold, 77, u32(i), u32(j_begin + c)))
              << i << " " << j_begin + c;
      }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Vectors, testing::ValuesIn(kProbes),
                         [](const auto& info) { return std::string(info.param->isa); });

}  // namespace
}  // namespace mica
