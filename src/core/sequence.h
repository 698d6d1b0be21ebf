// SPDX-License-Identifier: Apache-2.0
// Dense, packed or paged: where row i of sequence b lives, and how long the sequence is.
// Every value read from memory is clamped to the shapes, so that nothing outside them is ever addressed.
#pragma once

#include "core/problem.h"

namespace mica {

// The int32 vectors of a call, with the shapes that bound them. Null: absent.
struct SequenceTable {
  const i32* cu_seqlens_q;
  const i32* cu_seqlens_k;
  const i32* seqused_q;
  const i32* seqused_k;
  const i32* cache_batch_idx;
  const i32* cache_leftpad;
  const i32* block_table;  // (batch, max_pages)
  i64 block_table_stride_batch, block_table_stride_page;
  i64 total_q, total_k;
  i32 slot_len_q, slot_len_k;  // the longest a sequence can be; rows of a dense slot; paged: max_pages * page_size
  i32 slots_k;                 // cache slots or pages
  i32 page_size, max_pages;    // 0: not paged
  i32 len_new;                 // rows that append adds
};

// One sequence. Row i of q is at row q_begin + i of batch slot q_slot; likewise for k when it is not paged.
struct Sequence {
  i64 q_begin, k_begin;
  i32 q_slot, k_slot;
  i32 len_q, len_k;  // in use: attention is over these
  i32 slot_len_q;    // rows that belong to the sequence; those past len_q are written as empty rows
  i32 slot_len_k;
  i32 leftpad;       // keys before key 0, counted in k_begin when not paged
  i32 append_begin;  // the first appended row, counted as the keys are; len_k - len_new
};

// Where a row of a paged sequence is.
struct PagedRow {
  i32 entry;  // of the block table, as it was read: the page
  i32 row;    // within the page
};

}  // namespace mica

namespace MICA_NS {

using mica::PagedRow;
using mica::Sequence;
using mica::SequenceTable;

MICA_HD SequenceTable sequence_shapes(const mica::Problem& p) {
  SequenceTable t = {};
  t.block_table_stride_batch = p.block_table.stride[0];
  t.block_table_stride_page = p.block_table.stride[1];
  t.total_q = p.total_q;
  t.total_k = p.total_k;
  t.slot_len_q = p.max_len_q;
  t.slot_len_k = p.max_len_k;
  t.slots_k = p.slots_k;
  t.page_size = p.page_size;
  t.max_pages = p.max_pages;
  t.len_new = p.len_new;
  return t;
}

// read(address): an element of one of the vectors.
template <class Read>
MICA_HD Sequence sequence_by(const SequenceTable& t, i32 b, Read read) {
  Sequence s = {};
  s.q_slot = b;
  s.slot_len_q = t.slot_len_q;
  if (t.cu_seqlens_q) {
    s.q_slot = 0;
    s.q_begin = clamp_to<i64>(read(t.cu_seqlens_q + b), 0, t.total_q);
    const i64 end = clamp_to<i64>(read(t.cu_seqlens_q + b + 1), s.q_begin, t.total_q);
    s.slot_len_q = i32(min_of<i64>(end - s.q_begin, t.slot_len_q));
  }
  s.len_q = t.seqused_q ? clamp_to(read(t.seqused_q + b), 0, s.slot_len_q) : s.slot_len_q;

  const bool paged = t.page_size > 0;
  s.k_slot = b;
  s.slot_len_k = t.slot_len_k;
  if (t.cu_seqlens_k) {
    s.k_slot = 0;
    const i64 begin = read(t.cu_seqlens_k + b), end = read(t.cu_seqlens_k + b + 1);
    if (paged) {
      s.slot_len_k = i32(clamp_to<i64>(end - begin, 0, t.slot_len_k));
    } else {
      s.k_begin = clamp_to<i64>(begin, 0, t.total_k);
      s.slot_len_k = i32(min_of<i64>(clamp_to<i64>(end, s.k_begin, t.total_k) - s.k_begin, t.slot_len_k));
    }
  } else if (t.cache_batch_idx) {
    s.k_slot = clamp_to(read(t.cache_batch_idx + b), 0, t.slots_k - 1);
  }
  const i32 room = s.slot_len_k - t.len_new;
  const i32 used = t.seqused_k ? clamp_to(read(t.seqused_k + b), 0, room) : room;
  s.leftpad = t.cache_leftpad ? clamp_to(read(t.cache_leftpad + b), 0, used) : 0;
  if (!paged) s.k_begin += s.leftpad;
  s.append_begin = used - s.leftpad;
  s.len_k = used - s.leftpad + t.len_new;
  return s;
}
MICA_HD Sequence sequence_of(const SequenceTable& t, i32 b) {
  return sequence_by(t, b, [](const i32* address) { return *address; });
}

// Whether rows, keys and lengths of two sequences of one table are the same.
MICA_HD bool is_same(const Sequence& a, const Sequence& b) {
  return a.q_begin == b.q_begin && a.k_begin == b.k_begin && a.k_slot == b.k_slot && a.len_q == b.len_q &&
         a.len_k == b.len_k && a.slot_len_q == b.slot_len_q && a.leftpad == b.leftpad;
}

// Key row j of a paged sequence, in two steps, so that a kernel can fetch the entry of the block table ahead of its
// use.
MICA_HD PagedRow paged_row(const SequenceTable& t, const Sequence& s, i32 b, i32 j) {
  const i32 position = s.leftpad + j;
  const i32 page_index = position / t.page_size;
  return PagedRow{t.block_table[b * t.block_table_stride_batch + page_index * t.block_table_stride_page],
                  position - page_index * t.page_size};
}
MICA_HD i64 paged_row_offset(const SequenceTable& t, const PagedRow& r, i64 stride_slot, i64 stride_row) {
  return clamp_to(r.entry, 0, t.slots_k - 1) * stride_slot + r.row * stride_row;
}

// Which sequence a row of packed q belongs to: the last that begins at or before it. The row may lie past its end, or
// before the first sequence.
MICA_HD i32 sequence_of_packed_row(const i32* cu_seqlens_q, i32 batch, i64 row) {
  i32 low = 0, high = batch - 1;
  while (low < high) {
    const i32 middle = low + (high - low + 1) / 2;
    if (cu_seqlens_q[middle] <= row)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// Element offset of key row j of the sequence (head 0) in a tensor with k's axes: (slot or page, row, head, dim).
MICA_HD i64 key_row_offset(const SequenceTable& t, const Sequence& s, i32 b, i32 j, i64 stride_slot, i64 stride_row) {
  if (t.page_size == 0) return s.k_slot * stride_slot + (s.k_begin + j) * stride_row;
  return paged_row_offset(t, paged_row(t, s, b, j), stride_slot, stride_row);
}

// The same for query row i in a tensor with q's axes.
MICA_HD i64 query_row_offset(const Sequence& s, i32 i, i64 stride_slot, i64 stride_row) {
  return s.q_slot * stride_slot + (s.q_begin + i) * stride_row;
}

}  // namespace MICA_NS
