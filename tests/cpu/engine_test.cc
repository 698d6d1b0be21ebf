// SPDX-License-Identifier: Apache-2.0
// Every engine that this machine can run: packing and product against a plain loop in double, odd sizes included.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/isa/isa_list.h"
#include "tests/cpu/engine_probe.h"
#include "tests/thin.h"

#define MICA_DECLARE_PROBE(isa, name)         \
  namespace probe_##isa {                     \
    extern const mica_test::EngineProbe name; \
  }
MICA_DECLARE_PROBE(neon, probe)
MICA_DECLARE_PROBE(bfmmla, probe)
MICA_DECLARE_PROBE(avx2, probe)
MICA_DECLARE_PROBE(avx512, probe)
MICA_DECLARE_PROBE(amx, probe)
MICA_DECLARE_PROBE(amx, probe_fp16)
MICA_DECLARE_PROBE(amx, probe_native_fp16)
// Of those that this build has.
static const mica_test::EngineProbe* const kProbes[] = {
#ifdef MICA_HAS_ISA_neon
    &probe_neon::probe,
#endif
#ifdef MICA_HAS_ISA_bfmmla
    &probe_bfmmla::probe,
#endif
#ifdef MICA_HAS_ISA_avx2
    &probe_avx2::probe,
#endif
#ifdef MICA_HAS_ISA_avx512
    &probe_avx512::probe,
#endif
#ifdef MICA_HAS_ISA_amx
    &probe_amx::probe,    &probe_amx::probe_fp16, &probe_amx::probe_native_fp16,
#endif
};

namespace mica {
namespace {

using mica_test::EngineProbe;
using mica_test::Product;

bool is_available(const EngineProbe& probe) {
  for (i32 n = 0; n < kNumIsas; ++n)
    if (std::string(kIsas[n].table().name) == probe.isa)
      return kIsas[n].is_available() && (std::string(probe.engine) != "amx_fp16" || has_amx_fp16());
  ADD_FAILURE() << probe.isa << " is not in the library's list";
  return false;
}

class Engine : public testing::TestWithParam<const EngineProbe*> {
 protected:
  void SetUp() override {
    if (!is_available(*GetParam())) GTEST_SKIP() << "this CPU lacks " << GetParam()->engine;
  }
};

// Values that the type and the engine hold exactly, so that packing rounds nothing: of 7 bits for bf16, else of 9.
std::vector<float> values(std::mt19937& random, i64 count, bool is_bf16) {
  const int levels = is_bf16 ? 64 : 511;
  std::uniform_int_distribution<int> level(-levels, levels);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = float(level(random)) / 32.0f;
  return x;
}

struct Sizes {
  i32 rows, cols, depth;
};

void check(const EngineProbe& probe, const Sizes& size, i32 dtype, bool transposed, bool accumulate,
           i32 unused_depth = 0) {
  std::mt19937 random(u32(size.rows * 7919 + size.cols * 31 + size.depth));
  const std::vector<float> a = values(random, i64(size.rows) * size.depth, probe.dtype == MICA_BF16);
  const std::vector<float> b =
      values(random, i64(size.depth) * size.cols, probe.dtype == MICA_BF16 || dtype == MICA_BF16);

  const i32 source_rows = transposed ? size.cols : size.depth, source_cols = transposed ? size.depth : size.cols;
  const i64 ld_b = source_cols + 3;
  // What lies between the rows is NaN: it must not be read.
  std::vector<unsigned char> source(static_cast<size_t>(source_rows * ld_b * dtype_bytes(dtype)), 0xff);
  for (i32 r = 0; r < source_rows; ++r)
    for (i32 c = 0; c < source_cols; ++c)
      store_float(
          source.data(), r * ld_b + c, dtype,
          transposed ? b[size_t(c) * size_t(size.cols) + size_t(r)] : b[size_t(r) * size_t(size.cols) + size_t(c)]);

  const i32 padded_rows = round_up(size.rows, probe.rows), padded_cols = round_up(size.cols, probe.cols);
  const i64 ld_c = round_up(padded_cols, 16) + 16;
  const i32 used_depth = size.depth - unused_depth;
  constexpr float kBefore = 7;
  const size_t count = size_t(padded_rows) * size_t(ld_c);
  float* c = static_cast<float*>(std::aligned_alloc(64, count * sizeof(float)));
  for (size_t n = 0; n < count; ++n) c[n] = kBefore;
  probe.multiply(Product{a.data(), source.data(), dtype, ld_b, transposed, size.rows, size.cols, size.depth, used_depth,
                         accumulate, c, ld_c});

  for (i32 r = 0; r < padded_rows; ++r)
    for (i64 k = 0; k < ld_c; ++k) {
      const float got = c[r * ld_c + k];
      if (k >= padded_cols) {  // past what the engine may write
        ASSERT_EQ(got, kBefore) << "row " << r << " column " << k;
      } else if (r < size.rows && k < size.cols) {
        double want = accumulate ? kBefore : 0;
        for (i32 n = 0; n < used_depth; ++n)
          want += double(a[size_t(r) * size_t(size.depth) + size_t(n)]) * b[size_t(n) * size_t(size.cols) + size_t(k)];
        // Products are multiples of 2^-10 and sums of this many stay below 2^14: fp32 holds every one of them.
        ASSERT_EQ(got, float(want)) << "row " << r << " column " << k;
      }
    }
  std::free(c);
}

// The 16-bit type that comes to the engine as it is.
i32 dtype16(const EngineProbe& probe) { return probe.dtype == MICA_FP16 ? MICA_FP16 : MICA_BF16; }

TEST_P(Engine, EveryRemainder) {
  const EngineProbe& probe = *GetParam();
  std::vector<i32> sizes = {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 63, 65};
  if (is_thin()) sizes = {1, 3, 8, 15, 17, 32, 47, 65};
  for (const i32 rows : sizes)
    for (const i32 cols : sizes)
      for (const i32 depth : sizes)
        for (const bool transposed : {false, true}) {
          SCOPED_TRACE(testing::Message() << rows << " x " << cols << " x " << depth << " transposed " << transposed);
          check(probe, Sizes{rows, cols, depth}, MICA_FP32, transposed, (rows + cols + depth) % 2 == 0);
          check(probe, Sizes{rows, cols, depth}, dtype16(probe), transposed, (rows + cols + depth) % 2 == 1);
          if (HasFatalFailure()) return;
        }
}

TEST_P(Engine, LargeShapes) {
  const EngineProbe& probe = *GetParam();
  for (const Sizes& size : {Sizes{64, 128, 576}, Sizes{576, 128, 64}, Sizes{70, 512, 130}, Sizes{130, 200, 512}})
    for (const bool transposed : {false, true}) {
      check(probe, size, dtype16(probe), transposed, true);
      check(probe, size, MICA_FP32, transposed, false);
      if (probe.dtype == MICA_FP32) check(probe, size, MICA_FP16, transposed, false);
      if (HasFatalFailure()) return;
    }
}

TEST_P(Engine, PartOfThePackedDepth) {
  for (const i32 unused : {1, 8, 31, 32, 40, 64, 100})
    for (const i32 cols : {16, 50, 128}) {
      check(*GetParam(), Sizes{37, cols, 128}, dtype16(*GetParam()), false, true, unused);
      if (HasFatalFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(Isa, Engine, testing::ValuesIn(kProbes),
                         [](const testing::TestParamInfo<const EngineProbe*>& info) { return info.param->engine; });

}  // namespace
}  // namespace mica
