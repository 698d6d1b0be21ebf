// SPDX-License-Identifier: Apache-2.0
// Heads as rows: what the joined problem addresses is what the other did, and what tells heads apart is left alone.
#include "core/heads_as_rows.h"

#include <gtest/gtest.h>

#include <set>

namespace mica {
namespace {

// (batch, rows, heads, dim) in memory order, or (batch, heads, rows, dim).
Tensor rows_of(i64 batch, i64 rows, i64 heads, i64 dim, bool heads_first) {
  if (heads_first) return {MICA_BF16, 16, {batch, rows, heads, dim}, {rows * heads * dim, dim, rows * dim, 1}};
  return {MICA_BF16, 16, {batch, rows, heads, dim}, {rows * heads * dim, heads * dim, dim, 1}};
}

Problem decode(i32 len_q, i32 heads_q, i32 heads_k, bool heads_first) {
  Problem p = {};
  p.pass = MICA_FORWARD;
  p.dtype = MICA_BF16;
  p.batch = 3;
  p.heads_q = heads_q;
  p.heads_k = heads_k;
  p.group = heads_q / heads_k;
  p.dim_qk = p.dim_v = 64;
  p.max_len_q = p.hint_len_q = len_q;
  p.window_left = p.window_right = kUnlimited;
  p.q = p.o = rows_of(3, len_q, heads_q, 64, heads_first);
  if (len_q == 1) p.q.stride[1] = p.o.stride[1] = 0;
  return p;
}

// Where the rows of the heads of key head `head_k` begin.
std::set<i64> offsets(const Problem& p, const Tensor& t, i32 head_k) {
  std::set<i64> found;
  for (i32 row = 0; row < p.max_len_q; ++row)
    for (i32 g = 0; g < p.group; ++g) found.insert(row * t.stride[1] + (head_k * p.group + g) * t.stride[2]);
  return found;
}

TEST(HeadsAsRows, AddressesTheSameRows) {
  for (const bool heads_first : {false, true})
    for (const i32 len_q : {1, 4})
      for (const i32 heads_k : {1, 2}) {
        const Problem p = decode(len_q, 64, heads_k, heads_first);
        Problem joined;
        i32 lse_heads = 0;
        // Another key head's query heads stand between those of two rows.
        const bool is_apart = !heads_first && len_q > 1 && heads_k > 1;
        ASSERT_EQ(heads_as_rows(p, joined, lse_heads), !is_apart);
        if (is_apart) continue;
        EXPECT_EQ(joined.max_len_q, len_q * p.group);
        EXPECT_EQ(joined.heads_q, heads_k);
        EXPECT_EQ(joined.group, 1);
        EXPECT_EQ(lse_heads, 1) << "there is no LSE";
        EXPECT_EQ(joined.q.shape[1], joined.max_len_q);
        for (i32 head_k = 0; head_k < heads_k; ++head_k) {
          EXPECT_EQ(offsets(p, p.q, head_k), offsets(joined, joined.q, head_k));
          EXPECT_EQ(offsets(p, p.o, head_k), offsets(joined, joined.o, head_k));
        }
      }
}

// Where the LSE of joined row `row` of head 0 of the first sequence is.
i64 lse_offset(const Problem& joined, i32 lse_heads, i32 row) {
  return row % lse_heads * joined.lse.stride[1] + row / lse_heads * joined.lse.stride[2];
}

TEST(HeadsAsRows, FindsTheLseOfEveryRow) {
  for (const bool heads_first : {false, true}) {
    Problem joined, p = decode(4, 64, 1, heads_first);
    p.lse = {MICA_FP32, 4, {3, 64, 4, 1}, {256, 4, 1, 0}};
    i32 lse_heads = 0;
    ASSERT_TRUE(heads_as_rows(p, joined, lse_heads));
    EXPECT_EQ(lse_heads, heads_first ? 1 : 64);
    for (i32 head = 0; head < 64; ++head)
      for (i32 row = 0; row < 4; ++row) {
        const i64 q_offset = row * p.q.stride[1] + head * p.q.stride[2];
        EXPECT_EQ(lse_offset(joined, lse_heads, i32(q_offset / joined.q.stride[1])), head * 4 + row);
      }
  }
}

// The keys of every joined row are those of its query.
TEST(HeadsInBoxes, KeepsTheBandOfEveryRow) {
  for (const i32 heads : {2, 3, 12, 16, 64, 80, 128})
    for (const bool bottom_right : {false, true})
      for (const i32 window_left : {kUnlimited, 30}) {
        Problem joined, p = decode(7, 3 * heads, 3, false);
        p.bottom_right = bottom_right;
        p.shift = 2;
        p.window_left = window_left;
        p.window_right = 0;
        ASSERT_TRUE(heads_in_boxes(p, joined));
        EXPECT_EQ(joined.joined_heads, heads);
        EXPECT_EQ(joined.heads_q, 3);
        EXPECT_EQ(joined.max_len_q, 7 * heads);
        EXPECT_EQ(joined.q.shape[2], 3 * heads) << "tensors stay as they are";
        const Band band = band_of(p, 7, 100), of_joined = band_of(joined, joined.max_len_q, 100);
        for (i32 row = 0; row < joined.max_len_q; ++row) {
          const Range keys = keys_of_row(band, row / heads), same = keys_of_row(of_joined, row / heads);
          EXPECT_EQ(keys.begin, same.begin);
          EXPECT_EQ(keys.end, same.end);
        }
      }
}

TEST(HeadsInBoxes, HaveWholeGroupsOrPartsOfOne) {
  const struct {
    i32 heads, rows;
  } boxes[] = {{2, 64},  {3, 63},  {4, 64},  {5, 60},  {7, 63},  {12, 60}, {20, 60},  {28, 56},
               {33, 33}, {48, 64}, {64, 64}, {70, 35}, {80, 64}, {96, 64}, {128, 64}, {192, 64}};
  Problem joined;
  for (const auto& [heads, rows] : boxes) {
    ASSERT_TRUE(heads_in_boxes(decode(5, heads, 1, true), joined)) << heads;
    EXPECT_EQ(joined.joined_rows, rows) << heads;
    const i32 box = joined_boxes(heads).rows_of_box;
    EXPECT_EQ(rows % box, 0) << heads;
    EXPECT_TRUE(heads % box == 0 || box % heads == 0) << heads;
  }
  for (const i32 heads : {1, 67, 93}) EXPECT_FALSE(heads_in_boxes(decode(5, heads, 1, true), joined)) << heads;
  Problem p = decode(5, 16, 1, false);
  p.sinks.dtype = MICA_FP32;
  EXPECT_FALSE(heads_in_boxes(p, joined));
}

TEST(HeadsAsRows, LeavesAloneWhatTellsHeadsOrRowsApart) {
  i32 lse_heads = 0;
  Problem joined, p = decode(4, 64, 1, false);
  p.window_right = 0;
  p.bottom_right = 1;
  EXPECT_FALSE(heads_as_rows(p, joined, lse_heads));
  p = decode(1, 64, 1, false);
  p.window_right = 0;
  EXPECT_FALSE(heads_as_rows(p, joined, lse_heads)) << "the diagonal from the top left hides all but one key";
  p.bottom_right = 1;
  EXPECT_TRUE(heads_as_rows(p, joined, lse_heads));
  EXPECT_EQ(joined.window_right, kUnlimited);
  const auto refused = [&](auto change) {
    Problem other = decode(1, 64, 1, false);
    change(other);
    return !heads_as_rows(other, joined, lse_heads);
  };
  EXPECT_TRUE(refused([](Problem& x) { x.sinks.dtype = MICA_FP32; }));
  EXPECT_TRUE(refused([](Problem& x) { x.alibi.dtype = MICA_FP32; }));
  EXPECT_TRUE(refused([](Problem& x) { x.bias.dtype = MICA_BF16; }));
  EXPECT_TRUE(refused([](Problem& x) { x.boolean.dtype = MICA_BOOL; }));
  EXPECT_TRUE(refused([](Problem& x) { x.window_left = 100; }));
  EXPECT_TRUE(refused([](Problem& x) { x.chunk = 64; }));
  EXPECT_TRUE(refused([](Problem& x) { x.dropout = 0.5f; }));
  EXPECT_TRUE(refused([](Problem& x) { x.rotary_dim = 32; }));
  EXPECT_TRUE(refused([](Problem& x) { x.vectors = MICA_CU_SEQLENS_Q; }));
  EXPECT_TRUE(refused([](Problem& x) { x.pass = MICA_BACKWARD; }));
  EXPECT_FALSE(refused([](Problem& x) { x.vectors = MICA_SEQUSED_K; }));
  EXPECT_FALSE(refused([](Problem& x) { x.len_new = 1; }));
  EXPECT_FALSE(refused([](Problem& x) { x.softcap = 30; }));
}

}  // namespace
}  // namespace mica
