// SPDX-License-Identifier: Apache-2.0
// Where rows live: right for honest vectors, and inside the shapes for any vectors at all.
#include "core/sequence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <random>
#include <vector>

namespace {

// The vectors of a call and the table that points into them.
struct Call {
  mica::SequenceTable table = {};
  int batch = 0;
  std::vector<int> cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, cache_batch_idx, cache_leftpad, block_table;

  void point() {
    const auto at = [](const std::vector<int>& v) { return v.empty() ? nullptr : v.data(); };
    table.cu_seqlens_q = at(cu_seqlens_q);
    table.cu_seqlens_k = at(cu_seqlens_k);
    table.seqused_q = at(seqused_q);
    table.seqused_k = at(seqused_k);
    table.cache_batch_idx = at(cache_batch_idx);
    table.cache_leftpad = at(cache_leftpad);
    table.block_table = at(block_table);
  }
};

Call random_call(std::mt19937& random) {
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  const auto hostile = [&] {
    const int values[] = {INT_MIN, INT_MIN + 1, -7, -1, 0, 1, 2, 3, 5, 8, 13, 21, 100, INT_MAX - 1, INT_MAX};
    return values[random() % 15];
  };
  const auto vector = [&](int size) {
    std::vector<int> v(size);
    for (int& x : v) x = hostile();
    return v;
  };
  Call c;
  c.batch = 1 + below(4);
  c.table.slot_len_q = below(8);
  c.table.total_q = (long long)(c.batch) * c.table.slot_len_q;
  c.table.slot_len_k = below(12);
  c.table.slots_k = 1 + below(5);
  if (below(2)) {
    c.table.total_q = c.table.slot_len_q = below(20);
    c.cu_seqlens_q = vector(c.batch + 1);
  }
  if (below(2)) c.seqused_q = vector(c.batch);
  if (below(2)) c.seqused_k = vector(c.batch);
  if (below(2)) c.cache_leftpad = vector(c.batch);
  const int kind = below(4);
  if (kind == 0) {  // packed
    c.table.total_k = c.table.slot_len_k = below(20);
    c.table.slots_k = 1;
    c.cu_seqlens_k = vector(c.batch + 1);
  } else if (kind == 1) {  // paged
    c.table.page_size = 1 + below(4);
    c.table.max_pages = below(4);
    c.table.slot_len_k = c.table.page_size * c.table.max_pages;
    c.table.block_table_stride_batch = c.table.max_pages;
    c.table.block_table_stride_page = 1;
    c.table.slots_k = c.table.max_pages > 0 ? 1 + below(5) : 0;
    c.block_table = vector(std::max(c.batch * c.table.max_pages, 1));
    if (below(2)) c.cu_seqlens_k = vector(c.batch + 1);
  } else {
    if (kind == 2) {
      c.cache_batch_idx = vector(c.batch);
    } else {
      c.table.slots_k = c.batch;
    }
    c.table.total_k = (long long)(c.table.slots_k) * c.table.slot_len_k;
  }
  // As validation has it: there is a slot where one is named, appended rows fit it, and a packed k takes none.
  if (c.cu_seqlens_k.empty() && below(2)) c.table.len_new = below(c.table.slot_len_k + 1);
  c.point();
  return c;
}

TEST(Sequence, HostileVectorsStayInsideTheShapes) {
  std::mt19937 random(10);
  for (int trial = 0; trial < 500000; ++trial) {
    const Call c = random_call(random);
    const mica::SequenceTable& t = c.table;
    for (int b = 0; b < c.batch; ++b) {
      const mica::Sequence s = mica::sequence_of(t, b);
      // Queries: rows [0, slot_len_q) of the sequence are rows of q.
      ASSERT_GE(s.len_q, 0);
      ASSERT_LE(s.len_q, s.slot_len_q);
      ASSERT_GE(s.q_begin, 0);
      ASSERT_LE(s.q_begin + s.slot_len_q, t.cu_seqlens_q ? t.total_q : t.slot_len_q);
      ASSERT_EQ(s.q_slot, t.cu_seqlens_q ? 0 : b);
      // Keys: rows [0, len_k) of the sequence are rows of k, those from append_begin on are the new ones.
      ASSERT_GE(s.len_k, 0);
      ASSERT_GE(s.append_begin, 0);
      ASSERT_GE(s.leftpad, 0);
      ASSERT_EQ(s.append_begin + t.len_new, s.len_k);
      ASSERT_LE(s.leftpad + s.len_k, s.slot_len_k);
      ASSERT_LE(s.slot_len_k, std::max<long long>(t.slot_len_k, t.total_k));
      for (int j = 0; j < s.len_k; ++j) {
        // Slots and rows of k in one number: slot * 1000 + row.
        const long long offset = mica::key_row_offset(t, s, b, j, 1000, 1);
        ASSERT_GE(offset, 0);
        ASSERT_LT(offset / 1000, t.slots_k);
        const long long rows = t.page_size > 0 ? t.page_size : t.cu_seqlens_k ? t.total_k : t.slot_len_k;
        ASSERT_LT(offset % 1000, rows);
      }
      for (int i = 0; i < s.slot_len_q; ++i) {
        const long long offset = mica::query_row_offset(s, i, 1000, 1);
        ASSERT_GE(offset, 0);
        ASSERT_LT(offset % 1000, t.cu_seqlens_q ? t.total_q : t.slot_len_q);
      }
    }
  }
}

TEST(Sequence, Dense) {
  Call c;
  c.table.slot_len_q = 5;
  c.table.slot_len_k = 7;
  c.table.slots_k = 3;
  for (int b = 0; b < 3; ++b) {
    const mica::Sequence s = mica::sequence_of(c.table, b);
    EXPECT_EQ(s.len_q, 5);
    EXPECT_EQ(s.len_k, 7);
    EXPECT_EQ(mica::query_row_offset(s, 4, 100, 10), 100 * b + 40);
    EXPECT_EQ(mica::key_row_offset(c.table, s, b, 6, 200, 10), 200 * b + 60);
  }
}

TEST(Sequence, PackedDivisionsTileTheRows) {
  for (int first = 0; first <= 6; ++first)
    for (int second = first; second <= 6; ++second) {
      Call c;
      c.table.total_q = c.table.total_k = 6;
      c.table.slot_len_q = c.table.slot_len_k = 6;
      c.table.slots_k = 1;
      c.cu_seqlens_q = c.cu_seqlens_k = {0, first, second, 6};
      c.point();
      int next = 0;
      for (int b = 0; b < 3; ++b) {
        const mica::Sequence s = mica::sequence_of(c.table, b);
        EXPECT_EQ(s.len_q, s.len_k);
        for (int i = 0; i < s.len_q; ++i, ++next) {
          EXPECT_EQ(mica::query_row_offset(s, i, 1000, 1), next);
          EXPECT_EQ(mica::key_row_offset(c.table, s, b, i, 1000, 1), next);
        }
      }
      EXPECT_EQ(next, 6);
    }
}

// Keys in use: seqused_k + appended keys - leftpad, counted from the first key that is not padding.
TEST(Sequence, CacheWithPaddingAndAppend) {
  for (const bool paged : {false, true})
    for (int used = 0; used <= 9; ++used)
      for (int leftpad = 0; leftpad <= used; ++leftpad)
        for (int len_new = 0; len_new <= 12 - used; ++len_new) {
          Call c;
          c.table.slot_len_q = 1;
          c.table.slot_len_k = 12;
          c.table.slots_k = 8;
          c.table.len_new = len_new;
          c.seqused_k = {0, used};
          c.cache_leftpad = {0, leftpad};
          if (paged) {
            c.table.page_size = 3;
            c.table.max_pages = 4;
            c.table.block_table_stride_batch = 4;
            c.table.block_table_stride_page = 1;
            c.block_table = {0, 0, 0, 0, 7, 2, 5, 1};
          } else {
            c.cache_batch_idx = {0, 6};
          }
          c.point();
          const mica::Sequence s = mica::sequence_of(c.table, 1);
          ASSERT_EQ(s.len_k, used + len_new - leftpad);
          ASSERT_EQ(s.append_begin, used - leftpad);
          for (int j = 0; j < s.len_k; ++j) {
            const int position = leftpad + j;
            const int want = paged ? c.block_table[4 + position / 3] * 1000 + position % 3 : 6 * 1000 + position;
            ASSERT_EQ(mica::key_row_offset(c.table, s, 1, j, 1000, 1), want);
          }
        }
}

// A packed tensor may hold more rows than a sequence may have: no length exceeds what the mask can count with.
TEST(Sequence, PackedLengthsStayBelowTheLimit) {
  Call c;
  c.table.total_q = c.table.total_k = INT_MAX;
  c.table.slot_len_q = c.table.slot_len_k = 1 << 29;
  c.table.slots_k = 1;
  c.cu_seqlens_q = c.cu_seqlens_k = {5, INT_MAX};
  c.point();
  const mica::Sequence s = mica::sequence_of(c.table, 0);
  EXPECT_EQ(s.slot_len_q, 1 << 29);
  EXPECT_EQ(s.len_q, 1 << 29);
  EXPECT_EQ(s.len_k, 1 << 29);
  EXPECT_EQ(s.q_begin, 5);
}

TEST(Sequence, OffsetsPastTwoToTheThirtyOne) {
  Call c;
  c.table.slot_len_q = c.table.slot_len_k = 1 << 29;
  c.table.slots_k = 5;
  const mica::Sequence s = mica::sequence_of(c.table, 4);
  const long long stride_row = 4096, stride_slot = stride_row << 29;
  EXPECT_EQ(mica::query_row_offset(s, (1 << 29) - 1, stride_slot, stride_row), 5 * stride_slot - stride_row);
  EXPECT_EQ(mica::key_row_offset(c.table, s, 4, (1 << 29) - 1, stride_slot, stride_row), 5 * stride_slot - stride_row);
}

}  // namespace
