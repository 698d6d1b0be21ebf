// SPDX-License-Identifier: Apache-2.0
// Named cases about sequences, caches, append, dropout, control and gradients, and everything at once.
#include <cmath>

#include "conformance/cases.h"

namespace mica::conformance {

void add_sequence_cases(CaseTable& table) {
  const std::vector<int32_t> q = {5, 0, 33, 1, 20}, k = {9, 12, 0, 1, 51};
  table.add("varlen", {.batch = 5, .packed_q = q, .packed_k = k});
  table.add("varlen_causal", {.batch = 5, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .packed_q = q, .packed_k = k});
  table.add("varlen_causal_top_left", {.batch = 5, .causal = MICA_CAUSAL_TOP_LEFT, .packed_q = q, .packed_k = k});
  table.add("varlen_window_gqa", {.batch = 5,
                                  .heads_q = 6,
                                  .dim = 64,
                                  .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT,
                                  .window_left = 11,
                                  .window_right = 3,
                                  .packed_q = q,
                                  .packed_k = k});
  table.add("varlen_all_empty", {.batch = 3, .packed_q = {0, 0, 0}, .packed_k = {0, 4, 0}});
  table.add("varlen_one_sequence", {.batch = 1, .packed_q = {70}, .packed_k = {130}});
  table.add("varlen_many_short", {.batch = 12,
                                  .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                  .packed_q = {1, 2, 3, 4, 5, 6, 7, 8, 0, 10, 11, 12},
                                  .packed_k = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}});
  table.add("varlen_long", {.batch = 3,
                            .heads_q = 1,
                            .heads_k = 1,
                            .dim = 64,
                            .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                            .packed_q = {129, 3, 64},
                            .packed_k = {200, 300, 64}});
  table.add("varlen_heads_first_rows", {.batch = 5,
                                        .layout_q = Layout::kHeadsFirst,
                                        .layout_k = Layout::kHeadsFirst,
                                        .layout_v = Layout::kPadded,
                                        .layout_o = Layout::kHeadsFirst,
                                        .layout_gradients = Layout::kHeadsFirst,
                                        .packed_q = q,
                                        .packed_k = k});
  table.add("varlen_only_q", {.batch = 5, .len_k = 30, .packed_q = q});
  table.add("varlen_only_k", {.batch = 5, .len_q = 14, .packed_k = k});
  table.add("varlen_mask_bias", {.batch = 5,
                                 .has_mask = true,
                                 .bias_dtype = MICA_FP32,
                                 .packed_q = q,
                                 .packed_k = k,
                                 .gradients = kGradQkv | kGradBias});
  table.add("varlen_short_mask", {.batch = 5, .has_mask = true, .packed_q = q, .packed_k = k, .pair_shape_cut = 6});
  table.add("varlen_short_bias", {.batch = 5,
                                  .bias_dtype = MICA_FP32,
                                  .bias_axes = kAxisHead | kAxisQuery | kAxisKey,
                                  .packed_q = q,
                                  .packed_k = k,
                                  .pair_shape_cut = 6,
                                  .gradients = kGradQkv | kGradBias});
  table.add("varlen_sinks_alibi", {.batch = 5,
                                   .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT,
                                   .has_alibi = true,
                                   .alibi_per_batch = true,
                                   .sinks_dtype = MICA_FP32,
                                   .packed_q = q,
                                   .packed_k = k,
                                   .gradients = kGradQkv | kGradSinks,
                                   .has_d_lse = true});
  table.add("seqused_q", {.batch = 3, .used_q = {33, 0, 12}});
  table.add("seqused_k", {.batch = 3, .used_k = {47, 0, 13}});
  table.add("seqused_both_causal",
            {.batch = 3, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .used_q = {20, 33, 1}, .used_k = {10, 47, 30}});
  table.add("seqused_q_sinks", {.batch = 3,
                                .sinks_dtype = MICA_FP32,
                                .used_q = {33, 0, 12},
                                .gradients = kGradQkv | kGradSinks,
                                .has_d_lse = true});
  table.add("seqused_varlen", {.batch = 5,
                               .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                               .packed_q = q,
                               .packed_k = k,
                               .used_q = {3, 0, 30, 0, 20},
                               .used_k = {9, 7, 0, 1, 40}});
  table.add("seqused_bias", {.batch = 3,
                             .bias_dtype = MICA_FP32,
                             .used_q = {20, 33, 1},
                             .used_k = {10, 47, 30},
                             .gradients = kGradQkv | kGradBias});
}

void add_cache_cases(CaseTable& table) {
  const std::vector<int32_t> used = {61, 3, 0, 40};
  table.add("cache_decode", {.batch = 4, .heads_q = 4, .len_q = 1, .len_k = 64, .dim = 64, .used_k = used});
  table.add("cache_batch_idx", {.batch = 4, .len_q = 3, .len_k = 64, .has_batch_idx = true});
  table.add("cache_batch_idx_causal", {.batch = 4,
                                       .heads_q = 8,
                                       .len_q = 5,
                                       .len_k = 64,
                                       .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                       .used_k = used,
                                       .has_batch_idx = true});
  table.add("cache_leftpad", {.batch = 4, .len_q = 5, .len_k = 64, .used_k = used, .leftpad = {7, 3, 0, 39}});
  table.add("cache_leftpad_dense", {.batch = 2, .len_k = 64, .leftpad = {7, 0}});
  table.add("cache_leftpad_causal", {.batch = 4,
                                     .len_q = 5,
                                     .len_k = 64,
                                     .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                     .used_k = used,
                                     .leftpad = {7, 1, 0, 39}});
  for (const int64_t page_size : {1, 3, 16, 256}) {
    const std::string name = "paged_" + std::to_string(page_size);
    table.add(name, {.batch = 4, .len_q = 5, .len_k = 64, .used_k = used, .page_size = page_size});
    table.add(name + "_full", {.batch = 2, .len_q = 33, .len_k = 64, .dim = 64, .page_size = page_size});
    table.add(name + "_decode", {.batch = 4,
                                 .heads_q = 8,
                                 .len_q = 1,
                                 .len_k = 64,
                                 .dim = 128,
                                 .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                 .used_k = used,
                                 .page_size = page_size});
    table.add(name + "_leftpad_window", {.batch = 4,
                                         .len_q = 5,
                                         .len_k = 64,
                                         .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT,
                                         .window_left = 20,
                                         .window_right = 1,
                                         .used_k = used,
                                         .leftpad = {7, 1, 0, 39},
                                         .page_size = page_size});
    table.add(name + "_varlen", {.batch = 4,
                                 .len_k = 64,
                                 .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                 .packed_q = {7, 1, 0, 30},
                                 .used_k = used,
                                 .page_size = page_size});
    table.add(name + "_cu_seqlens_k",
              {.batch = 4, .len_k = 64, .packed_q = {7, 1, 0, 30}, .packed_k = used, .page_size = page_size});
  }
  table.add("paged_mla", {.batch = 2,
                          .heads_q = 16,
                          .heads_k = 1,
                          .len_q = 1,
                          .len_k = 80,
                          .dim = 576,
                          .dim_v = 512,
                          .used_k = {75, 31},
                          .page_size = 16});
  table.add("paged_without_pages",
            {.batch = 2, .heads_q = 4, .heads_k = 2, .len_q = 150, .len_k = 0, .dim = 80, .page_size = 24});
  table.add("paged_heads_first", {.batch = 4,
                                  .len_q = 5,
                                  .len_k = 64,
                                  .layout_k = Layout::kHeadsFirst,
                                  .layout_v = Layout::kPadded,
                                  .used_k = used,
                                  .page_size = 16});
  table.add(
      "paged_short_mask",
      {.batch = 4, .len_q = 5, .len_k = 64, .has_mask = true, .used_k = used, .page_size = 16, .pair_shape_cut = 9});
}

void add_append_cases(CaseTable& table) {
  const Options base = {
      .batch = 3, .heads_q = 4, .len_q = 4, .len_k = 64, .dim = 64, .used_k = {50, 0, 17}, .len_new = 4};
  const auto with = [&table, &base](const char* name, auto change) {
    Options o = base;
    change(o);
    table.add(std::string("append") + name, o);
  };
  with("", [](Options&) {});
  with("_causal", [](Options& o) { o.causal = MICA_CAUSAL_BOTTOM_RIGHT; });
  with("_no_queries", [](Options& o) { o.len_q = 0; });
  with("_rows_not_in_use", [](Options& o) { o.used_q = {0, 4, 2}; });
  with("_one", [](Options& o) { o.len_q = 1, o.len_new = 1; });
  with("_to_the_end", [](Options& o) { o.used_k = {60, 60, 60}; });
  with("_fewer_queries", [](Options& o) { o.len_q = 2, o.len_new = 9, o.causal = MICA_CAUSAL_BOTTOM_RIGHT; });
  with("_more_queries", [](Options& o) { o.len_q = 11, o.len_new = 2, o.causal = MICA_CAUSAL_BOTTOM_RIGHT; });
  with("_batch_idx", [](Options& o) { o.has_batch_idx = true; });
  with("_leftpad", [](Options& o) { o.leftpad = {3, 0, 17}; });
  with("_layout", [](Options& o) {
    o.layout_q = Layout::kNegative, o.layout_k = Layout::kHeadsFirst, o.layout_v = Layout::kPadded;
  });
  for (const int64_t page_size : {1, 3, 16, 256})
    with(("_paged_" + std::to_string(page_size)).c_str(), [page_size](Options& o) { o.page_size = page_size; });
  with("_varlen_q", [](Options& o) { o.packed_q = {4, 0, 7}, o.causal = MICA_CAUSAL_BOTTOM_RIGHT; });
  for (const int32_t interleaved : {0, 1})
    for (const int64_t rotary_dim : {2, 16, 64}) {
      const std::string name = (interleaved ? "_rotary_interleaved_" : "_rotary_half_") + std::to_string(rotary_dim);
      with(name.c_str(), [&](Options& o) { o.rotary_dim = rotary_dim, o.rotary_interleaved = interleaved; });
      with((name + "_causal").c_str(), [&](Options& o) {
        o.rotary_dim = rotary_dim, o.rotary_interleaved = interleaved;
        o.causal = MICA_CAUSAL_BOTTOM_RIGHT;
        o.rotary_dtype = MICA_FP32;
      });
    }
  with("_rotary_odd_dim", [](Options& o) { o.dim = 59, o.rotary_dim = 34; });
  with("_rotary_paged", [](Options& o) { o.rotary_dim = 32, o.page_size = 16, o.causal = MICA_CAUSAL_BOTTOM_RIGHT; });
  with("_rotary_window_leftpad", [](Options& o) {
    o.rotary_dim = 32, o.rotary_interleaved = 1, o.leftpad = {3, 0, 17};
    o.diagonal = MICA_DIAGONAL_BOTTOM_RIGHT, o.window_left = 12;
  });
  with("_rotary_past_the_table", [](Options& o) {
    o.len_q = 9, o.len_new = 2, o.used_k = {62, 61, 17}, o.rotary_dim = 32, o.causal = MICA_CAUSAL_BOTTOM_RIGHT;
  });
  // Rotary tables in the element type itself.
  for (const int32_t dtype : {MICA_FP16, MICA_BF16}) {
    Options o = base;
    o.dtype = o.rotary_dtype = dtype;
    o.rotary_dim = 64;
    table.add_one(std::string("append_rotary_table_") + (dtype == MICA_FP16 ? "fp16" : "bf16"), o);
  }
}

void add_dropout_cases(CaseTable& table) {
  for (const float p : {0.1f, 0.5f, 0.97f}) {
    const std::string name = "dropout_" + std::to_string(std::lround(100 * p));
    table.add(name, {.dropout = p});
    table.add(name + "_causal",
              {.heads_q = 4, .len_q = 70, .len_k = 90, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .dropout = p});
  }
  table.add("dropout_from_memory", {.dropout = 0.3f, .rng_from_memory = true});
  table.add("dropout_wide_offset",
            {.dropout = 0.3f, .rng_seed = 0xfedcba9876543210u, .rng_offset = 0x8000000300000005u});
  table.add(
      "dropout_wide_offset_from_memory",
      {.dropout = 0.3f, .rng_from_memory = true, .rng_seed = 0xfedcba9876543210u, .rng_offset = 0x8000000300000005u});
  table.add("dropout_varlen", {.batch = 4, .packed_q = {5, 0, 33, 20}, .packed_k = {9, 12, 40, 51}, .dropout = 0.2f});
  table.add(
      "dropout_seqused_leftpad",
      {.batch = 3, .len_k = 64, .used_q = {33, 10, 5}, .used_k = {60, 20, 3}, .leftpad = {7, 1, 0}, .dropout = 0.2f});
  table.add("dropout_sinks_softcap", {.softcap = 5.0f,
                                      .sinks_dtype = MICA_FP32,
                                      .dropout = 0.2f,
                                      .gradients = kGradQkv | kGradSinks,
                                      .has_d_lse = true});
  table.add("dropout_window", {.len_q = 100,
                               .len_k = 160,
                               .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT,
                               .window_left = 40,
                               .window_right = 20,
                               .dropout = 0.25f});
}

// Pieces of larger calls: the diagonal beside the corner, and the random bits of another place.
void add_place_cases(CaseTable& table) {
  for (const int64_t shift : {-30, -1, 5, 40, 200}) {
    const std::string name = (shift < 0 ? "place_back_" : "place_ahead_") + std::to_string(shift < 0 ? -shift : shift);
    const mica_place at = {.shift = shift};
    table.add(name + "_causal", {.len_q = 70, .len_k = 90, .causal = MICA_CAUSAL_TOP_LEFT, .place = at});
    table.add(name + "_causal_bottom_right", {.causal = MICA_CAUSAL_BOTTOM_RIGHT, .place = at});
    table.add(name + "_window", {.len_q = 100,
                                 .len_k = 160,
                                 .diagonal = MICA_DIAGONAL_TOP_LEFT,
                                 .window_left = 30,
                                 .window_right = 20,
                                 .place = at});
    table.add(name + "_alibi", {.diagonal = MICA_DIAGONAL_TOP_LEFT, .has_alibi = true, .place = at});
    table.add(name + "_alibi_causal", {.causal = MICA_CAUSAL_TOP_LEFT, .has_alibi = true, .place = at});
  }
  table.add("place_dropout",
            {.heads_q = 4,
             .len_q = 70,
             .len_k = 90,
             .dropout = 0.3f,
             .place = {.row_first = 48, .key_first = 96, .batch_first = 3, .head_first = 4, .heads = 12}});
  table.add("place_dropout_odd", {.len_q = 70,
                                  .len_k = 90,
                                  .dropout = 0.3f,
                                  .place = {.row_first = 13, .key_first = 75, .head_first = 1, .heads = 3}});
  table.add("place_dropout_steps",
            {.causal = MICA_CAUSAL_TOP_LEFT,
             .dropout = 0.3f,
             .place = {.shift = -1, .row_first = 1, .row_step = 4, .key_first = 2, .key_step = 4}});
}

void add_control_cases(CaseTable& table) {
  for (const int32_t splits : {1, 3, 7}) {
    const std::string name = "splits_" + std::to_string(splits);
    table.add(name, {.num_splits = splits});
    table.add(name + "_decode", {.batch = 1, .heads_q = 8, .len_q = 1, .len_k = 700, .dim = 64, .num_splits = splits});
    table.add(name + "_causal_sinks", {.len_q = 40,
                                       .len_k = 300,
                                       .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                       .sinks_dtype = MICA_FP32,
                                       .num_splits = splits,
                                       .gradients = kGradQkv | kGradSinks});
    table.add(name + "_paged",
              {.batch = 3, .len_q = 2, .len_k = 300, .used_k = {300, 0, 65}, .page_size = 16, .num_splits = splits});
    table.add(name + "_window",
              {.len_q = 3, .len_k = 500, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .window_left = 130, .num_splits = splits});
    table.add(name + "_append_rotary", {.batch = 2,
                                        .heads_q = 4,
                                        .len_q = 3,
                                        .len_k = 300,
                                        .used_k = {290, 130},
                                        .len_new = 3,
                                        .rotary_dim = 16,
                                        .num_splits = splits});
    table.add(name + "_dropout", {.len_q = 20, .len_k = 300, .dropout = 0.3f, .num_splits = splits});
  }
  // More splits than a warp has lanes, and more than four times as many.
  for (const int32_t splits : {40, 140})
    table.add("splits_" + std::to_string(splits),
              {.batch = 1, .heads_q = 1, .heads_k = 1, .len_q = 2, .len_k = 9000, .dim = 64, .num_splits = splits});
  table.add("splits_many_more_than_keys", {.len_q = 3, .len_k = 10, .num_splits = 64});
  table.add("deterministic", {.heads_q = 4, .len_q = 150, .len_k = 130, .deterministic = 1});
  table.add("batch_invariant", {.heads_q = 4, .len_q = 150, .len_k = 130, .batch_invariant = 1});
  table.add("batch_invariant_decode",
            {.batch = 3, .heads_q = 4, .len_q = 1, .len_k = 600, .used_k = {600, 3, 200}, .batch_invariant = 1});
  table.add("deterministic_bias", {.heads_q = 4,
                                   .bias_dtype = MICA_FP32,
                                   .bias_axes = kAxisQuery | kAxisKey,
                                   .deterministic = 1,
                                   .gradients = kGradQkv | kGradBias});
  table.add("o_fp32", {.o_fp32 = true});
  table.add("o_fp32_decode", {.heads_q = 4, .len_q = 1, .len_k = 300, .o_fp32 = true});
  table.add_one("without_lse_fp32", {.want_lse = false});
  table.add_one("without_lse_bf16", {.dtype = MICA_BF16, .want_lse = false});
  table.add_one("without_lse_decode_bf16", {.dtype = MICA_BF16, .len_q = 1, .len_k = 400, .want_lse = false});
}

void add_gradient_cases(CaseTable& table) {
  // Every combination of gradients asked for.
  for (uint32_t wanted = 1; wanted < 32; ++wanted) {
    Options o = {.len_q = 19,
                 .len_k = 26,
                 .bias_dtype = MICA_FP32,
                 .bias_axes = kAxisHead | kAxisKey,
                 .sinks_dtype = MICA_FP32,
                 .gradients = wanted};
    o.dtype = wanted % 3 == 0 ? MICA_FP32 : (wanted % 3 == 1 ? MICA_BF16 : MICA_FP16);
    o.has_d_lse = wanted % 2 == 1;
    table.add_one("gradients_" + std::to_string(wanted), o);
  }
  table.add("d_lse", {.has_d_lse = true});
  table.add("d_lse_causal_softcap",
            {.len_q = 60, .len_k = 45, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .softcap = 4.0f, .has_d_lse = true});
  table.add("gradients_in_fp32", {.gradients_fp32 = true});
  table.add("d_o_in_fp32", {.o_fp32 = true, .d_o_fp32 = true});
  table.add("gradients_gqa_causal",
            {.heads_q = 8, .heads_k = 2, .len_q = 70, .len_k = 90, .dim = 64, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
}

void add_combined_cases(CaseTable& table) {
  table.add("everything_training", {.batch = 4,
                                    .heads_q = 6,
                                    .heads_k = 2,
                                    .dim = 72,
                                    .dim_v = 40,
                                    .layout_q = Layout::kHeadsFirst,
                                    .layout_k = Layout::kPadded,
                                    .layout_v = Layout::kNegative,
                                    .layout_o = Layout::kPadded,
                                    .layout_gradients = Layout::kHeadsFirst,
                                    .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                    .window_left = 30,
                                    .has_mask = true,
                                    .mask_axes = kAxisBatch | kAxisQuery | kAxisKey,
                                    .mask_density = 0.9,
                                    .scale = 0.2f,
                                    .softcap = 6.0f,
                                    .has_alibi = true,
                                    .alibi_per_batch = true,
                                    .bias_dtype = MICA_BF16,
                                    .bias_axes = kAxisHead | kAxisQuery | kAxisKey,
                                    .bias_has_minus_infinity = true,
                                    .sinks_dtype = MICA_BF16,
                                    .packed_q = {33, 0, 17, 60},
                                    .packed_k = {40, 5, 17, 55},
                                    .used_q = {30, 0, 17, 60},
                                    .used_k = {40, 5, 12, 50},
                                    .leftpad = {3, 0, 1, 0},
                                    .dropout = 0.15f,
                                    .rng_from_memory = true,
                                    .deterministic = 1,
                                    .gradients = kGradQkv | kGradBias | kGradSinks,
                                    .has_d_lse = true});
  table.add("everything_inference", {.batch = 3,
                                     .heads_q = 8,
                                     .heads_k = 2,
                                     .len_q = 5,
                                     .len_k = 96,
                                     .dim = 80,
                                     .dim_v = 64,
                                     .layout_k = Layout::kHeadsFirst,
                                     .layout_v = Layout::kPadded,
                                     .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                     .window_left = 50,
                                     .softcap = 10.0f,
                                     .has_alibi = true,
                                     .bias_dtype = MICA_FP32,
                                     .sinks_dtype = MICA_FP32,
                                     .packed_q = {5, 1, 3},
                                     .used_k = {80, 0, 33},
                                     .leftpad = {4, 0, 9},
                                     .page_size = 16,
                                     .pair_shape_cut = 4,
                                     .len_new = 5,
                                     .rotary_dim = 40,
                                     .rotary_interleaved = 1,
                                     .batch_invariant = 1});
}

}  // namespace mica::conformance
