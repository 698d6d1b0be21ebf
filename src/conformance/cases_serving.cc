// SPDX-License-Identifier: Apache-2.0
// Serving, on caches of every kind: trees of speculated tokens, which are a boolean mask about the last keys of each
// sequence, and keys that the whole batch shares.
#include "conformance/cases.h"

namespace mica::conformance {

void add_tree_cases(CaseTable& table) {
  const auto add = [&](const std::string& suffix, Options o) {
    o.has_mask = true;
    o.mask_density = 0.6;
    table.add("tree_" + suffix, o);
  };
  add("dense", {.len_q = 7, .len_k = 60, .mask_axes = kAxisBatch | kAxisQuery | kAxisKey, .mask_last_keys = 7});
  add("every_axis", {.heads_q = 4, .len_q = 5, .len_k = 90, .mask_last_keys = 9});
  add("one_key", {.len_q = 3, .len_k = 40, .mask_last_keys = 1});
  // More keys than a sequence has: the first columns are about none.
  add("longer_than_the_keys", {.len_q = 6, .len_k = 4, .mask_last_keys = 11});
  add("empty_rows", {.len_q = 9, .len_k = 9, .mask_empty_rows = true, .mask_last_keys = 9});
  add("causal_window_chunk", {.len_q = 8,
                              .len_k = 80,
                              .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                              .window_left = 40,
                              .chunk = 32,
                              .mask_last_keys = 8});
  add("bias_softcap_sinks", {.len_q = 8,
                             .len_k = 80,
                             .mask_last_keys = 8,
                             .softcap = 5.0f,
                             .bias_dtype = MICA_FP32,
                             .sinks_dtype = MICA_FP32});
  add("varlen", {.batch = 4, .mask_last_keys = 8, .packed_q = {5, 0, 7, 3}, .packed_k = {50, 12, 7, 90}});
  for (const int64_t page_size : {0, 16}) {
    const std::string name = page_size ? "paged_" : "cache_";
    add(name + "append", {.batch = 3,
                          .heads_q = 8,
                          .len_q = 6,
                          .len_k = 96,
                          .dim = 64,
                          .alignment = 16,
                          .mask_last_keys = 6,
                          .used_k = {80, 0, 33},
                          .page_size = page_size,
                          .len_new = 6});
    add(name + "leftpad_splits", {.batch = 3,
                                  .heads_q = 8,
                                  .len_q = 6,
                                  .len_k = 400,
                                  .dim = 128,
                                  .alignment = 16,
                                  .mask_last_keys = 6,
                                  .used_k = {390, 66, 131},
                                  .leftpad = {3, 60, 0},
                                  .page_size = page_size,
                                  .num_splits = 3});
  }
  // More rows than decode takes.
  add("many_rows", {.batch = 1, .len_q = 200, .len_k = 300, .dim = 64, .alignment = 16, .mask_last_keys = 200});
  add("latent", {.batch = 1,
                 .heads_q = 16,
                 .heads_k = 1,
                 .len_q = 4,
                 .len_k = 150,
                 .dim = 576,
                 .dim_v = 512,
                 .alignment = 16,
                 .mask_last_keys = 4});
}

void add_prefix_cases(CaseTable& table) {
  const auto add = [&](const std::string& suffix, Options o) {
    if (o.len_prefix == 0) o.len_prefix = 70;
    table.add("prefix_" + suffix, o);
  };
  add("dense", {});
  add("decode", {.batch = 5, .heads_q = 8, .len_q = 1, .len_k = 60, .used_k = {1, 60, 17, 0, 33}});
  add("rows_causal",
      {.batch = 3, .heads_q = 4, .len_q = 6, .len_k = 50, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .used_k = {6, 50, 29}});
  add("tree", {.len_q = 7,
               .len_k = 60,
               .has_mask = true,
               .mask_axes = kAxisBatch | kAxisQuery | kAxisKey,
               .mask_last_keys = 7});
  add("mask_hides_own_keys", {.len_q = 9, .len_k = 20, .has_mask = true, .mask_empty_rows = true});
  add("pages_append", {.batch = 3,
                       .heads_q = 4,
                       .len_q = 2,
                       .len_k = 64,
                       .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                       .used_k = {30, 5, 0},
                       .page_size = 16,
                       .len_new = 2});
  add("batch_idx_leftpad",
      {.batch = 3, .len_q = 1, .len_k = 40, .used_k = {40, 21, 8}, .has_batch_idx = true, .leftpad = {3, 0, 8}});
  add("sinks_softcap", {.heads_q = 4, .len_q = 3, .len_k = 40, .softcap = 5, .sinks_dtype = MICA_FP32});
  add("one_key", {.len_q = 4, .len_k = 30, .len_prefix = 1});
  add("no_own_keys", {.len_q = 2, .len_k = 0});
  add("longer_than_own", {.batch = 4, .heads_q = 8, .len_q = 1, .len_k = 9, .dim = 64, .len_prefix = 700});
  add("wide_v_strides", {.len_q = 1,
                         .len_k = 30,
                         .dim = 40,
                         .dim_v = 24,
                         .layout_q = Layout::kPadded,
                         .layout_k = Layout::kPadded,
                         .layout_o = Layout::kPadded,
                         .layout_rows = Layout::kPadded});
  add("heads_first_one_sequence",
      {.batch = 1, .len_q = 12, .len_k = 30, .layout_q = Layout::kHeadsFirst, .layout_o = Layout::kHeadsFirst});
  add("no_lse", {.len_q = 3, .len_k = 30, .want_lse = false});
}

}  // namespace mica::conformance
