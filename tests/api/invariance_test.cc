// SPDX-License-Identifier: Apache-2.0
// Batch invariance and run-to-run equality: bits, not tolerances.
#include <algorithm>

#include "tests/api/description.h"

namespace mica::testing_api {
namespace {

struct Threads {
  explicit Threads(int count) { mica_set_num_threads(count); }
  ~Threads() { mica_set_num_threads(0); }
};

// The element types as bits: numbers in (-2, 2).
struct Elements {
  int32_t dtype;
  size_t bytes;
  const char* name;
};
constexpr Elements kElements[] = {{MICA_FP32, 4, "fp32"}, {MICA_FP16, 2, "fp16"}, {MICA_BF16, 2, "bf16"}};

void fill(const Elements& e, std::vector<unsigned char>& bytes, size_t begin, size_t how_many, uint32_t seed) {
  const std::vector<float> x = numbers(how_many, seed);
  for (size_t n = 0; n < how_many; ++n) {
    uint32_t bits;
    std::memcpy(&bits, &x[n], 4);
    if (e.dtype == MICA_FP32) {
      std::memcpy(&bytes[(begin + n) * 4], &bits, 4);
      continue;
    }
    // Sign, an exponent from 2^-4 to 2^0, and random mantissa bits.
    const uint32_t sign = bits >> 31, exponent = bits % 5, mantissa = bits >> 8;
    const auto half = uint16_t(e.dtype == MICA_FP16 ? sign << 15 | (11 + exponent) << 10 | (mantissa & 0x3ff)
                                                    : sign << 15 | (123 + exponent) << 7 | (mantissa & 0x7f));
    std::memcpy(&bytes[(begin + n) * 2], &half, 2);
  }
}

constexpr size_t kHeadsQ = 4, kHeadsK = 2, kDim = 64;

// Packed causal attention over sequences given by (rows, keys, seed): the same seed gives the same contents.
struct Packed {
  struct Part {
    int32_t rows, keys;
    uint32_t seed;
  };
  Elements e;
  std::vector<Part> parts;
  std::vector<int32_t> cu_q = {0}, cu_k = {0};
  std::vector<unsigned char> q, k, v, o, d_o, dq, dk, dv;
  std::vector<float> lse;

  Packed(const Elements& elements, const std::vector<Part>& sequences) : e(elements), parts(sequences) {
    for (const Part& p : parts) cu_q.push_back(cu_q.back() + p.rows), cu_k.push_back(cu_k.back() + p.keys);
    const auto rows = size_t(cu_q.back()), keys = size_t(cu_k.back());
    for (auto* t : {&q, &o, &d_o, &dq}) t->assign(rows * kHeadsQ * kDim * e.bytes, 0xff);
    for (auto* t : {&k, &v, &dk, &dv}) t->assign(keys * kHeadsK * kDim * e.bytes, 0xff);
    lse.assign(kHeadsQ * rows, -7.0f);
    for (size_t n = 0; n < parts.size(); ++n) {
      const size_t from_q = size_t(cu_q[n]) * kHeadsQ * kDim, from_k = size_t(cu_k[n]) * kHeadsK * kDim;
      const size_t size_q = size_t(parts[n].rows) * kHeadsQ * kDim, size_k = size_t(parts[n].keys) * kHeadsK * kDim;
      fill(e, q, from_q, size_q, parts[n].seed), fill(e, d_o, from_q, size_q, parts[n].seed + 1);
      fill(e, k, from_k, size_k, parts[n].seed + 2), fill(e, v, from_k, size_k, parts[n].seed + 3);
    }
  }

  std::string run(mica_pass pass, bool is_invariant, bool is_deterministic) {
    mica_attention a = MICA_ATTENTION_INIT;
    const int64_t rows = cu_q.back(), keys = cu_k.back();
    a.q = a.o = dense(e.dtype, {1, rows, kHeadsQ, kDim});
    a.k = a.v = dense(e.dtype, {1, keys, kHeadsK, kDim});
    a.lse = dense(MICA_FP32, {1, kHeadsQ, rows, 1});
    a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
    a.sequences.vectors = MICA_CU_SEQLENS_Q | MICA_CU_SEQLENS_K;
    a.sequences.batch = int64_t(parts.size());
    // The hints follow the company, as a caller's would.
    for (const Part& p : parts) {
      a.sequences.max_seqlen_q = std::max<int64_t>(a.sequences.max_seqlen_q, p.rows);
      a.sequences.max_seqlen_k = std::max<int64_t>(a.sequences.max_seqlen_k, p.keys);
    }
    a.control.batch_invariant = is_invariant, a.control.deterministic = is_deterministic;
    if (pass == MICA_BACKWARD) a.gradients.d_o = a.o, a.gradients.dq = a.q, a.gradients.dk = a.k, a.gradients.dv = a.v;
    mica_plan* plan = nullptr;
    if (mica_plan_create(&a, pass, &plan) != MICA_OK) return mica_last_error();
    std::vector<unsigned char> space(mica_plan_workspace(plan) + 64, 0xff);
    mica_bindings x = MICA_BINDINGS_INIT;
    x.q = q.data(), x.k = k.data(), x.v = v.data(), x.o = o.data(), x.lse = lse.data();
    x.cu_seqlens_q = cu_q.data(), x.cu_seqlens_k = cu_k.data();
    x.d_o = d_o.data(), x.dq = dq.data(), x.dk = dk.data(), x.dv = dv.data();
    x.workspace = space.data() + (64 - reinterpret_cast<uintptr_t>(space.data()) % 64) % 64;
    x.workspace_bytes = mica_plan_workspace(plan);
    const mica_status status = mica_execute(plan, &x);
    mica_plan_destroy(plan);
    return status == MICA_OK ? "" : mica_last_error();
  }

  // The bytes of sequence n in a tensor on q's or k's side.
  std::vector<unsigned char> part_q(const std::vector<unsigned char>& t, size_t n) const {
    const size_t row = kHeadsQ * kDim * e.bytes;
    return {t.begin() + long(size_t(cu_q[n]) * row), t.begin() + long(size_t(cu_q[n + 1]) * row)};
  }
  std::vector<unsigned char> part_k(const std::vector<unsigned char>& t, size_t n) const {
    const size_t row = kHeadsK * kDim * e.bytes;
    return {t.begin() + long(size_t(cu_k[n]) * row), t.begin() + long(size_t(cu_k[n + 1]) * row)};
  }
};

const Packed::Part kProbes[] = {{1, 900, 10}, {37, 201, 20}, {130, 130, 30}, {3, 64, 40}, {64, 1, 50}};

TEST(BatchInvariance, ASequenceHasTheSameBitsAloneAndInAnyCompany) {
  for (const Elements& e : kElements)
    for (const Packed::Part& probe : kProbes) {
      Threads one(1);
      Packed alone(e, {probe});
      ASSERT_EQ(alone.run(MICA_FORWARD, true, false), "");
      ASSERT_EQ(alone.run(MICA_BACKWARD, true, true), "");
      const std::vector<std::vector<Packed::Part>> companies = {
          {probe, {5, 5, 70}},
          {{5, 9, 70}, probe},
          {{100, 300, 80}, {1, 1, 81}, probe, {0, 17, 82}, {9, 2000, 83}},
          {{1, 1, 90}, {1, 1, 91}, {1, 1, 92}, {1, 1, 93}, {1, 1, 94}, {1, 1, 95}, probe}};
      for (const auto& company : companies)
        for (const int threads : {1, 2, 3}) {
          Threads some(threads);
          Packed together(e, company);
          ASSERT_EQ(together.run(MICA_FORWARD, true, false), "");
          ASSERT_EQ(together.run(MICA_BACKWARD, true, true), "");
          size_t place = 0;
          while (company[place].seed != probe.seed) ++place;
          const std::string where = std::string(e.name) + " rows " + std::to_string(probe.rows) + " company " +
                                    std::to_string(company.size()) + " threads " + std::to_string(threads);
          EXPECT_TRUE(same_bits(together.part_q(together.o, place), alone.o)) << "o, " << where;
          EXPECT_TRUE(same_bits(together.part_q(together.dq, place), alone.dq)) << "dq, " << where;
          EXPECT_TRUE(same_bits(together.part_k(together.dk, place), alone.dk)) << "dk, " << where;
          EXPECT_TRUE(same_bits(together.part_k(together.dv, place), alone.dv)) << "dv, " << where;
          const size_t rows = size_t(probe.rows), total = size_t(together.cu_q.back());
          for (size_t h = 0; h < kHeadsQ; ++h)
            EXPECT_EQ(
                std::memcmp(&together.lse[h * total + size_t(together.cu_q[place])], &alone.lse[h * rows], rows * 4), 0)
                << "lse, " << where;
        }
    }
}

// Decode over a cache: the capacity, the number of sequences and the other lengths do not matter.
TEST(BatchInvariance, DecodeOverACacheOfAnyCapacity) {
  std::vector<float> first_o;
  for (const int64_t capacity : {700, 1000, 5000})
    for (const int64_t batch : {1, 2, 7})
      for (const int threads : {1, 2, 3}) {
        Threads some(threads);
        mica_attention a = describe(
            {.batch = batch, .len_q = 1, .len_k = capacity, .heads_q = 8, .heads_k = 2, .dim = 64, .dim_v = 64});
        a.sequences.vectors = MICA_SEQUSED_K;
        a.control.batch_invariant = 1;
        Call call(a);
        std::vector<int32_t> used(static_cast<size_t>(batch), int32_t(capacity));
        const size_t probe = size_t(batch / 2), row = 2 * 64;
        used[probe] = 650;
        const std::vector<float> q = numbers(8 * 64, 1000), k = numbers(650 * row, 1001), v = numbers(650 * row, 1002);
        std::memcpy(&call.q[probe * 8 * 64], q.data(), q.size() * 4);
        std::memcpy(&call.k[probe * size_t(capacity) * row], k.data(), k.size() * 4);
        std::memcpy(&call.v[probe * size_t(capacity) * row], v.data(), v.size() * 4);
        call.x.seqused_k = used.data();
        ASSERT_EQ(call.run(MICA_FORWARD), "");
        const std::vector<float> o(call.o.begin() + long(probe * 8 * 64), call.o.begin() + long((probe + 1) * 8 * 64));
        if (first_o.empty()) first_o = o;
        EXPECT_TRUE(same_bits(o, first_o)) << capacity << " " << batch << " " << threads;
      }
}

TEST(RunToRun, TheSameBitsEveryTimeWhateverTheThreads) {
  for (const Elements& e : kElements) {
    const std::vector<Packed::Part> company = {{100, 300, 1}, {1, 1000, 2}, {40, 40, 3}};
    Packed first(e, company);
    ASSERT_EQ(first.run(MICA_FORWARD, false, true), "");
    ASSERT_EQ(first.run(MICA_BACKWARD, false, true), "");
    for (const int threads : {0, 1, 2, 3, 7}) {
      Threads some(threads);
      Packed again(e, company);
      ASSERT_EQ(again.run(MICA_FORWARD, false, true), "");
      ASSERT_EQ(again.run(MICA_BACKWARD, false, true), "");
      EXPECT_TRUE(same_bits(again.o, first.o)) << e.name << ' ' << threads;
      EXPECT_TRUE(same_bits(again.lse, first.lse)) << e.name << ' ' << threads;
      EXPECT_TRUE(same_bits(again.dq, first.dq)) << e.name << ' ' << threads;
      EXPECT_TRUE(same_bits(again.dk, first.dk)) << e.name << ' ' << threads;
      EXPECT_TRUE(same_bits(again.dv, first.dv)) << e.name << ' ' << threads;
    }
  }
}

}  // namespace
}  // namespace mica::testing_api
