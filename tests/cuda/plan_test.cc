// SPDX-License-Identifier: Apache-2.0
// The C interface on a fake GPU: what is launched, with which parameters, under which context.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cuda/kernels/params.h"
#include "mica/mica.h"
#include "tests/cuda/fake_driver.h"

namespace mica {
namespace {

// The library opens the driver once per process: the fake keeps its devices through all tests.
class PlanTest : public ::testing::Test {
 protected:
  PlanTest() : fake(*test::mica_fake_driver()) {
    test::mica_fake_reset();
    test::mica_fake_set_context(nullptr);
    fake.params_bytes = sizeof(ForwardParams);
  }
  void SetUp() override {
    if (mica_device_count(MICA_CUDA) == 0) GTEST_SKIP() << mica_last_error();
    // A build may carry images for one of the two architectures alone.
    for (device = 0; device < 2; ++device)
      if (Plan(describe(4, 300)).plan) return;
    GTEST_SKIP() << "no images for sm_90 or sm_86: " << mica_last_error();
  }

  // bf16, batch 2, d = 64.
  mica_attention describe(int64_t heads, int64_t rows, int64_t keys = 512) const {
    mica_attention a = MICA_ATTENTION_INIT;
    a.device = {MICA_CUDA, device};
    a.q = a.o = {MICA_BF16, 16, {2, rows, heads, 64}, {rows * heads * 64, heads * 64, 64, 1}};
    a.k = a.v = {MICA_BF16, 16, {2, keys, heads, 64}, {keys * heads * 64, heads * 64, 64, 1}};
    return a;
  }

  struct Plan {
    explicit Plan(const mica_attention& a, mica_pass pass = MICA_FORWARD) {
      status = mica_plan_create(&a, pass, &plan);
    }
    ~Plan() { mica_plan_destroy(plan); }
    mica_status status;
    mica_plan* plan = nullptr;
  };

  // Addresses are never followed: the fake launches nothing.
  static mica_bindings bind(const Plan& plan) {
    mica_bindings x = MICA_BINDINGS_INIT;
    x.q = reinterpret_cast<void*>(0x10000000);
    x.k = reinterpret_cast<void*>(0x20000000);
    x.v = reinterpret_cast<void*>(0x30000000);
    x.o = reinterpret_cast<void*>(0x40000000);
    x.workspace = reinterpret_cast<void*>(0x50000);
    x.workspace_bytes = mica_plan_workspace(plan.plan);
    x.stream = reinterpret_cast<void*>(0x60000);
    return x;
  }

  // All gradients in a fixed order; as many keys as rows.
  static void want_gradients(mica_attention& a) {
    const int64_t batch = a.q.shape[0], rows = a.q.shape[1], heads = a.q.shape[2];
    a.lse = {MICA_FP32, 4, {batch, heads, rows, 1}, {heads * rows, rows, 1, 0}};
    a.gradients.d_o = a.o;
    a.gradients.dq = a.q;
    a.gradients.dk = a.gradients.dv = a.k;
    a.control.deterministic = 1;
  }
  // The same of rows of `dim` columns, whose heads may be of groups.
  mica_attention describe_gradients(int64_t heads, int64_t heads_k, int64_t rows, int64_t dim, bool causal = false,
                                    int64_t batch = 1) const {
    mica_attention a = describe(heads, rows, rows);
    a.q = a.o = {MICA_BF16, 16, {batch, rows, heads, dim}, {rows * heads * dim, heads * dim, dim, 1}};
    a.k = a.v = {MICA_BF16, 16, {batch, rows, heads_k, dim}, {rows * heads_k * dim, heads_k * dim, dim, 1}};
    if (causal) a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
    want_gradients(a);
    return a;
  }
  static mica_bindings bind_gradients(const Plan& plan) {
    mica_bindings x = bind(plan);
    x.d_o = x.o;
    x.lse = reinterpret_cast<float*>(0x70000000);
    x.dq = reinterpret_cast<void*>(0x80000000);
    x.dk = reinterpret_cast<void*>(0x90000000);
    x.dv = reinterpret_cast<void*>(0xa0000000);
    x.stream = nullptr;  // where kernels run, the fake looks into streams: one may be captured
    return x;
  }

  ForwardParams launched() const {
    ForwardParams p;
    std::memcpy(&p, fake.last_launch.params, sizeof p);
    return p;
  }

  test::FakeDriver& fake;
  int32_t device = 0;
};

TEST_F(PlanTest, ASecondQueryHasKernelsOfItsOwn) {
  mica_attention a = describe(16, 1, 100);
  a.k = {MICA_BF16, 16, {2, 100, 1, 64}, {6400, 64, 64, 1}};
  a.v = {MICA_BF16, 16, {2, 100, 1, 512}, {51200, 512, 512, 1}};
  a.o = a.qv = {MICA_BF16, 16, {2, 1, 16, 512}, {8192, 8192, 512, 1}};
  const Plan plan(a);
  if (plan.status != MICA_OK) GTEST_SKIP() << mica_last_error();  // a build may carry images of few kernels
  const std::string kernel = mica_plan_kernel(plan.plan);
  const bool is_mapped = kernel == "cuda/mla_tma_sm90_bf16_qv";
  EXPECT_TRUE(is_mapped || kernel == "cuda/forward_wide_sm80_bf16_qv") << kernel;
  mica_bindings x = bind(plan);
  x.qv = reinterpret_cast<void*>(0x70000000);
  fake.params_bytes = is_mapped ? sizeof(QvMapsParams) : sizeof(QvParams);
  ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
  QvParams plain;
  QvMapsParams mapped;
  if (is_mapped)
    std::memcpy(&mapped, fake.last_launch.params, sizeof mapped);
  else
    std::memcpy(&plain, fake.last_launch.params, sizeof plain);
  const RowsArg& qv = is_mapped ? mapped.qv : plain.qv;
  EXPECT_EQ(qv.data, x.qv);
  EXPECT_EQ(qv.stride_head, 512);
  EXPECT_EQ(launched().dim_qk, 576);

  a.score.softcap = 30;
  EXPECT_EQ(std::string(mica_plan_kernel(Plan(a).plan)),
            is_mapped ? "cuda/mla_tma_sm90_bf16_softcap_qv" : "cuda/forward_wide_sm80_bf16_qv");
  a.mask.boolean = {MICA_BOOL, 1, {1, 1, 1, 100}, {100, 100, 100, 1}};
  EXPECT_EQ(std::string(mica_plan_kernel(Plan(a).plan)), "cuda/forward_wide_sm80_bf16_qv") << mica_last_error();
}

TEST_F(PlanTest, ForwardIsOneLaunchOnTheCallersStream) {
  mica_attention a = describe(4, 300);
  a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
  const Plan plan(a);
  ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
  EXPECT_EQ(std::string(mica_plan_kernel(plan.plan)).rfind("cuda/forward_", 0), 0u) << mica_plan_kernel(plan.plan);
  EXPECT_EQ(mica_plan_workspace(plan.plan), 0u);
  const mica_bindings x = bind(plan);
  ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
  EXPECT_EQ(fake.launches, 1);
  EXPECT_EQ(fake.synchronisations, 0);
  EXPECT_EQ(fake.last_launch.stream, x.stream);
  EXPECT_EQ(fake.last_launch.overlaps, fake.arch[device] >= 90) << "Hopper's kernels wait for the one before";
  const ForwardParams p = launched();
  EXPECT_EQ(p.q.data, x.q);
  EXPECT_EQ(p.k.data, x.k);
  EXPECT_EQ(p.v.data, x.v);
  EXPECT_EQ(p.o.data, x.o);
  EXPECT_EQ(p.lse, nullptr) << "not described, not looked at";
  EXPECT_EQ(p.q.stride_row, 4 * 64);
  EXPECT_EQ(p.sequences.slot_len_k, 512);
  EXPECT_EQ(p.band.window_right, 0);
  EXPECT_EQ(p.partial_o, nullptr);
  EXPECT_EQ(fake.last_launch.grid_x, unsigned(p.tiles_q * 4 * 2));
  EXPECT_GE(p.tiles_q * 192, 300);  // no row of kernels.def has larger tiles
}

TEST_F(PlanTest, TheCallersContextIsGivenBack) {
  const Plan plan(describe(4, 300));
  ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
  int other;
  test::mica_fake_set_context(&other);
  const mica_bindings x = bind(plan);
  ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
  EXPECT_NE(fake.last_launch.context, &other);
  EXPECT_EQ(test::mica_fake_context(), &other);
}

TEST_F(PlanTest, SplitsWritePartsAndJoinThem) {
  mica_attention a = describe(4, 300);
  a.control.num_splits = 3;
  const Plan plan(a);
  ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
  EXPECT_EQ(mica_plan_splits(plan.plan), 3);
  EXPECT_GE(mica_plan_workspace(plan.plan), size_t(3) * 2 * 300 * 4 * (64 + 1) * 4);
  const mica_bindings x = bind(plan);
  ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
  EXPECT_EQ(fake.launches, 2);
  EXPECT_EQ(fake.last_launch.grid_x, 2u * 300 * 4 / 16) << "the join: a warp per row and head, sixteen a block";
  EXPECT_EQ(fake.last_launch.overlaps, fake.arch[device] >= 90) << "machine code for Hopper waits by itself";
  const ForwardParams p = launched();
  EXPECT_NE(p.partial_o, nullptr);
  EXPECT_EQ(p.partial_rows, 600);
}

TEST_F(PlanTest, OneQueryRowTakesDecodeAndSplits) {
  const Plan plan(describe(2, 1, 8192));
  ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
  EXPECT_EQ(std::string(mica_plan_kernel(plan.plan)).rfind("cuda/decode_", 0), 0u) << mica_plan_kernel(plan.plan);
  EXPECT_GT(mica_plan_splits(plan.plan), 8) << "100 multiprocessors, 4 pairs of batch and head";
}

// On Hopper the last block joins few splits of few rows, unless there are blocks for every SM and a second one for some
// of the 100; a word of the workspace tells it, by a number that no two calls share.
TEST_F(PlanTest, FewSplitsOfDecodeAreOneLaunch) {
  struct Case {
    int64_t heads_k, group, rows, keys;
    int32_t splits;
    bool is_joined;
  };
  for (const Case& c : {Case{2, 1, 1, 8192, 16, true}, Case{2, 1, 1, 8192, 17, false}, Case{2, 8, 1, 8192, 16, true},
                        Case{2, 8, 2, 8192, 16, false}, Case{2, 8, 2, 8192, 8, true}, Case{2, 16, 1, 8192, 9, false},
                        Case{16, 1, 1, 8192, 3, true}, Case{16, 1, 1, 8192, 4, false}, Case{16, 1, 1, 1024, 4, true},
                        Case{16, 1, 1, 8192, 6, true}}) {
    mica_attention a = describe(c.heads_k * c.group, c.rows, c.keys);
    a.k = a.v = {MICA_BF16, 16, {2, c.keys, c.heads_k, 64}, {c.keys * c.heads_k * 64, c.heads_k * 64, 64, 1}};
    a.control.num_splits = c.splits;
    const Plan plan(a);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    ASSERT_EQ(mica_plan_splits(plan.plan), c.splits);
    const bool is_joined = fake.arch[device] == 90 && c.is_joined;
    const mica_bindings x = bind(plan);
    u64 epoch[2];
    for (u64& each : epoch) {
      fake.launches = 0;
      ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
      EXPECT_EQ(fake.launches, is_joined ? 1 : 2);
      EXPECT_EQ(launched().work_counter != nullptr, is_joined);
      each = launched().work_epoch;
    }
    EXPECT_EQ(epoch[0] != epoch[1], is_joined);
  }
}

// Rows of 64 bytes: of two key heads that lie side by side one block takes both, if their keys do not fit into L2. On
// 100 SMs 400 such blocks are two rounds, whether two or three share an SM, and two take less time. Of heads that lie
// apart, too, a block takes two where that saves rounds: of 240 heads three on an SM do as well alone.
TEST_F(PlanTest, KeysOfHalfALineAreTakenForTwoHeads) {
  const struct {
    int64_t batch;
    bool rows_first;
    int32_t heads_of_block;
  } cases[] = {{100, true, 2}, {100, false, 2}, {30, true, 2}, {30, false, 1}};
  for (const auto& [batch, rows_first, heads_of_block] : cases) {
    constexpr int64_t kKeys = 8192, kHeads = 8;
    mica_attention a = MICA_ATTENTION_INIT;
    a.device = {MICA_CUDA, device};
    a.q = a.o = {MICA_BF16, 16, {batch, 1, 32, 64}, {32 * 64, 32 * 64, 64, 1}};
    a.k = {MICA_FP8_E4M3, 16, {batch, kKeys, kHeads, 64}, {kKeys * kHeads * 64, kHeads * 64, 64, 1}};
    if (!rows_first) a.k.stride[1] = 64, a.k.stride[2] = kKeys * 64;
    a.v = a.k;
    const Plan plan(a);
    if (plan.status != MICA_OK) GTEST_SKIP() << mica_last_error();
    mica_bindings x = bind(plan);
    x.v = reinterpret_cast<void*>(0x100000000);
    x.o = reinterpret_cast<void*>(0x200000000);
    ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
    EXPECT_EQ(launched().section_heads, heads_of_block);
    if (batch != 100) continue;
    EXPECT_EQ(mica_plan_splits(plan.plan), 1);
    EXPECT_EQ(fake.last_launch.grid_x, batch * kHeads / heads_of_block);
    EXPECT_GT(fake.last_launch.shared_bytes, 228u * 1024 / 3 - 1024) << "so that two blocks share an SM";
  }
}

// On 100 SMs 200 blocks of e4m3 keys run at once. 20 more would make a second round that is nearly empty: on Hopper the
// last block of a tile joins few ranges, and the keys of the last sequences are cut so that they fill the round; where
// combine does, or 256 columns are too many, all keys are cut in four, which are five rounds of a quarter.
TEST_F(PlanTest, KeysOfE4m3AreCutWhereARoundIsNearlyEmpty) {
  for (const int64_t dim : {128, 256})
    for (const int64_t batch : {50, 55}) {
      constexpr int64_t kKeys = 6144, kHeads = 4;
      mica_attention a = MICA_ATTENTION_INIT;
      a.device = {MICA_CUDA, device};
      a.q = a.o = {MICA_BF16, 16, {batch, 1, 16, dim}, {16 * dim, 16 * dim, dim, 1}};
      a.k = a.v = {MICA_FP8_E4M3, 16, {batch, kKeys, kHeads, dim}, {kKeys * kHeads * dim, kHeads * dim, dim, 1}};
      const Plan plan(a);
      if (plan.status != MICA_OK) GTEST_SKIP() << mica_last_error();
      const bool fills_round = fake.arch[device] == 90 && dim == 128 && batch == 55;
      EXPECT_EQ(mica_plan_splits(plan.plan), batch == 50 ? 1 : fills_round ? 10 : 4) << mica_plan_kernel(plan.plan);
      mica_bindings x = bind(plan);
      x.v = reinterpret_cast<void*>(0x100000000);
      x.o = reinterpret_cast<void*>(0x200000000);
      fake.launches = 0;
      ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
      if (batch == 50 || fills_round) {
        EXPECT_EQ(fake.launches, 1);
        EXPECT_EQ(fake.last_launch.grid_x, fills_round ? 400u : 200u);
        EXPECT_EQ(launched().first_sequences, fills_round ? 50 : 0);
      }
    }
}

// 64 query heads of a key head with four rows each are 256 rows of one head: two tiles of 128 for each of 24 sequences,
// which are half of the 100 SMs, so that the keys are cut in two; those of four sequences in eleven, of a single one in
// ranges of three tiles or two. Under a causal mask and where the heads of two key heads alternate likewise.
TEST_F(PlanTest, HeadsAsRowsAreCutUntilTheyFillTheGpu) {
  const struct {
    int64_t batch, heads_k, keys;
    bool causal;
    int32_t splits;
  } cases[] = {{24, 1, 8192, false, 2}, {24, 1, 8192, true, 2},  {12, 2, 8192, true, 2}, {4, 1, 8192, true, 11},
               {1, 1, 8192, false, 22}, {1, 1, 4096, false, 16}, {1, 1, 4096, true, 16}};
  for (const auto& c : cases) {
    mica_attention a = describe(64 * c.heads_k, 4, c.keys);
    a.q.shape[0] = a.o.shape[0] = c.batch;
    a.lse = {MICA_FP32, 4, {c.batch, 64 * c.heads_k, 4, 1}, {256 * c.heads_k, 4, 1, 0}};
    const int64_t row = 64 * c.heads_k;
    a.k = a.v = {MICA_BF16, 16, {c.batch, c.keys, c.heads_k, 64}, {c.keys * row, row, 64, 1}};
    if (c.causal) a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
    const Plan plan(a);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    const std::string kernel = mica_plan_kernel(plan.plan);
    if (kernel.find("sm90") == std::string::npos) GTEST_SKIP() << kernel << ": the build has no images for Hopper";
    EXPECT_EQ(kernel, "cuda/forward_sm90_bf16_d64_middle");
    EXPECT_EQ(mica_plan_splits(plan.plan), c.splits) << c.batch << " x " << c.keys;
  }
}

// Which kernel takes so many rows of 16 heads that share a key head, of so many sequences. 192 rows are one tall tile,
// but two tiles of 128 make more of few keys. Decode keeps 16 rows, and 48 of many long
// caches.
TEST_F(PlanTest, FewRowsGoByWhatKernelsCost) {
  const struct {
    int64_t batch, rows, keys, dim;
    const char* kernel;
  } cases[] = {{16, 12, 32768, 128, "forward_sm90_bf16_d128_joined"},
               {16, 12, 32768, 64, "forward_sm90_bf16_d64_joined"},
               {6, 12, 2048, 128, "forward_sm90_bf16_d128_middle"},
               {8, 3, 2048, 256, "forward_sm90_bf16_d256"},
               {32, 3, 4096, 64, "forward_sm90_bf16_d64_middle"},
               {96, 3, 32768, 128, "decode_sm90_bf16_d128"},
               {8, 1, 2048, 128, "decode_sm80_bf16_d128"}};
  for (const auto& c : cases) {
    mica_attention a = describe(16, c.rows, c.keys);
    a.q = a.o = {MICA_BF16, 16, {c.batch, c.rows, 16, c.dim}, {c.rows * 16 * c.dim, 16 * c.dim, c.dim, 1}};
    a.k = a.v = {MICA_BF16, 16, {c.batch, c.keys, 1, c.dim}, {c.keys * c.dim, c.dim, c.dim, 1}};
    a.lse = {};
    a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
    const Plan plan(a);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    if (fake.arch[device] < 90) GTEST_SKIP() << mica_plan_kernel(plan.plan) << ": the build has no images for Hopper";
    EXPECT_EQ(mica_plan_kernel(plan.plan), std::string("cuda/") + c.kernel) << c.batch << " x " << c.rows;
  }
}

// 512 rows of four heads of two sequences are a third of the 100 SMs or less: on a long cache the keys are cut so that
// all of them work, on a short one the parts and their join would cost more; so would they under a narrow window.
TEST_F(PlanTest, AChunkOnALongCacheIsCutUntilItFillsTheGpu) {
  const auto splits_of = [&](int64_t rows, int64_t keys, int32_t window_left) {
    mica_attention a = describe(4, rows, keys);
    a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
    a.mask.window_left = window_left;
    const Plan plan(a);
    EXPECT_EQ(plan.status, MICA_OK) << mica_last_error();
    const bool is_hopper = std::string(mica_plan_kernel(plan.plan)).rfind("cuda/forward_sm90", 0) == 0;
    return is_hopper ? mica_plan_splits(plan.plan) : 0;
  };
  const int32_t splits = splits_of(512, 65536, MICA_UNLIMITED);
  if (fake.arch[device] < 90) GTEST_SKIP() << "the build has no images for Hopper";
  EXPECT_GE(splits, 3);
  EXPECT_EQ(splits_of(512, 1024, MICA_UNLIMITED), 1);
  EXPECT_EQ(splits_of(512, 65536, 255), 1);
  EXPECT_EQ(splits_of(8192, 65536, MICA_UNLIMITED), 1);
}

// More rows of a key head than decode takes: tiles are not left to the eight rows of a single head.
TEST_F(PlanTest, HeadsThatFillLittleOfATileAreJoined) {
  mica_attention a = describe(64, 8, 512);
  a.k = a.v = {MICA_BF16, 16, {2, 512, 1, 64}, {512 * 64, 64, 64, 1}};
  a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
  const Plan plan(a);
  ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
  if (fake.arch[device] < 90) GTEST_SKIP() << mica_plan_kernel(plan.plan) << ": the build has no images for Hopper";
  EXPECT_EQ(std::string(mica_plan_kernel(plan.plan)), "cuda/forward_sm90_bf16_d64_middle");
  mica_bindings x = bind(plan);
  EXPECT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
  EXPECT_EQ(launched().joined_heads, 64);
}

// 17 to 64 rows with few keys: one tile of forward for each head reads the keys once; decode keeps up to 16 rows, few
// heads with very few or many keys, and what must not depend on the batch. The fake GPU has 100 SMs.
TEST_F(PlanTest, FewRowsOfManyHeadsAreOneTile) {
  const struct {
    int64_t batch, rows, keys, causal;
    bool forward, invariant;
  } cases[] = {{32, 50, 50, 0, true, false},  {32, 50, 50, 1, true, false},  {32, 64, 2048, 1, true, false},
               {32, 17, 17, 1, true, false},  {32, 16, 16, 1, false, false}, {32, 64, 8192, 1, false, false},
               {10, 32, 512, 1, true, false}, {10, 32, 64, 1, false, false}, {1, 32, 512, 1, false, false},
               {32, 50, 50, 1, false, true}};
  for (const auto& c : cases) {
    mica_attention a = describe(4, c.rows, c.keys);
    for (mica_tensor* t : {&a.q, &a.k, &a.v, &a.o}) t->shape[0] = c.batch;
    if (c.causal) a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
    a.control.batch_invariant = c.invariant;
    const Plan plan(a);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    const std::string kernel = mica_plan_kernel(plan.plan);
    if (fake.arch[device] < 90) GTEST_SKIP() << kernel << ": the build has no images for Hopper";
    EXPECT_EQ(kernel.find("cuda/forward_sm90") == 0, c.forward)
        << c.batch << " x " << c.rows << " x " << c.keys << ": " << kernel;
  }
}

// 40 heads on 100 SMs: decode begins sooner where keys are few, but not if it has to look up where sequences begin.
TEST_F(PlanTest, FewRowsOfPackedSequencesAreOneTile) {
  for (const bool is_packed : {false, true}) {
    mica_attention a = describe(1, 48, 48);
    const int64_t batch = is_packed ? 1 : 40, rows = is_packed ? 40 * 48 : 48;
    for (mica_tensor* t : {&a.q, &a.k, &a.v, &a.o}) {
      t->shape[0] = batch;
      t->shape[1] = rows;
    }
    a.lse = {};
    if (is_packed) {
      a.sequences.vectors = MICA_CU_SEQLENS_Q | MICA_CU_SEQLENS_K;
      a.sequences.batch = 40;
      a.sequences.max_seqlen_q = a.sequences.max_seqlen_k = 48;
    }
    const Plan plan(a);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    const std::string kernel = mica_plan_kernel(plan.plan);
    if (fake.arch[device] < 90) GTEST_SKIP() << kernel << ": the build has no images for Hopper";
    EXPECT_EQ(kernel.find("cuda/forward_sm90") == 0, is_packed) << kernel;
  }
}

// Packed rows of one length beside keys that are not packed: a block takes two items at once if a hint calls the keys
// few, and must not where they are many.
TEST_F(PlanTest, AHintDoesNotMakeKeysOfOneLengthShort) {
  for (const int64_t hint : {0, 2048, 64}) {
    mica_attention a = describe(4, 256, 2048);
    a.q.shape[0] = a.o.shape[0] = 1;
    a.q.shape[1] = a.o.shape[1] = 64 * 256;
    a.k.shape[0] = a.v.shape[0] = a.sequences.batch = 64;
    a.sequences.vectors = MICA_CU_SEQLENS_Q;
    a.sequences.max_seqlen_q = 256;
    a.sequences.max_seqlen_k = hint;
    const Plan plan(a);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    if (fake.arch[device] < 90) GTEST_SKIP() << mica_plan_kernel(plan.plan) << ": the build has no images for Hopper";
    mica_bindings x = bind(plan);
    x.cu_seqlens_q = reinterpret_cast<int32_t*>(0x70000);
    ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
    EXPECT_EQ(launched().even_len_q, hint == 64 ? 0 : 256);
    EXPECT_EQ(launched().even_len_k, hint == 64 ? 0 : 2048);
  }
}

// Under a causal mask the tiles of all heads whose keys L2 keeps go from the heaviest to the lightest; more heads in
// sections of one size, which may be larger so that the last one has as many tiles as keep all SMs at work.
TEST_F(PlanTest, SectionsOfHeadsHaveOneSize) {
  const struct {
    int64_t heads, keys;  // of each of two sequences
    int32_t section;
  } cases[] = {{10, 3489, 20}, {20, 8192, 14}, {8, 16384, 8}, {8, 32768, 4}};
  for (const auto& [heads, keys, section] : cases) {
    mica_attention a = describe(heads, keys, keys);
    a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
    const Plan plan(a);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    if (std::string(mica_plan_kernel(plan.plan)).find("sm90") == std::string::npos) GTEST_SKIP() << "not for Hopper";
    const mica_bindings x = bind(plan);
    ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
    EXPECT_EQ(launched().section_heads, section) << heads << " heads, " << keys << " keys";
  }
}

// Long dense calls of 256 columns: blocks in pairs, each pair two query tiles of a head at once.
TEST_F(PlanTest, BlocksInPairsShareKeys) {
  const auto wide = [&](int64_t rows, int64_t keys) {
    mica_attention a = describe(5, rows, keys);
    a.q = a.o = {MICA_BF16, 16, {2, rows, 5, 256}, {rows * 5 * 256, 5 * 256, 256, 1}};
    a.k = a.v = {MICA_BF16, 16, {2, keys, 5, 256}, {keys * 5 * 256, 5 * 256, 256, 1}};
    a.mask.causal = MICA_CAUSAL_BOTTOM_RIGHT;
    return a;
  };
  const auto kernel_of = [&](const mica_attention& a) {
    const Plan plan(a);
    return std::string(plan.plan ? mica_plan_kernel(plan.plan) : mica_last_error());
  };
  const std::string pairs = "cuda/forward_sm90_bf16_d256_cluster", single = "cuda/forward_sm90_bf16_d256";
  mica_attention a = wide(4000, 5000);
  if (kernel_of(a) != pairs && kernel_of(a) != single) GTEST_SKIP() << "no images of both kernels";
  const Plan plan(a);
  ASSERT_EQ(std::string(mica_plan_kernel(plan.plan)), pairs);
  const mica_bindings x = bind(plan);
  ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
  EXPECT_EQ(fake.last_launch.grid_x, 100u) << "all SMs";
  EXPECT_EQ(launched().tiles_q, 16) << "pairs of tiles of 128";
  EXPECT_EQ(launched().work_items, 2 * 5 * 16);
  EXPECT_EQ(launched().first_items, 50);
  EXPECT_EQ(launched().even_len_q, 4000);
  EXPECT_EQ(launched().even_len_k, 5000);

  EXPECT_EQ(kernel_of(wide(4000, 3900)), single) << "rows without keys";
  EXPECT_EQ(kernel_of(wide(1000, 5000)), pairs) << "80 tiles for 100 SMs";
  EXPECT_EQ(kernel_of(wide(700, 5000)), single) << "60 tiles, which are cut";
  EXPECT_EQ(kernel_of(wide(1536, 1536)), single) << "few keys under a mask";
  a.mask.window_left = 3000;
  EXPECT_EQ(kernel_of(a), single) << "a window";
  EXPECT_EQ(kernel_of(wide(4100, 5000)), single) << "an odd tile";
  a = wide(4000, 5000);
  a.sequences.vectors = MICA_SEQUSED_K;
  EXPECT_EQ(kernel_of(a), single) << "lengths";

  // Without a mask fewer keys suffice.
  const auto without_mask = [&](int64_t rows, int64_t columns) {
    mica_attention b = wide(rows, rows);
    for (mica_tensor* t : {&b.q, &b.k, &b.v, &b.o}) t->shape[3] = columns;
    b.mask.causal = MICA_CAUSAL_NONE;
    return kernel_of(b);
  };
  EXPECT_EQ(without_mask(1000, 256), pairs);
  EXPECT_EQ(without_mask(768, 256), single) << "few keys";

  // 128 columns: only so.
  a = wide(4000, 5000);
  for (mica_tensor* t : {&a.q, &a.k, &a.v, &a.o}) t->shape[3] = 128;
  EXPECT_EQ(kernel_of(a), "cuda/forward_sm90_bf16_d128");
  EXPECT_EQ(without_mask(4000, 128), "cuda/forward_sm90_bf16_d128_cluster");
  EXPECT_EQ(without_mask(1920, 128), "cuda/forward_sm90_bf16_d128_cluster");

  // e4m3: by fewer keys, and by fewest where nothing is hidden.
  const auto small = [&](int64_t rows, bool causal) {
    mica_attention b = wide(rows, rows);
    b.q.dtype = b.k.dtype = b.v.dtype = MICA_FP8_E4M3;
    if (!causal) b.mask.causal = MICA_CAUSAL_NONE;
    return kernel_of(b);
  };
  const std::string small_pairs = "cuda/forward_fp8_sm90_d256_cluster", small_single = "cuda/forward_fp8_sm90_d256";
  EXPECT_EQ(small(2048, true), small_pairs);
  EXPECT_EQ(small(1792, false), small_pairs);
  EXPECT_EQ(small(1700, true), small_pairs);
  EXPECT_EQ(small(1408, true), small_single) << "few keys under a mask";
  EXPECT_EQ(small(1408, false), small_pairs);
}

// Sums of e4m3 outside of the registers: 256 columns, from 33 key tiles on; a place for each block that runs at once.
TEST_F(PlanTest, LongKeysOfE4m3AreSummedInTheWorkspace) {
  const auto describe_e4m3 = [&](int64_t keys, int64_t columns) {
    constexpr int64_t kHeads = 8, kRows = 4000;
    mica_attention a = describe(kHeads, kRows, keys);
    for (mica_tensor* t : {&a.q, &a.k, &a.v, &a.o}) {
      const int64_t row = kHeads * columns, slot = t->shape[1] * row;
      *t = {t == &a.o ? MICA_BF16 : MICA_FP8_E4M3, 16, {2, t->shape[1], kHeads, columns}, {slot, row, columns, 1}};
    }
    return a;
  };
  for (const int64_t columns : {128, 256}) {
    const Plan few(describe_e4m3(4096, columns)), many(describe_e4m3(4097, columns));
    if (few.status != MICA_OK || std::string(mica_plan_kernel(few.plan)).find("forward_fp8_sm90") == std::string::npos)
      GTEST_SKIP() << "the build has no image of Hopper's kernel";
    ASSERT_EQ(many.status, MICA_OK) << mica_last_error();
    const size_t drawn = mica_plan_workspace(few.plan);
    EXPECT_LT(drawn, 1024u);
    const size_t sums = columns == 256 ? size_t(100) * 128 * 256 * 4 : 0;  // 100 SMs
    EXPECT_EQ(mica_plan_workspace(many.plan) - drawn, sums) << columns << " columns";
  }
}

// Items of a dense batch are found by its one length, unless a vector says how much of it is used.
TEST_F(PlanTest, ADenseBatchHasOneLength) {
  for (const bool is_used : {false, true}) {
    mica_attention a = describe(4, 256, 320);
    a.q.shape[0] = a.k.shape[0] = a.v.shape[0] = a.o.shape[0] = 64;
    if (is_used) a.sequences.vectors = MICA_SEQUSED_K;
    const Plan plan(a);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    if (fake.arch[device] < 90) GTEST_SKIP() << mica_plan_kernel(plan.plan) << ": the build has no images for Hopper";
    mica_bindings x = bind(plan);
    if (is_used) x.seqused_k = reinterpret_cast<int32_t*>(0x70000);
    ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
    EXPECT_EQ(launched().even_len_q, is_used ? 0 : 256);
    EXPECT_EQ(launched().even_len_k, is_used ? 0 : 320);
  }
}

// A block's first two short items are given, and a third of few blocks: then nothing is drawn.
TEST_F(PlanTest, AThirdShortItemOfFewBlocksIsGiven) {
  for (const int64_t heads : {16, 20}) {
    mica_attention a = describe(heads, 112, 112);
    a.q.shape[0] = a.k.shape[0] = a.v.shape[0] = a.o.shape[0] = 28;
    const Plan plan(a);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    if (fake.arch[device] < 90) GTEST_SKIP() << mica_plan_kernel(plan.plan) << ": the build has no images for Hopper";
    const mica_bindings x = bind(plan);
    ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
    const ForwardParams p = launched();
    EXPECT_EQ(p.work_items, 28 * heads);
    EXPECT_EQ(p.first_items, heads == 16 ? p.work_items : 2 * int32_t(fake.last_launch.grid_x)) << heads;
    EXPECT_EQ(p.work_counter == nullptr, heads == 16);
  }
}

// 64 heads of one key head with few keys for each SM: the small blocks of decode_sm80, not a wider row of Hopper's.
TEST_F(PlanTest, FewKeysTakeSmallBlocks) {
  for (const int64_t keys : {16384, 65536 * 4}) {
    mica_attention a = describe(64, 1, keys);
    a.q.shape[0] = a.o.shape[0] = 1;
    a.k = a.v = {MICA_BF16, 16, {1, keys, 1, 64}, {keys * 64, 64, 64, 1}};
    const Plan plan(a);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    const std::string kernel = mica_plan_kernel(plan.plan);
    if (keys > 16384 && kernel.find("sm90") == std::string::npos) GTEST_SKIP() << kernel << ": no images for Hopper";
    EXPECT_EQ(kernel, keys > 16384 ? "cuda/decode_sm90_bf16_d64" : "cuda/decode_sm80_bf16_d64");
  }
}

// Two rows of 64:4 heads whose keys come from memory: 25 ranges would be a block for each of the 100 SMs, but 24 have a
// tile of 31 more; of short ranges a tile counts.
TEST_F(PlanTest, LongRangesLeaveAFewSms) {
  for (const int64_t tiles : {744, 500}) {
    const int64_t keys = 64 * tiles;
    mica_attention a = describe(64, 2, keys);
    a.q = a.o = {MICA_BF16, 16, {1, 2, 64, 128}, {2 * 64 * 128, 64 * 128, 128, 1}};
    a.k = a.v = {MICA_BF16, 16, {1, keys, 4, 128}, {keys * 512, 512, 128, 1}};
    const Plan plan(a);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    const std::string kernel = mica_plan_kernel(plan.plan);
    if (kernel.find("sm90") == std::string::npos) GTEST_SKIP() << kernel << ": no images for Hopper";
    EXPECT_EQ(kernel, "cuda/decode_sm90_bf16_d128") << tiles;
    EXPECT_EQ(mica_plan_splits(plan.plan), tiles == 744 ? 24 : 25) << tiles;
  }
}

// Keys that L2 holds: the three blocks of 48 heads are cut for two blocks on each of the 100 SMs, a single one into no
// more parts than combine fetches at once.
TEST_F(PlanTest, KeysInL2AreCutForAllPlacesOrForCombine) {
  for (const int64_t heads : {48, 4}) {
    mica_attention a = describe(heads, 1, 16384);
    a.q.shape[0] = a.o.shape[0] = 1;
    a.k = a.v = {MICA_BF16, 16, {1, 16384, 1, 64}, {16384 * 64, 64, 64, 1}};
    const Plan plan(a);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    const std::string kernel = mica_plan_kernel(plan.plan);
    const std::string few = kernel.find("_few_") == std::string::npos ? "" : "few_";  // Hopper's alone
    EXPECT_EQ(kernel, "cuda/decode_sm80_bf16_" + (heads > 4 ? "" : few) + "d64");
    EXPECT_EQ(mica_plan_splits(plan.plan), heads > 4 ? 66 : 64);
  }
}

TEST_F(PlanTest, BatchInvariantSplitsDependOnTheCapacityAlone) {
  constexpr int64_t kKeys = 8192, kHeads = 32, kKeyHeads = 8, kDim = 128;
  for (const mica_dtype keys : {MICA_BF16, MICA_FP8_E4M3}) {
    int32_t splits = 0, launches = 0;
    std::string kernel;
    for (const int64_t batch : {1, 2, 4, 5, 64}) {
      mica_attention a = MICA_ATTENTION_INIT;
      a.device = {MICA_CUDA, device};
      a.q = a.o = {MICA_BF16, 16, {batch, 1, kHeads, kDim}, {kHeads * kDim, kHeads * kDim, kDim, 1}};
      a.k = {keys, 16, {batch, kKeys, kKeyHeads, kDim}, {kKeys * kKeyHeads * kDim, kKeyHeads * kDim, kDim, 1}};
      a.v = a.k;
      a.control.batch_invariant = 1;
      const Plan plan(a);
      if (plan.status != MICA_OK) break;  // a build may carry images of few kernels
      mica_bindings x = bind(plan);
      x.k = reinterpret_cast<void*>(0x1000000000);
      x.v = reinterpret_cast<void*>(0x2000000000);
      x.o = reinterpret_cast<void*>(0x3000000000);
      x.workspace = reinterpret_cast<void*>(0x4000000000);
      fake.launches = 0;
      ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
      // Who joins the parts does not depend on it either: 4 and 5 sequences' blocks leave room on some of the 100 SMs.
      if (batch > 1) {
        EXPECT_EQ(mica_plan_splits(plan.plan), splits) << batch;
        EXPECT_EQ(fake.launches, launches) << batch;
        EXPECT_EQ(mica_plan_kernel(plan.plan), kernel) << batch;
      }
      splits = mica_plan_splits(plan.plan), launches = fake.launches, kernel = mica_plan_kernel(plan.plan);
    }
  }
}

// The bits of a row go by its kernel's key tiles and by its ranges. Packed sequences: beside shorter ones.
TEST_F(PlanTest, BatchInvariantKernelsDoNotDependOnTheBatch) {
  for (const int kind : {0, 1, 2, 3})
    for (const int64_t rows : {64, 128, 512, 1024, 4096}) {
      const bool backward = kind % 2 == 1, packed = kind >= 2;
      std::string first;
      for (const int64_t batch : {1, 2, 8, 64}) {
        mica_attention a = describe(4, rows, rows);
        const int64_t total = rows + (batch - 1) * rows / 8;
        for (mica_tensor* t : {&a.q, &a.k, &a.v, &a.o}) {
          t->shape[0] = batch;
          if (packed) *t = {MICA_BF16, 16, {1, total, 4, 128}, {total * 512, 512, 128, 1}};
        }
        if (packed) {
          a.lse = {};
          a.sequences.vectors = MICA_CU_SEQLENS_Q | MICA_CU_SEQLENS_K;
          a.sequences.batch = batch;
          a.sequences.max_seqlen_q = a.sequences.max_seqlen_k = rows;
        }
        a.control.batch_invariant = 1;
        if (backward) {
          const int64_t places = packed ? total : rows;
          a.lse = {MICA_FP32, 4, {packed ? 1 : batch, 4, places, 1}, {4 * places, places, 1, 0}};
          a.gradients.d_o = a.o;
          a.gradients.dq = a.q;
          a.gradients.dk = a.gradients.dv = a.k;
        }
        mica_plan* plan = nullptr;
        ASSERT_EQ(mica_plan_create(&a, backward ? MICA_BACKWARD : MICA_FORWARD, &plan), MICA_OK) << mica_last_error();
        const std::string kernel = mica_plan_kernel(plan) + (" " + std::to_string(mica_plan_splits(plan)));
        mica_plan_destroy(plan);
        if (first.empty()) first = kernel;
        EXPECT_EQ(kernel, first) << batch << " x " << rows;
      }
    }
}

// A GPU of whose SMs a stream has but some.
u32 sms_of_stream, grid_at_once;
int launch_on_some_sms(const char*, const test::FakeLaunch& launch, const void*) {
  if (!launch.runs_at_once) return 0;
  if (launch.grid_x > sms_of_stream) return 720;  // CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
  grid_at_once = launch.grid_x;
  return 0;
}

// Few heads without a mask in a fixed order: key tiles wait for one another, so all blocks run at once, as many as can.
TEST_F(PlanTest, BlocksThatWaitForOneAnotherRunAtOnce) {
  mica_attention a = describe(4, 4096, 4096);
  want_gradients(a);
  const Plan plan(a, MICA_BACKWARD);
  ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
  const std::string kernel = mica_plan_kernel(plan.plan);
  if (kernel.find("sm90") == std::string::npos) GTEST_SKIP() << "not for Hopper";
  EXPECT_NE(kernel.find("_round"), std::string::npos) << kernel;
  const mica_bindings x = bind_gradients(plan);
  fake.run_kernel = launch_on_some_sms;
  for (const u32 sms : {1000u, 70u}) {
    sms_of_stream = sms;
    ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
    EXPECT_EQ(grid_at_once, std::min(sms, 100u));
  }
  sms_of_stream = 2;
  EXPECT_EQ(mica_execute(plan.plan, &x), MICA_ERROR_DEVICE);
  EXPECT_NE(std::string(mica_last_error()).find("720"), std::string::npos) << mica_last_error();
}

int32_t blocks_of_key_tile, tiles_in_round;
int note_round(const char* name, const test::FakeLaunch&, const void* params) {
  if (!std::strstr(name, "backward_tma_sm90")) return 0;
  const auto* mapped = static_cast<const BackwardMapsParams*>(params);
  blocks_of_key_tile = mapped->parts;
  tiles_in_round = mapped->round_tiles;
  return 0;
}

// Two heads on each of eight key heads: 128 key tiles for 100 SMs, which two blocks share, each with a head. They do
// not go round, since they would wait for one another's sums of dK and dV as well.
TEST_F(PlanTest, BlocksThatShareAKeyTileDoNotGoRound) {
  for (const int64_t heads_q : {4, 8}) {
    const Plan plan(describe_gradients(heads_q, 4, 2048, 64, false, 2), MICA_BACKWARD);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    if (std::string(mica_plan_kernel(plan.plan)).find("sm90") == std::string::npos) GTEST_SKIP() << "not for Hopper";
    const mica_bindings x = bind_gradients(plan);
    fake.run_kernel = note_round;
    ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
    EXPECT_EQ(blocks_of_key_tile, heads_q / 4);
    EXPECT_EQ(tiles_in_round > 0, heads_q == 4) << mica_plan_kernel(plan.plan);
  }
}

// Four heads on one key head: few key tiles, which several blocks share. What they add has the same bits in any order,
// their launch runs at once, and the workspace is hardly larger than in a free order.
TEST_F(PlanTest, KeyTilesOfFewHeadsAreSummedInWholeNumbers) {
  uint64_t workspace[2] = {};
  for (const int deterministic : {0, 1}) {
    mica_attention a = describe_gradients(4, 1, 3000, 64);
    a.control.deterministic = deterministic;
    const Plan plan(a, MICA_BACKWARD);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    const std::string kernel = mica_plan_kernel(plan.plan);
    if (kernel.find("sm90") == std::string::npos) GTEST_SKIP() << "not for Hopper";
    EXPECT_EQ(kernel.find("_whole") != std::string::npos, deterministic == 1) << kernel;
    workspace[deterministic] = mica_plan_workspace(plan.plan);
    const mica_bindings x = bind_gradients(plan);
    fake.run_kernel = note_round;
    ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
    EXPECT_GT(blocks_of_key_tile, 1);
    EXPECT_EQ(tiles_in_round, 0);
  }
  EXPECT_LE(workspace[1], workspace[0] + workspace[0] / 8);
}

bool runs_at_once, tells_peers, takes_turns;
int note_peers(const char* name, const test::FakeLaunch& launch, const void* params) {
  if (!std::strstr(name, "_whole")) return 0;
  const auto* mapped = static_cast<const BackwardMapsParams*>(params);
  blocks_of_key_tile = mapped->parts;
  runs_at_once = launch.runs_at_once;
  tells_peers = mapped->key_peers != nullptr;
  takes_turns = mapped->key_semaphores != nullptr;
  return 0;
}

// Two floats have the same sum in either order: where two blocks share a key tile they neither tell one another units,
// which takes a launch that runs at once, nor wait for turns.
TEST_F(PlanTest, TwoBlocksAddToAKeyTileInEitherOrder) {
  const struct {
    int64_t heads, heads_k, rows, dim;
    bool causal, tells, turns;
    const char* kernel;
  } cases[] = {{8, 4, 5260, 96, true, false, false, "_d96_whole"},
               {2, 1, 5260, 128, false, false, false, "_d128_whole_q80"},
               {4, 1, 1100, 128, false, true, false, "_d128_whole_q80"},
               {4, 2, 700, 128, false, true, false, "_d128_whole_round"},
               {4, 1, 3000, 128, true, true, false, "_d128_whole"},
               {8, 4, 5300, 256, false, false, false, "_d256_whole"},
               {8, 1, 2000, 192, true, false, true, "_d192_whole"}};
  for (const auto& c : cases) {
    const Plan plan(describe_gradients(c.heads, c.heads_k, c.rows, c.dim, c.causal), MICA_BACKWARD);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    const std::string kernel = mica_plan_kernel(plan.plan);
    if (kernel.find("sm90") == std::string::npos) GTEST_SKIP() << "not for Hopper";
    EXPECT_TRUE(kernel.ends_with(c.kernel)) << kernel << ", want " << c.kernel;
    const mica_bindings x = bind_gradients(plan);
    fake.run_kernel = note_peers;
    blocks_of_key_tile = 0;
    ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
    EXPECT_EQ(blocks_of_key_tile > 2, c.tells || c.turns) << kernel << " " << blocks_of_key_tile;
    EXPECT_EQ(runs_at_once, c.tells) << kernel;
    EXPECT_EQ(tells_peers, c.tells) << kernel;
    EXPECT_EQ(takes_turns, c.turns) << kernel;
  }
}

// Of wide heads, whose blocks add in whole numbers from registers: few of them, or those of a group, whose blocks add
// to dK and dV in turn.
TEST_F(PlanTest, FewWideHeadsAreSummedInWholeNumbers) {
  const struct {
    int64_t heads, heads_k, rows, dim;
    bool causal, whole;
  } cases[] = {{5, 5, 1500, 256, false, true},  {5, 5, 1500, 256, true, false}, {5, 5, 1500, 192, false, true},
               {8, 8, 1500, 192, false, false}, {4, 2, 2300, 256, true, true},  {30, 30, 2000, 256, false, false},
               {8, 1, 2000, 192, true, true}};
  for (const auto& c : cases) {
    uint64_t workspace[2] = {};
    for (const int deterministic : {0, 1}) {
      mica_attention a = describe_gradients(c.heads, c.heads_k, c.rows, c.dim, c.causal);
      a.control.deterministic = deterministic;
      const Plan plan(a, MICA_BACKWARD);
      ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
      const std::string kernel = mica_plan_kernel(plan.plan);
      if (kernel.find("sm90") == std::string::npos) GTEST_SKIP() << "not for Hopper";
      EXPECT_EQ(kernel.find("_whole") != std::string::npos, deterministic == 1 && c.whole)
          << kernel << " " << c.heads << ":" << c.heads_k << " " << c.causal << deterministic;
      workspace[deterministic] = mica_plan_workspace(plan.plan);
    }
    EXPECT_LE(workspace[1], workspace[0] + workspace[0] / 8) << c.heads;
  }
}

// Parts of the queries gain three heads of 12 key tiles much on 100 SMs, five of 24 a sixteenth, less than whole
// numbers cost: they go round. Under a causal mask four heads of 18 gain a sixth, of 21 a thirteenth.
TEST_F(PlanTest, WholeNumbersAreForWhatGainsByParts) {
  const struct {
    int64_t heads, rows, dim;
    bool causal;
    const char* kernel;
  } cases[] = {{3, 1500, 128, false, "_whole"},
               {5, 3000, 128, false, "_round"},
               {4, 2300, 64, true, "_whole"},
               {4, 2600, 64, true, "_d64"}};
  for (const auto& c : cases) {
    const Plan plan(describe_gradients(c.heads, c.heads, c.rows, c.dim, c.causal), MICA_BACKWARD);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    const std::string kernel = mica_plan_kernel(plan.plan);
    if (kernel.find("sm90") == std::string::npos) GTEST_SKIP() << "not for Hopper";
    EXPECT_NE(kernel.find(c.kernel), std::string::npos) << kernel;
    EXPECT_EQ(kernel.find("_whole") != std::string::npos, std::string(c.kernel) == "_whole") << kernel;
  }
}

int32_t heads_side_by_side;
int note_heads_side_by_side(const char* name, const test::FakeLaunch&, const void* params) {
  if (std::strstr(name, "_ordered"))
    heads_side_by_side = static_cast<const BackwardMapsParams*>(params)->backward.section_heads;
  return 0;
}

// 192 columns in a fixed order: five heads of 22 key tiles fill 100 SMs. One or three heads after others would be a
// chain of their own. L2 keeps twelve heads; of 18, sections of nine end together.
// Sums of dK and dV are twice as much as dQ's of one head, and half as much as those of four: fewer have them in a
// fixed order only where any order has them.
TEST_F(PlanTest, AFixedOrderTakesAtMostHalfAsMuchWorkspaceAgain) {
  u64 state = 7;
  const auto draw = [&](int64_t least, int64_t most) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return least + int64_t(state >> 33) % (most - least + 1);
  };
  for (int i = 0; i < 4000; ++i) {
    const int64_t heads_k = draw(1, 4), group = draw(1, 3), rows = draw(600, 6000), batch = draw(1, 4);
    const int64_t dims[] = {64, 96, 128}, dim = dims[draw(0, 2)];
    const bool causal = draw(0, 1) != 0;
    mica_attention a = describe_gradients(heads_k * group, heads_k, rows, dim, causal, batch);
    a.control.deterministic = 0;
    const Plan free(a, MICA_BACKWARD);
    a.control.deterministic = 1;
    const Plan fixed(a, MICA_BACKWARD);
    ASSERT_EQ(free.status, MICA_OK) << mica_last_error();
    ASSERT_EQ(fixed.status, MICA_OK) << mica_last_error();
    const std::string kernel = mica_plan_kernel(fixed.plan);
    if (kernel.find("sm90") == std::string::npos) GTEST_SKIP() << kernel << ": no images for Hopper";
    const double ratio = double(mica_plan_workspace(fixed.plan)) / double(mica_plan_workspace(free.plan));
    EXPECT_LE(ratio, 1.505) << kernel << ": " << batch << " x " << rows << ", " << heads_k * group << ":" << heads_k
                            << " heads of " << dim << (causal ? ", causal" : "");
  }
}

TEST_F(PlanTest, NoSectionOfFewHeadsComesLastInAFixedOrder) {
  const struct {
    int64_t heads;  // of each of two sequences
    int32_t section;
  } cases[] = {{3, 6}, {4, 8}, {5, 5}, {6, 12}, {9, 9}, {24, 5}};
  for (const auto& [heads, section] : cases) {
    const Plan plan(describe_gradients(heads, heads, 2048, 192, false, 2), MICA_BACKWARD);
    ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
    if (std::string(mica_plan_kernel(plan.plan)).find("_ordered") == std::string::npos)
      GTEST_SKIP() << "not for Hopper";
    const mica_bindings x = bind_gradients(plan);
    fake.run_kernel = note_heads_side_by_side;
    ASSERT_EQ(mica_execute(plan.plan, &x), MICA_OK) << mica_last_error();
    EXPECT_EQ(heads_side_by_side, section) << heads;
  }
}

TEST_F(PlanTest, LaunchErrorsCarryTheDriversWords) {
  const Plan plan(describe(4, 300));
  ASSERT_EQ(plan.status, MICA_OK) << mica_last_error();
  fake.launch_result = 719;
  const mica_bindings x = bind(plan);
  EXPECT_EQ(mica_execute(plan.plan, &x), MICA_ERROR_DEVICE);
  EXPECT_STREQ(mica_last_error(), "cuLaunchKernelEx gives 719 (FAKE_ERROR: as the test wanted)");
}

TEST_F(PlanTest, ListNamesAKernelThatRuns) {
  struct Seen {
    std::string first_that_runs;
    int num = 0;
  } seen;
  const mica_attention a = describe(4, 300);
  const auto visit = [](void* context, const char* kernel, const char* why_not) {
    Seen& s = *static_cast<Seen*>(context);
    ++s.num;
    if (why_not[0] == 0 && s.first_that_runs.empty()) s.first_that_runs = kernel;
  };
  ASSERT_EQ(mica_list_kernels(&a, MICA_FORWARD, visit, &seen), MICA_OK) << mica_last_error();
  const Plan plan(a);
  EXPECT_GT(seen.num, 1);
  EXPECT_EQ(seen.first_that_runs, mica_plan_kernel(plan.plan));
}

TEST_F(PlanTest, WhatNoKernelRunsSaysWhichCameClosest) {
  setenv("MICA_CUDA_KERNELS", "no such name", 1);
  const Plan plan(describe(4, 300));
  unsetenv("MICA_CUDA_KERNELS");
  EXPECT_EQ(plan.status, MICA_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(mica_last_error()).find("the closest, forward_"), std::string::npos) << mica_last_error();
  EXPECT_NE(std::string(mica_last_error()).find("MICA_CUDA_KERNELS rules it out"), std::string::npos);
}

TEST_F(PlanTest, ManyThreadsPlanAndExecute) {
  std::vector<std::thread> threads;
  std::atomic<int> failures = 0;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int n = 0; n < 20; ++n) {
        const Plan plan(describe(4, 300 + 8 * t));
        const mica_bindings x = bind(plan);
        if (plan.status != MICA_OK || mica_execute(plan.plan, &x) != MICA_OK) ++failures;
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(fake.launches, 160);
}

}  // namespace
}  // namespace mica
