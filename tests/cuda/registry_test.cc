// SPDX-License-Identifier: Apache-2.0
// The kernel table: every row can run something, says why not otherwise, and fits the GPUs it is compiled for.
#include "cuda/registry.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>

#include "cuda/backward_share.h"
#include "cuda/few_rows.h"
#include "cuda/kernels/params.h"
#include "cuda/kernels/parts/backward_drawn_sm90.h"

namespace mica {
namespace {

Device device_of(i32 arch) {
  Device d = {};
  d.arch = arch;
  d.num_sms = 100;
  d.l2_bytes = 50 << 20;
  d.max_smem_bytes = (arch == 80 ? 163 : arch == 86 || arch == 89 || arch == 120 ? 99 : 227) << 10;
  return d;
}
constexpr i32 kArchs[] = {80, 86, 87, 89, 90, 100, 103, 120, 121};

bool sums_whole(const KernelRow& row) {
  return row.role == Role::BACKWARD && row.course != Course::HEADS && (row.variant & kIntegersVariant);
}

// A dense problem that a row is made for.
Problem problem_of(const KernelRow& row) {
  const i32 dtype = row.dtype == MICA_NONE ? i32(MICA_BF16) : row.dtype;
  const i32 dim_qk = row.dim_qk ? row.dim_qk : 64, dim_v = row.dim_v ? row.dim_v : 64;
  Problem p = {};
  p.pass = is_principal(row.role, MICA_BACKWARD) ? MICA_BACKWARD : MICA_FORWARD;
  p.dtype = dtype;
  const bool is_short = row.traits.lengths == Lengths::SHORT;  // pays where every SM gets several query tiles
  const bool is_one_tile = row.traits.lengths == Lengths::ONE_TILE;
  const bool draws = row.course == Course::DRAWN;
  const bool goes_round = draws && row.variant == kRoundVariant;  // pays where every SM gets some key tiles
  const bool is_whole = sums_whole(row);                          // and where there are few, in a fixed order
  const bool is_ordered = is_whole || (goes_round && dim_qk % 64 != 0);
  p.deterministic = is_ordered;
  p.batch = is_ordered                           ? 1
            : is_short || goes_round             ? 64
            : row.traits.least_tiles_of_few_rows ? 8 * row.traits.least_tiles_of_few_rows
                                                 : 2;
  const bool is_tall = row.role == Role::DECODE && row.tile_q > 64;  // for more rows than four tiles of 64 have
  p.group = is_tall ? 3 : is_whole ? 2 : 1;                          // and for groups that are not joined heads
  p.heads_k = 4;
  p.heads_q = p.heads_k * p.group;
  p.dim_qk = dim_qk;
  p.dim_v = dim_v;
  p.max_len_q = p.hint_len_q = max_of(is_tall                                      ? 86
                                      : row.role == Role::DECODE                   ? 1
                                      : is_short                                   ? 256
                                      : is_one_tile                                ? 128
                                      : row.traits.lengths == Lengths::FEW_QUERIES ? 256
                                      : row.served == serves::JOINED               ? 189
                                      : row.traits.lengths == Lengths::LONG        ? 2700
                                      : row.variant > 0                            ? 900
                                                                                   : 1000,
                                      row.traits.least_queries);
  p.max_len_k = p.hint_len_k = row.traits.lengths == Lengths::FEW_KEYS ? 70
                               : row.course == Course::HEADS           ? 100
                               : row.traits.lengths == Lengths::MIDDLE ? 2000
                               : is_short                              ? 256
                               : is_one_tile                           ? 128
                               : is_whole && row.traits.least_keys > 0 ? 1100
                               : is_whole || goes_round                ? 900
                               : row.served == serves::JOINED          ? 40000
                                                                       : max_of(5000, row.traits.least_keys);
  p.total_q = i64(p.batch) * p.max_len_q;
  p.total_k = i64(p.batch) * p.max_len_k;
  p.slots_k = p.batch;
  p.window_left = p.window_right = MICA_MAX_SEQLEN;
  if (row.traits.lengths == Lengths::MIDDLE) p.window_right = 0;
  p.scale = 0.125f;
  if (is_tall) p.sinks.dtype = MICA_FP32;
  if (row.served == serves::JOINED) {
    p.joined_heads = 3;
    p.joined_rows = 63;
  }
  if (row.traits.wants_pages) p.page_size = 64;
  const i32 keys_dtype = row.keys == MICA_NONE ? dtype : row.keys;
  const auto tensor = [&](i32 rows, i32 dim, i32 dtype, i32 heads = 4) {
    return Tensor{dtype, 16, {p.batch, rows, heads, dim}, {i64(rows) * heads * dim, heads * dim, dim, 1}};
  };
  const i32 dim_k = row.qv ? dim_qk - dim_v : dim_qk;
  p.q = tensor(p.max_len_q, dim_k, dtype, p.heads_q);
  if (row.qv) p.qv = tensor(p.max_len_q, dim_v, dtype, p.heads_q);
  p.k = tensor(p.max_len_k, dim_k, keys_dtype);
  p.v = tensor(p.max_len_k, row.traits.v_in_k ? dim_qk : dim_v, keys_dtype);
  p.v.shape[3] = dim_v;
  p.o = tensor(p.max_len_q, dim_v, dtype, p.heads_q);
  if (p.pass == MICA_BACKWARD) {
    p.d_o = p.o;
    p.dq = p.q;
    p.dk = p.k;
    p.dv = p.v;
    p.lse = Tensor{MICA_FP32, 4, {p.batch, 4, p.max_len_q, 1}, {4 * p.max_len_q, p.max_len_q, 1, 0}};
  }
  return p;
}

std::string reason(i32 row, const Problem& problem, i32 arch) {
  char text[160];
  const Device device = device_of(arch);
  why_not(row, {problem, device, kernel_images()}, text, sizeof text);
  return text;
}

std::string row_name(i32 row) { return kernel_table().rows[row].name; }

TEST(KernelTable, NamesAreUniqueAndSayTheFile) {
  std::set<std::string> names;
  for (i32 i = 0; i < kernel_table().num_rows; ++i) {
    const KernelRow& row = kernel_table().rows[i];
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(std::string(row.name).rfind(row.file, 0), 0u) << row.name << " is made from " << row.file;
    EXPECT_LT(std::string(row.name).size(), 58u) << row.name << " with cuda/ before it must fit Plan::kernel";
    EXPECT_GT(row.warps, 0) << row.name;
  }
  EXPECT_GT(names.size(), 0u);
}

TEST(KernelTable, ImagesBelongToRowsInOrder) {
  const ImageTable& images = kernel_images();
  for (i32 i = 0; i < images.num_images; ++i) {
    ASSERT_GE(images.images[i].row, 0);
    ASSERT_LT(images.images[i].row, kernel_table().num_rows);
    if (i == 0) continue;
    EXPECT_LE(images.images[i - 1].row, images.images[i].row) << "find_image searches by halves";
  }
}

TEST(KernelTable, ImagesFitTheirGpu) {
  const ImageTable& images = kernel_images();
  for (i32 i = 0; i < images.num_images; ++i) {
    const KernelImage& image = images.images[i];
    const KernelRow& row = kernel_table().rows[image.row];
    if (image.is_ptx) continue;
    const std::string name = std::string(row.name) + " for sm_" + std::to_string(image.arch);
    EXPECT_LE(row.traits.smem_bytes + image.smem_static_bytes, device_of(image.arch).max_smem_bytes) << name;
    EXPECT_GT(image.registers, 0) << name;
    EXPECT_LE(image.registers * 32 * row.warps * row.blocks, 65536) << name << ": an SM cannot hold its blocks";
    EXPECT_TRUE(image.spilled_bytes == 0 || row.why_spill[0]) << name << " spills";
  }
}

TEST(KernelTable, EveryRowRunsWhatItIsMadeFor) {
  const ImageTable& images = kernel_images();
  if (images.num_images == 0) GTEST_SKIP() << "this build carries no GPU kernels";
  for (i32 i = 0; i < kernel_table().num_rows; ++i)
    for (const i32 arch : kArchs) {
      // An image lent by another GPU of the family may want more shared memory than this one has.
      const i32 image = find_image(images, i, arch);
      if (image < 0 || images.images[image].arch != arch) continue;
      EXPECT_EQ(reason(i, problem_of(kernel_table().rows[i]), arch), "") << row_name(i) << " on sm_" << arch;
    }
}

TEST(KernelTable, ThePlanTakesTheFirstThatCanRun) {
  for (i32 i = 0; i < kernel_table().num_rows; ++i) {
    const Problem problem = problem_of(kernel_table().rows[i]);
    for (const i32 arch : kArchs) {
      const Device device = device_of(arch);
      i32 first = -1;
      for (i32 j = kernel_table().num_rows - 1; j >= 0; --j)
        if (is_principal(kernel_table().rows[j].role, problem.pass) && reason(j, problem, arch).empty()) first = j;
      EXPECT_EQ(find_principal({problem, device, kernel_images()}), first) << row_name(i) << " on sm_" << arch;
    }
  }
}

TEST(KernelTable, SaysWhyNot) {
  for (i32 i = 0; i < kernel_table().num_rows; ++i) {
    const KernelRow& row = kernel_table().rows[i];
    const Problem fits = problem_of(row);
    Problem p = fits;
    if (row.dtype != MICA_NONE) {
      p.dtype = row.dtype == MICA_FP16 ? MICA_BF16 : MICA_FP16;
      EXPECT_NE(reason(i, p, 90).find("it computes with"), std::string::npos) << row.name;
    }
    p = fits;
    if (row.dim_qk) {
      p.dim_qk = row.dim_qk + 8;
      EXPECT_NE(reason(i, p, 90).find("q.shape[3] is"), std::string::npos) << row.name;
    }
    p = fits;
    if (!((row.served | row.traits.also_serves) & kFeatureSoftcap)) {
      p.softcap = 30;
      EXPECT_NE(reason(i, p, 90).find("without softcap"), std::string::npos) << row.name << reason(i, p, 90);
    }
    p = fits;
    if (is_principal(row.role, p.pass)) {
      p.qv = row.qv ? Tensor{} : p.q;
      EXPECT_NE(reason(i, p, 90).find(row.qv ? "it wants qv" : "it does without qv"), std::string::npos) << row.name;
    }
    p = fits;
    if (row.qv && row.traits.latent) {
      p.q.shape[3] = 72;
      EXPECT_NE(reason(i, p, 90).find("q.shape[3] is 72 beside qv, want at most 64"), std::string::npos) << row.name;
    }
    p = fits;
    if (row.traits.wants_pages) {
      p.page_size = 0;
      EXPECT_NE(reason(i, p, 90).find("no block table"), std::string::npos) << row.name << reason(i, p, 90);
    }
    p = fits;
    if (row.traits.page_blocks) {
      p.k.shape[3] -= 8;
      EXPECT_NE(reason(i, p, 90).find("no whole multiples of 128 bytes"), std::string::npos) << reason(i, p, 90);
      p = fits;
      p.v.stride[0] += 8;
      EXPECT_NE(reason(i, p, 90).find("neither is a multiple of the other"), std::string::npos) << reason(i, p, 90);
      p.v.shape[2] = 1;  // of one head no stride matters
      EXPECT_EQ(reason(i, p, 90).find("copy engine"), std::string::npos) << reason(i, p, 90);
    }
    p = fits;
    if (row.traits.least_queries) {
      p.hint_len_q = row.traits.least_queries - 1;
      p.group = 1;
      EXPECT_NE(reason(i, p, 90).find("too few for it"), std::string::npos) << row.name << reason(i, p, 90);
      p.group = 2;
      EXPECT_EQ(reason(i, p, 90).find("too few for it"), std::string::npos) << row.name << reason(i, p, 90);
      p.group = 1;
      p.batch_invariant = 1;
      EXPECT_EQ(reason(i, p, 90).find("too few for it"), std::string::npos) << row.name << reason(i, p, 90);
    }
    p = fits;
    if (row.traits.most_queries) {
      p.group = row.traits.most_queries + 1;
      EXPECT_NE(reason(i, p, 90).find("too many for it"), std::string::npos) << row.name << reason(i, p, 90);
      p.group = row.traits.most_queries;
      EXPECT_EQ(reason(i, p, 90).find("too many for it"), std::string::npos) << row.name << reason(i, p, 90);
      p.batch_invariant = 1;
      EXPECT_NE(reason(i, p, 90).find("tile of another height"), std::string::npos) << row.name << reason(i, p, 90);
    }
    p = fits;
    if (row.traits.least_tiles_of_sm) {
      p.batch = 1;
      EXPECT_NE(reason(i, p, 90).find("too few for its blocks"), std::string::npos) << row.name << reason(i, p, 90);
      p.hint_len_q = row.tile_q + 1;
      EXPECT_EQ(reason(i, p, 90).find("too few for its blocks"), std::string::npos) << row.name << reason(i, p, 90);
    }
    p = fits;
    if (row.traits.least_keys) {
      p.hint_len_k = row.traits.least_keys - 1;
      p.window_right = 0;  // without a mask fewer may do
      EXPECT_NE(reason(i, p, 90).find("keys: too few for it"), std::string::npos) << row.name << reason(i, p, 90);
    }
    p = fits;
    p.scale = 1e-25f;
    EXPECT_EQ(reason(i, p, 90).find("too small for it to divide by") != std::string::npos, row.traits.divides_by_scale)
        << row.name << reason(i, p, 90);
    p = fits;
    if (row.traits.v_in_k) {
      p.v.stride[1] += 8;
      EXPECT_NE(reason(i, p, 90).find("it is no part of k"), std::string::npos) << row.name << reason(i, p, 90);
      p = fits;
      p.dim_qk = 256;
      EXPECT_NE(reason(i, p, 90).find("want more than 256"), std::string::npos) << row.name << reason(i, p, 90);
    }
    p = fits;
    if (row.course == Course::HEADS) {
      p.hint_len_k = 5000;
      EXPECT_NE(reason(i, p, 90).find("too many keys"), std::string::npos) << row.name << reason(i, p, 90);
      p = fits;
      // Packed: as many short ones as there are, but not one that all others have ended before. Where they end is not
      // known.
      p.vectors = MICA_CU_SEQLENS_Q | MICA_CU_SEQLENS_K;
      EXPECT_EQ(reason(i, p, 90).find("heads"), std::string::npos) << row.name << reason(i, p, 90);
      p.total_q = p.total_k = 2 * 50;
      p.hint_len_q = p.hint_len_k = 260;
      EXPECT_NE(reason(i, p, 90).find(row.variant > 0 ? "another tile" : "too few heads"), std::string::npos)
          << row.name << reason(i, p, 90);
      p = fits;
      p.dq.dtype = MICA_FP32;
      EXPECT_NE(reason(i, p, 90).find("writes dQ in q's type"), std::string::npos) << row.name << reason(i, p, 90);
      p = fits;
      p.max_len_k = p.hint_len_k = 900;
      p.max_len_q = p.hint_len_q = 100;
      EXPECT_NE(reason(i, p, 90).find("too few heads"), std::string::npos) << row.name << reason(i, p, 90);
    }
    p = fits;
    if (sums_whole(row)) {
      p.deterministic = 0;
      EXPECT_NE(reason(i, p, 90).find("another tile"), std::string::npos) << row.name << reason(i, p, 90);
      p = fits;
      p.batch = 50;
      if (row.course == Course::ORDERED) {  // whose groups have them at any number
        p.group = 1;
        p.heads_q = p.heads_k;
      }
      EXPECT_NE(reason(i, p, 90).find("another tile"), std::string::npos) << row.name << reason(i, p, 90);
      p = fits;
      p.vectors = MICA_CU_SEQLENS_Q | MICA_CU_SEQLENS_K;
      EXPECT_NE(reason(i, p, 90).find("another tile"), std::string::npos) << row.name << reason(i, p, 90);
    } else if (row.variant > 0 && p.deterministic) {  // key tiles that go round in that order alone
      p.deterministic = 0;
      EXPECT_NE(reason(i, p, 90).find("another tile"), std::string::npos) << row.name << reason(i, p, 90);
    } else if (row.variant > 0) {
      p.max_len_q = p.hint_len_q = p.max_len_k = p.hint_len_k = row.course == Course::HEADS ? 512 : 5000;
      EXPECT_NE(reason(i, p, 90).find("another tile"), std::string::npos) << row.name << reason(i, p, 90);
      p = fits;
      if (row.course == Course::DRAWN) p.window_right = 0;
      if (row.course == Course::HEADS) p.vectors = MICA_CU_SEQLENS_Q;
      EXPECT_NE(reason(i, p, 90).find("another tile"), std::string::npos) << row.name << reason(i, p, 90);
    }
    EXPECT_NE(reason(i, fits, 75).find("the first supported architecture is sm_80"), std::string::npos) << row.name;
  }
}

// Sequences of encoders and vision towers, as many as fill a large GPU: which row of 64 columns suits their length.
TEST(KernelTable, ShortSequencesTakeTheRowOfTheirLength) {
  const struct {
    i32 rows, batch, heads;
    const char* row;
  } cases[] = {{77, 64, 12, "_short"},  {128, 64, 12, "_twin"},  {197, 64, 12, "_tall"}, {256, 64, 12, "_tall"},
               {257, 32, 16, "_short"}, {320, 32, 12, "_short"}, {512, 32, 12, "_tall"}, {160, 1, 16, "_short"},
               {700, 1, 20, "_short"},  {2048, 8, 16, "_tall"},  {2049, 8, 16, "_d64"}};
  for (const auto& c : cases)
    for (i32 i = 0; i < kernel_table().num_rows; ++i) {
      const KernelRow& row = kernel_table().rows[i];
      const std::string name = row.name;
      if (name.find("forward_sm90_bf16_d64") != 0 || row.served != serves::PLAIN) continue;
      Problem p = problem_of(row);
      p.batch = c.batch;
      p.heads_q = p.heads_k = c.heads;
      p.max_len_q = p.hint_len_q = p.max_len_k = p.hint_len_k = c.rows;
      const bool suits = reason(i, p, 90).find("another tile suits them better") == std::string::npos;
      if (name.ends_with(c.row)) {
        EXPECT_TRUE(suits) << name << " at " << c.rows << ": " << reason(i, p, 90);
        break;  // the first that suits is taken
      }
      EXPECT_FALSE(suits) << name << " at " << c.rows;
    }
}

// Text of 77 tokens under an image's queries: small blocks, but where columns are few tiles of 256 queries.
TEST(KernelTable, CrossAttentionTakesTheRowOfItsColumns) {
  for (const i32 dim : {40, 64})
    for (i32 i = 0; i < kernel_table().num_rows; ++i) {
      const KernelRow& row = kernel_table().rows[i];
      const std::string name = row.name;
      if (name != "forward_sm90_bf16_d64_short" && name != "forward_sm90_bf16_d64_tall") continue;
      Problem p = problem_of(row);
      p.batch = 4;
      p.heads_q = p.heads_k = 8;
      p.dim_qk = p.dim_v = dim;
      p.max_len_q = p.hint_len_q = 4096;
      p.max_len_k = p.hint_len_k = 77;
      const bool suits = reason(i, p, 90).find("another tile suits them better") == std::string::npos;
      EXPECT_EQ(suits, name.ends_with("_tall") || dim == 64) << name << " at " << dim << " columns";
    }
}

// Heads of 80 columns: 81 to 128 keys under as many queries are one tile of two blocks an SM.
TEST(KernelTable, OneTileOfWideHeadsTakesTheTwinRow) {
  const struct {
    i32 queries, keys;
    bool twin;
  } cases[] = {{128, 128, true}, {97, 97, true},     {128, 96, true},
               {64, 64, false},  {4096, 120, false}, {256, 256, false}};
  for (const auto& c : cases)
    for (i32 i = 0; i < kernel_table().num_rows; ++i) {
      const KernelRow& row = kernel_table().rows[i];
      const std::string name = row.name;
      if (name != "forward_sm90_bf16_d96_twin") continue;
      Problem p = problem_of(row);
      p.batch = 64;
      p.heads_q = p.heads_k = 12;
      p.dim_qk = p.dim_v = 80;
      p.max_len_q = p.hint_len_q = c.queries;
      p.max_len_k = p.hint_len_k = c.keys;
      const bool suits = reason(i, p, 90).find("another tile suits them better") == std::string::npos;
      EXPECT_EQ(suits, c.twin) << c.queries << " x " << c.keys;
    }
}

// Blocks of backward clear the accumulators of heads whose own blocks come at least a wave later, however those are
// ordered; where key tiles cannot be told by heads, or nobody would come early enough, the preparation clears all.
TEST(BackwardShare, BlocksClearHeadsThatComeLater) {
  for (i32 i = 0; i < kernel_table().num_rows; ++i) {
    const KernelRow& row = kernel_table().rows[i];
    if (row.role != Role::BACKWARD || !row.traits.uses_maps || row.course == Course::HEADS) continue;
    const Device device = device_of(90);
    Problem p = problem_of(row);
    p.batch = 64;
    BackwardParams params = {};
    params.tiles_k = ceil_div(p.max_len_k, row.tile_k);
    params.section_heads = 1;
    const i32 ahead = clears_ahead(row, p, device, params, 1);
    EXPECT_EQ(ahead > 0, row.course != Course::DRAWN) << row.name;
    EXPECT_TRUE(counts_heads(row, p)) << row.name;
    if (row.course == Course::DRAWN) continue;
    EXPECT_EQ(ahead % p.heads_k, 0) << row.name;
    EXPECT_GE((ahead - 1) * params.tiles_k, device.num_sms) << row.name;
    params.last_heads = 13;
    EXPECT_EQ(clears_ahead(row, p, device, params, 1), 16) << row.name;
    params.section_heads = 21;
    EXPECT_EQ(clears_ahead(row, p, device, params, 1), 24) << row.name;
    p.batch = 6;
    EXPECT_EQ(clears_ahead(row, p, device, params, 1), 0) << row.name;
    p.batch = 64;
    for (const u32 vector : {MICA_CU_SEQLENS_Q, MICA_CU_SEQLENS_K, MICA_CACHE_LEFTPAD}) {
      p.vectors = vector;
      EXPECT_EQ(clears_ahead(row, p, device, params, 1), 0) << row.name;
      EXPECT_FALSE(counts_heads(row, p)) << row.name;
    }
    p.vectors = 0;
    p.dq.dtype = MICA_NONE;
    EXPECT_EQ(clears_ahead(row, p, device, params, 1), 0) << row.name;
    EXPECT_FALSE(counts_heads(row, p)) << row.name;
  }
}

// Few key tiles are shared by their queries, unless what is added for it takes longer; in a fixed order, in a window
// and of packed sequences they are not.
TEST(BackwardShare, FewKeyTilesAreSharedByTheirQueries) {
  struct {
    const char* row;
    i32 rows, heads_q, heads_k, parts;
    bool causal;
  } const cases[] = {{"backward_halves_sm90_bf16_d256", 1152, 8, 4, 2, true},
                     {"backward_halves_sm90_bf16_d256", 1152, 8, 4, 1, false},
                     {"backward_halves_sm90_bf16_d256", 768, 8, 4, 2, true},
                     {"backward_halves_sm90_bf16_d256", 2048, 8, 8, 1, true},
                     {"backward_halves_sm90_bf16_d256", 3000, 4, 1, 2, true},
                     {"backward_halves_sm90_bf16_d192", 2048, 8, 8, 1, true},
                     {"backward_tma_sm90_bf16_d128_q80", 2048, 4, 4, 2, false},
                     {"backward_tma_sm90_bf16_d128_q80", 4096, 4, 4, 2, true},
                     {"backward_tma_sm90_bf16_d128_q64", 2048, 8, 2, 2, true},
                     {"backward_tma_sm90_bf16_d128_q64", 1152, 16, 4, 1, true},
                     {"backward_tma_sm90_bf16_d64", 8192, 4, 4, 1, true}};
  Device device = device_of(90);
  device.num_sms = 132;
  for (const auto& c : cases)
    for (i32 i = 0; i < kernel_table().num_rows; ++i) {
      const KernelRow& row = kernel_table().rows[i];
      if (row_name(i) != c.row) continue;
      Problem p = problem_of(row);
      p.batch = 1;
      p.heads_q = c.heads_q;
      p.heads_k = c.heads_k;
      p.group = c.heads_q / c.heads_k;
      p.max_len_q = p.hint_len_q = p.max_len_k = p.hint_len_k = c.rows;
      if (c.causal) p.window_right = 0;
      const auto parts = [&] {
        return share_key_tiles(row, p, device, ceil_div(c.rows, row.tile_k) * c.heads_k).query_parts;
      };
      EXPECT_EQ(parts(), c.parts) << c.row << ", " << c.rows << " rows of " << c.heads_q << ":" << c.heads_k;
      p.deterministic = true;
      EXPECT_EQ(parts(), 1) << c.row;
      p.deterministic = false;
      p.window_left = 100;
      EXPECT_EQ(parts(), 1) << c.row;
      p.window_left = MICA_MAX_SEQLEN;
      p.vectors = MICA_CU_SEQLENS_Q;
      EXPECT_EQ(parts(), 1) << c.row;
    }
}

// Heads of a group and queries are shared out together, on an H200: as blocks fill its SMs most evenly. Under a causal
// mask several heads a block, or parts of their queries, have to gain more. In turn there are heads alone.
TEST(BackwardShare, HeadsAndQueriesAreSharedTogether) {
  struct {
    const char* row;
    i32 batch, rows, heads_q, heads_k;
    bool causal;
    BackwardShare any_order, in_turn;
  } const cases[] = {{"backward_tma_sm90_bf16_d128_q80", 1, 1500, 6, 2, false, {3, 1, 5}, {1, 3, 1}},
                     {"backward_tma_sm90_bf16_d128_whole_q80", 1, 1500, 6, 2, false, {3, 1, 5}, {1, 3, 1}},
                     {"backward_tma_sm90_bf16_d128_q80", 1, 5260, 2, 1, false, {2, 1, 3}, {1, 2, 1}},
                     {"backward_tma_sm90_bf16_d128_whole_q80", 1, 5260, 2, 1, false, {2, 1, 3}, {1, 2, 1}},
                     {"backward_tma_sm90_bf16_d128_q80", 1, 1771, 4, 4, false, {1, 1, 2}, {1, 1, 1}},
                     {"backward_tma_sm90_bf16_d64_round", 1, 2337, 4, 1, false, {2, 2, 3}, {1, 4, 1}},
                     {"backward_tma_sm90_bf16_d96_q64", 4, 713, 6, 2, false, {3, 1, 2}, {1, 3, 1}},
                     {"backward_tma_sm90_bf16_d128_q80", 1, 3224, 32, 4, false, {8, 1, 6}, {1, 8, 1}},
                     {"backward_tma_sm90_bf16_d64", 1, 3334, 4, 1, true, {1, 4, 2}, {1, 4, 1}},
                     {"backward_tma_sm90_bf16_d64", 1, 3120, 16, 4, true, {1, 4, 1}, {1, 4, 1}},
                     {"backward_tma_sm90_bf16_d64", 3, 817, 6, 1, true, {1, 6, 1}, {1, 6, 1}},
                     {"backward_tma_sm90_bf16_d64", 4, 1161, 8, 4, true, {2, 1, 1}, {2, 1, 1}},
                     {"backward_tma_sm90_bf16_d96_q64", 1, 1569, 12, 2, true, {3, 2, 4}, {1, 6, 1}},
                     {"backward_tma_sm90_bf16_d96_q64", 4, 1733, 16, 4, true, {4, 1, 1}, {4, 1, 1}},
                     {"backward_tma_sm90_bf16_d128_q64", 3, 1173, 16, 2, true, {2, 4, 1}, {2, 4, 1}},
                     {"backward_tma_sm90_bf16_d128_q64", 1, 1025, 16, 4, true, {1, 4, 1}, {1, 4, 1}}};
  Device device = device_of(90);
  device.num_sms = 132;
  int found = 0;
  for (const auto& c : cases)
    for (i32 i = 0; i < kernel_table().num_rows; ++i) {
      const KernelRow& row = kernel_table().rows[i];
      if (row_name(i) != c.row) continue;
      ++found;
      Problem p = problem_of(row);
      p.batch = c.batch;
      p.heads_q = c.heads_q;
      p.heads_k = c.heads_k;
      p.group = c.heads_q / c.heads_k;
      p.max_len_q = p.hint_len_q = p.max_len_k = p.hint_len_k = c.rows;
      if (c.causal) p.window_right = 0;
      const i64 key_blocks = i64(c.batch) * c.heads_k * ceil_div(c.rows, row.tile_k);
      const auto expect = [&](const BackwardShare& want) {
        const BackwardShare share = share_key_tiles(row, p, device, key_blocks);
        EXPECT_TRUE(share.part_heads == want.part_heads && share.head_parts == want.head_parts &&
                    share.query_parts == want.query_parts)
            << c.row << ", " << c.batch << " x " << c.rows << " rows of " << c.heads_q << ":" << c.heads_k << ": "
            << share.part_heads << " " << share.head_parts << " " << share.query_parts;
      };
      p.deterministic = false;
      expect(c.any_order);
      p.deterministic = true;
      expect(c.in_turn);
      p.batch_invariant = true;
      expect({p.group, 1, 1});
      p.batch_invariant = false;
      p.deterministic = false;
      p.vectors = MICA_CACHE_LEFTPAD;
      expect({p.group, 1, 1});
      p.vectors = 0;
      EXPECT_EQ(share_key_tiles(row, p, device, key_blocks, 1).query_parts, 1) << c.row;
    }
  EXPECT_EQ(found, int(std::size(cases)));
}

// In whole numbers, of four waves of blocks at most, where these would wait long for their turns with a key tile, or
// parts of the queries gain more than those cost. Narrow heads under a mask wait little; tiles of 80 queries whose
// blocks tell one another run at once.
TEST(BackwardShare, WholeNumbersAreForWhatWouldWait) {
  struct {
    const char* row;
    i32 batch, rows, heads_q, heads_k;
    bool causal, suits;
  } const cases[] = {{"backward_tma_sm90_bf16_d128_whole_q80", 1, 5260, 2, 1, false, true},
                     {"backward_tma_sm90_bf16_d128_whole_q80", 8, 1245, 4, 1, false, false},
                     {"backward_tma_sm90_bf16_d128_whole_round", 8, 1245, 4, 1, false, true},
                     {"backward_tma_sm90_bf16_d64_whole_round", 1, 2260, 16, 2, false, true},
                     {"backward_tma_sm90_bf16_d64_whole_round", 3, 2100, 4, 2, false, false},
                     {"backward_tma_sm90_bf16_d128_whole_q80", 1, 3224, 32, 4, false, false},
                     {"backward_tma_sm90_bf16_d96_whole", 1, 2108, 24, 4, false, true},
                     {"backward_tma_sm90_bf16_d128_whole_round", 1, 3224, 32, 4, false, false},
                     {"backward_tma_sm90_bf16_d64_whole", 1, 3334, 4, 1, true, true},
                     {"backward_tma_sm90_bf16_d64_whole", 1, 3120, 16, 4, true, false},
                     {"backward_tma_sm90_bf16_d64_whole", 4, 1161, 8, 4, true, false},
                     {"backward_tma_sm90_bf16_d96_whole", 2, 1593, 16, 4, true, true},
                     {"backward_tma_sm90_bf16_d128_whole", 1, 1803, 16, 4, true, true}};
  Device device = device_of(90);
  device.num_sms = 132;
  for (const auto& c : cases)
    for (i32 i = 0; i < kernel_table().num_rows; ++i) {
      const KernelRow& row = kernel_table().rows[i];
      if (row_name(i) != c.row) continue;
      Problem p = problem_of(row);
      p.deterministic = true;
      p.batch = c.batch;
      p.heads_q = c.heads_q;
      p.heads_k = c.heads_k;
      p.group = c.heads_q / c.heads_k;
      p.max_len_q = p.hint_len_q = p.max_len_k = p.hint_len_k = c.rows;
      if (c.causal) p.window_right = 0;
      EXPECT_EQ(suits_integers(row, p, device), c.suits)
          << c.row << ", " << c.batch << " x " << c.rows << " rows of " << c.heads_q << ":" << c.heads_k;
    }
}

// Heads as rows, over keys that come from memory, on an H200: a tile of 128 rows for each of ten key heads is cut into
// as many ranges as SMs have room for, of 16 tiles or more; more tiles than SMs are not cut, since their parts are
// joined for longer than the last round is idle.
TEST(FewRows, JoinedHeadsFillTheSmsInOneRound) {
  Device device = device_of(90);
  device.num_sms = 132;
  const KernelTable& table = kernel_table();
  i32 index = 0;
  while (index < table.num_rows && std::string_view(table.rows[index].name) != "forward_sm90_bf16_d128_middle") ++index;
  ASSERT_LT(index, table.num_rows);
  const struct {
    i32 batch, heads_k, rows, keys, ranges;
  } cases[] = {{2, 5, 128, 82042, 13}, {8, 1, 96, 107561, 16}, {1, 4, 128, 60000, 29}, {20, 8, 80, 2400, 1}};
  for (const auto& c : cases) {
    Problem p = problem_of(table.rows[index]);
    p.batch = c.batch;
    p.heads_q = p.heads_k = c.heads_k;
    p.max_len_q = p.hint_len_q = c.rows;
    p.max_len_k = p.hint_len_k = c.keys;
    EXPECT_EQ(ranges_of_joined(table.rows[index], p, {p, device, {}, MICA_PIECES_NONE}, nullptr), c.ranges) << c.keys;
  }
}

// Boxes of the copy engine bring pages of a multiple of 16 rows, lanes all others.
TEST(KernelTable, PagesThatBoxesBring) {
  KernelRow row = {};
  row.dtype = MICA_BF16;
  row.dim_qk = row.dim_v = 64;
  Problem p = problem_of(row);
  for (const i32 size : {1, 8, 16, 24, 32, 48, 64, 256}) {
    p.page_size = size;
    EXPECT_EQ((features_of(p) & kFeatureSmallPages) == 0, size % 16 == 0) << size;
  }
  p.vectors |= MICA_CACHE_LEFTPAD;
  EXPECT_NE(features_of(p) & kFeatureSmallPages, 0u) << "boxes would not begin with a page's rows";
}

TEST(KernelTable, FeaturesOfAProblem) {
  KernelRow row = {};
  row.dtype = MICA_BF16;
  row.dim_qk = row.dim_v = 64;
  Problem p = problem_of(row);
  EXPECT_EQ(features_of(p), 0u);
  p.k.stride[1] += 1;
  EXPECT_EQ(features_of(p), u32(kFeatureUnaligned));
  p.k.stride[1] -= 1;
  p.k.alignment = 8;
  EXPECT_EQ(features_of(p), u32(kFeatureUnaligned));
  p.k.alignment = 16;
  p.o.dtype = MICA_FP32;
  EXPECT_EQ(features_of(p), u32(kFeatureFp32Output));
  p.joined_heads = 16;
  EXPECT_EQ(features_of(p), u32(kFeatureFp32Output | kFeatureJoinedHeads));
  p.joined_heads = 0;
  p.page_size = 128;
  EXPECT_EQ(features_of(p), u32(kFeatureFp32Output | kFeaturePaged));
  p.vectors = MICA_CACHE_LEFTPAD;
  EXPECT_EQ(features_of(p), u32(kFeatureFp32Output | kFeaturePaged | kFeatureSmallPages));
  p.vectors = 0;
  p.page_size = 8;
  p.dropout = 0.5f;
  p.dropout_place = {.row_first = 32, .row_step = 1, .key_first = 64, .key_step = 1, .head_first = 0, .heads = 1};
  EXPECT_EQ(features_of(p), u32(kFeatureFp32Output | serves::PAGED | kFeatureDropout));
  p.dropout_place.key_first = 48;
  EXPECT_EQ(features_of(p), u32(kFeatureFp32Output | serves::PAGED | kFeatureDropout | kFeatureApartCells));
}

}  // namespace
}  // namespace mica
