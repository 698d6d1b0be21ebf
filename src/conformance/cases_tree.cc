// SPDX-License-Identifier: Apache-2.0
// Speculation: a boolean mask about the last keys of each sequence, on caches of every kind.
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

}  // namespace mica::conformance
