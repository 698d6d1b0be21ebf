// SPDX-License-Identifier: Apache-2.0
// Problem: one attention call, normalised and validated. A POD that every backend reads; it holds no address.
#pragma once

#include "core/types.h"

namespace mica {

// Element strides. For q, k, v, o and their gradients the axes are (batch or page, row, head, dim).
// Axes of size 1 have stride 0, so that indexing broadcasts.
struct Tensor {
  i32 dtype;  // mica_dtype; MICA_NONE: absent
  i32 alignment;
  i64 shape[4];
  i64 stride[4];
};

// Which random bits dropout takes: row i has those of row row_first + i * row_step of the larger call that this one is
// a piece of, key j likewise, and (sequence b, head h) those of head_first + b * heads + h.
struct DropoutPlace {
  u32 row_first, row_step, key_first, key_step;
  u32 head_first, heads;
};

struct Problem {
  i32 pass;   // mica_pass
  i32 dtype;  // of q; k and v have the same, or e4m3
  i32 batch;  // sequences
  i32 heads_q, heads_k;
  i32 group;          // heads_q / heads_k: query heads that share a key head
  i32 dim_qk, dim_v;  // dim_qk: columns of q and k; with qv, whose products are added, those of qv and v as well

  // The longest a sequence can be by the shapes: correctness rests on these.
  i32 max_len_q, max_len_k;
  // The longest by the caller's hints (else the same): tiles, splits and kernels are chosen by these.
  i32 hint_len_q, hint_len_k;
  i64 total_q, total_k;  // rows of the packed tensors; batch * max_len otherwise
  i32 slots_k;           // k.shape[0]: cache slots, or pages
  i32 page_size;         // 0: not paged
  i32 max_pages;         // block_table.shape[1]
  u32 vectors;           // mica_vectors
  i32 len_new;           // rows that append writes; 0: none
  i32 rotary_dim;        // 0: none
  i32 rotary_interleaved;
  i32 rotary_positions;

  i32 causal;        // 1: window_right is 0
  i32 bottom_right;  // the diagonal: 1: shift = len_k - len_q; 0: shift = 0
  i32 shift;         // added to that, for a piece of a larger call; at most 2^28 either way
  i32 window_left;   // MICA_MAX_SEQLEN: unlimited
  i32 window_right;
  i32 chunk;  // a row sees the keys of its own chunk of so many positions; 0: no chunks
  Divisor by_chunk;
  i32 chunk_phase;  // how far into its chunk key 0 lies
  // Above 0: row r of head h is row r / joined_heads of head h * joined_heads + r % joined_heads of q, o and lse, whose
  // shapes are as they were, and so are the rows of the band. joined_rows of them are fetched at once.
  i32 joined_heads, joined_rows;
  float scale;    // resolved, never 0
  float softcap;  // 0: none
  float dropout;  // probability of dropping
  i32 rng_from_memory;
  DropoutPlace dropout_place;

  i32 num_splits;  // 0: choose
  i32 deterministic;
  i32 batch_invariant;

  Tensor q, k, v, o, lse, probs;
  i32 mask_last_keys;  // boolean is about the last so many keys, and those before are visible; 0: it begins at key 0
  Tensor boolean, alibi, bias, sinks;
  Tensor block_table, k_new, v_new, rotary_cos, rotary_sin;
  Tensor d_o, d_lse, dq, dk, dv, d_bias, d_sinks;

  Tensor q_descale, k_descale, v_descale;  // fp32 (batch, heads_k, 1, 1); axes of size 1 broadcast
  i32 descale_per_page;                    // 1: k_descale and v_descale have pages for batch

  // (1, keys, heads_k, dim): seen by every row of every sequence beside its own keys. No backend knows of them: such a
  // problem is computed as two that have none (api/prefix.h).
  Tensor k_prefix, v_prefix;

  // (batch, rows, heads_q, dim_v): a row of q is followed by its row of qv, and a row of k by its row of v.
  Tensor qv;
};

}  // namespace mica
