// SPDX-License-Identifier: Apache-2.0
// Named cases about the dense problem: shapes, layouts, masks, scores.
#include "conformance/cases.h"

#include "conformance/numbers.h"

namespace mica::conformance {

void CaseTable::add_one(const std::string& name, Options options) {
  options.name = name;
  options_.push_back(std::move(options));
}

void CaseTable::add_typed(const std::string& name, Options o, int32_t dtype) {
  o.dtype = dtype;
  if (o.gradients == kNoGradients && has_gradients(o)) o.gradients = kGradQkv;
  if (dtype == MICA_FP32 && o.num_splits <= 1 && o.len_prefix == 0 && !o.has_qv) o.want_probs = true;
  add_one(name + "_" + dtype_name(dtype), o);
}

void CaseTable::add(const std::string& name, const Options& options) {
  add_typed(name, options, MICA_FP32);
  add_16_bit(name, options);
}

void CaseTable::add_16_bit(const std::string& name, const Options& options) {
  add_typed(name, options, MICA_FP16);
  add_typed(name, options, MICA_BF16);
}

bool has_gradients(const Options& o) {
  return o.page_size == 0 && !o.has_batch_idx && o.len_new == 0 && o.mask_last_keys == 0 && o.len_prefix == 0 &&
         !o.has_qv;
}

void add_shape_cases(CaseTable& table) {
  table.add("plain", {});
  const struct {
    const char* name;
    int64_t batch, len_q, len_k;
  } lengths[] = {{"one_by_one", 2, 1, 1},
                 {"no_queries", 2, 0, 20},
                 {"no_keys", 2, 20, 0},
                 {"nothing", 2, 0, 0},
                 {"no_batch", 0, 5, 5},
                 {"one_query", 2, 1, 77},
                 {"one_key", 2, 77, 1},
                 {"odd", 1, 101, 67},
                 {"long_keys", 1, 5, 501},
                 {"long_queries", 1, 301, 5},
                 {"powers_of_two", 1, 128, 128},
                 {"just_over_tiles", 1, 129, 257},
                 {"just_under_tiles", 1, 127, 255},
                 {"three_queries", 3, 3, 200},
                 {"many_batches", 9, 7, 11}};
  for (const auto& s : lengths)
    table.add(std::string("shape_") + s.name, {.batch = s.batch, .len_q = s.len_q, .len_k = s.len_k});
  const struct {
    int64_t dim, dim_v;
  } dims[] = {{1, 1},    {2, 3},     {8, 8},     {15, 17},   {16, 16},   {40, 40},   {59, 59},   {64, 64},
              {72, 64},  {80, 80},   {96, 96},   {111, 111}, {128, 128}, {192, 128}, {160, 160}, {256, 256},
              {64, 256}, {512, 512}, {576, 512}, {32, 1},    {1, 32},    {128, 96}};
  for (const auto& d : dims) {
    const std::string name = "dim_" + std::to_string(d.dim) + "_" + std::to_string(d.dim_v);
    table.add(name, {.batch = 1, .len_q = 21, .len_k = 70, .dim = d.dim, .dim_v = d.dim_v});
    if (d.dim >= 64 && d.dim <= 256)
      table.add(name + "_causal", {.batch = 1,
                                   .heads_q = 1,
                                   .heads_k = 1,
                                   .len_q = 90,
                                   .len_k = 130,
                                   .dim = d.dim,
                                   .dim_v = d.dim_v,
                                   .causal = MICA_CAUSAL_BOTTOM_RIGHT});
  }
  const struct { int64_t q, k; } heads[] = {{1, 1}, {3, 3}, {4, 2}, {6, 2}, {8, 1}, {12, 4}, {5, 1}, {16, 1}};
  for (const auto& h : heads) {
    const std::string name = "heads_" + std::to_string(h.q) + "_" + std::to_string(h.k);
    table.add(name, {.batch = 1, .heads_q = h.q, .heads_k = h.k, .dim = 40});
    table.add(name + "_one_query", {.heads_q = h.q, .heads_k = h.k, .len_q = 1, .len_k = 130, .dim = 64});
  }
  table.add("heads_32_8_decode", {.batch = 1, .heads_q = 32, .heads_k = 8, .len_q = 1, .len_k = 300, .dim = 128});
  table.add("heads_16_1_mla_decode",
            {.batch = 1, .heads_q = 16, .heads_k = 1, .len_q = 2, .len_k = 150, .dim = 576, .dim_v = 512});
  table.add("heads_64_1_decode", {.batch = 2, .heads_q = 64, .heads_k = 1, .len_q = 1, .len_k = 90, .dim = 64});
  table.add("heads_20_1_three_queries",
            {.batch = 2, .heads_q = 20, .heads_k = 1, .len_q = 3, .len_k = 90, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
  table.add("long_causal",
            {.batch = 1, .heads_q = 1, .heads_k = 1, .len_q = 515, .len_k = 777, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
  table.add("large_scores", {.amplitude = 6});
  table.add("huge_scores_causal", {.amplitude = 40, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
  table.add("tiny_scores", {.amplitude = 1e-3});
}

void add_layout_cases(CaseTable& table) {
  const struct {
    const char* name;
    Layout input, output;
  } layouts[] = {{"heads_first", Layout::kHeadsFirst, Layout::kHeadsFirst},
                 {"padded", Layout::kPadded, Layout::kPadded},
                 {"negative", Layout::kNegative, Layout::kPadded},
                 {"negative_output", Layout::kRowsFirst, Layout::kNegative},
                 {"shared_head", Layout::kSharedHead, Layout::kHeadsFirst},
                 {"shared_batch", Layout::kSharedBatch, Layout::kRowsFirst}};
  for (const auto& l : layouts)
    for (const int64_t dim : {33, 64})
      table.add(std::string("layout_") + l.name + "_" + std::to_string(dim), {.dim = dim,
                                                                              .layout_q = l.input,
                                                                              .layout_k = l.input,
                                                                              .layout_v = l.input,
                                                                              .layout_o = l.output,
                                                                              .layout_gradients = l.output,
                                                                              .causal = MICA_CAUSAL_BOTTOM_RIGHT});
  // What surrounds q, k and v need not even be dense in its last dimension.
  const struct {
    const char* name;
    Layout score, rows;
  } around[] = {{"heads_first", Layout::kHeadsFirst, Layout::kHeadsFirst},
                {"padded", Layout::kPadded, Layout::kPadded},
                {"negative", Layout::kNegative, Layout::kNegative},
                {"spread", Layout::kSpread, Layout::kSpread},
                {"shared_rows", Layout::kSharedHead, Layout::kRowsFirst}};
  for (const auto& l : around) {
    Options o = {.heads_q = 4,
                 .layout_score = l.score,
                 .layout_rows = l.rows,
                 .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                 .has_mask = true,
                 .has_alibi = true,
                 .alibi_per_batch = true,
                 .bias_dtype = MICA_FP32,
                 .sinks_dtype = MICA_BF16,
                 .gradients = kGradQkv | kGradBias | kGradSinks,
                 .has_d_lse = true};
    table.add(std::string("layout_around_") + l.name, o);
    o.bias_dtype = MICA_FP16, o.mask_axes = kAxisBatch | kAxisKey, o.bias_axes = kAxisHead | kAxisQuery;
    table.add(std::string("layout_around_") + l.name + "_broadcast", o);
    // A block table and rotary tables with such strides.
    table.add(std::string("layout_tables_") + l.name,
              {.batch = 3,
               .len_q = 4,
               .len_k = 64,
               .layout_score = l.score == Layout::kSharedHead ? Layout::kRowsFirst : l.score,
               .layout_rows = l.rows,
               .causal = MICA_CAUSAL_BOTTOM_RIGHT,
               .used_k = {50, 0, 17},
               .page_size = 16,
               .len_new = 4,
               .rotary_dim = 16});
  }
  table.add("layout_mixed", {.heads_q = 4,
                             .layout_q = Layout::kHeadsFirst,
                             .layout_k = Layout::kPadded,
                             .layout_v = Layout::kNegative,
                             .layout_o = Layout::kHeadsFirst,
                             .layout_gradients = Layout::kPadded});
  table.add("aligned_padded", {.dim = 64,
                               .layout_q = Layout::kPadded,
                               .layout_k = Layout::kPadded,
                               .layout_v = Layout::kPadded,
                               .layout_o = Layout::kPadded,
                               .alignment = 16});
}

void add_mask_cases(CaseTable& table) {
  const struct { int64_t q, k; } lengths[] = {{33, 47}, {47, 33}, {40, 40}, {1, 50}, {130, 70}};
  for (const auto& s : lengths) {
    const std::string size = "_" + std::to_string(s.q) + "_" + std::to_string(s.k);
    table.add("causal_bottom_right" + size, {.len_q = s.q, .len_k = s.k, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
    table.add("causal_top_left" + size, {.len_q = s.q, .len_k = s.k, .causal = MICA_CAUSAL_TOP_LEFT});
  }
  const struct {
    const char* name;
    int32_t causal, diagonal;
    int64_t left, right;
  } windows[] = {{"zero", 0, MICA_DIAGONAL_BOTTOM_RIGHT, 0, 0},
                 {"zero_top_left", 0, MICA_DIAGONAL_TOP_LEFT, 0, 0},
                 {"left_only", 0, MICA_DIAGONAL_BOTTOM_RIGHT, 7, MICA_UNLIMITED},
                 {"right_only", 0, MICA_DIAGONAL_BOTTOM_RIGHT, MICA_UNLIMITED, 5},
                 {"right_only_top_left", 0, MICA_DIAGONAL_TOP_LEFT, MICA_UNLIMITED, 5},
                 {"both", 0, MICA_DIAGONAL_BOTTOM_RIGHT, 9, 4},
                 {"both_top_left", 0, MICA_DIAGONAL_TOP_LEFT, 9, 4},
                 {"huge", 0, MICA_DIAGONAL_BOTTOM_RIGHT, int64_t{1} << 40, int64_t{1} << 62},
                 {"causal", MICA_CAUSAL_BOTTOM_RIGHT, 0, 8, MICA_UNLIMITED},
                 {"causal_zero", MICA_CAUSAL_BOTTOM_RIGHT, 0, 0, 0},
                 {"causal_top_left", MICA_CAUSAL_TOP_LEFT, MICA_DIAGONAL_TOP_LEFT, 8, 0}};
  for (const auto& w : windows) {
    Options o = {.causal = w.causal, .diagonal = w.diagonal, .window_left = w.left, .window_right = w.right};
    table.add(std::string("window_") + w.name, o);
    o.batch = 1, o.len_q = 150, o.len_k = 100;
    table.add(std::string("window_") + w.name + "_tall", o);
  }
  for (uint32_t axes = 0; axes <= kAllAxes; ++axes)
    table.add("mask_axes_" + std::to_string(axes), {.has_mask = true, .mask_axes = axes});
  table.add("mask_empty_rows", {.has_mask = true, .mask_empty_rows = true});
  table.add("mask_all_hidden", {.has_mask = true, .mask_density = 0.0});
  table.add("mask_all_visible", {.has_mask = true, .mask_density = 2.0});
  table.add("mask_sparse_causal",
            {.len_q = 70, .len_k = 140, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .has_mask = true, .mask_density = 0.03});
}

void add_score_cases(CaseTable& table) {
  table.add("scale_given", {.scale = 0.37f});
  table.add("scale_negative", {.scale = -0.2f});
  table.add("softcap", {.amplitude = 2, .softcap = 3.0f});
  table.add("softcap_tight_causal", {.amplitude = 3, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .softcap = 0.5f});
  table.add("softcap_wide", {.softcap = 50.0f});
  for (const bool per_batch : {false, true}) {
    const std::string name = per_batch ? "alibi_per_batch" : "alibi";
    table.add(name + "_bottom_right",
              {.diagonal = MICA_DIAGONAL_BOTTOM_RIGHT, .has_alibi = true, .alibi_per_batch = per_batch});
    table.add(name + "_top_left",
              {.diagonal = MICA_DIAGONAL_TOP_LEFT, .has_alibi = true, .alibi_per_batch = per_batch});
    table.add(name + "_causal", {.heads_q = 4,
                                 .len_q = 60,
                                 .len_k = 45,
                                 .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                 .has_alibi = true,
                                 .alibi_per_batch = per_batch});
  }
  for (uint32_t axes = 0; axes <= kAllAxes; ++axes)
    table.add("bias_axes_" + std::to_string(axes),
              {.heads_q = 4, .bias_dtype = MICA_FP32, .bias_axes = axes, .gradients = kGradQkv | kGradBias});
  table.add("bias_half", {.bias_dtype = MICA_FP16, .gradients = kGradQkv | kGradBias, .d_bias_dtype = MICA_FP16});
  table.add("bias_brain", {.bias_dtype = MICA_BF16, .gradients = kGradQkv | kGradBias, .d_bias_dtype = MICA_BF16});
  table.add("bias_minus_infinity",
            {.bias_dtype = MICA_FP32, .bias_has_minus_infinity = true, .gradients = kGradQkv | kGradBias});
  table.add("bias_minus_infinity_sinks", {.bias_dtype = MICA_BF16,
                                          .bias_has_minus_infinity = true,
                                          .sinks_dtype = MICA_FP32,
                                          .gradients = kGradQkv | kGradBias | kGradSinks});
  table.add("bias_alone_gradient", {.bias_dtype = MICA_FP32, .bias_axes = 6, .gradients = kGradBias});
  const struct {
    const char* name;
    int32_t dtype;
    double shift;
  } sinks[] = {{"fp32", MICA_FP32, 0},   {"bf16", MICA_BF16, 1},         {"fp16", MICA_FP16, -1},
               {"large", MICA_FP32, 60}, {"very_large", MICA_FP32, 1e4}, {"very_small", MICA_FP32, -1e4}};
  for (const auto& s : sinks) {
    Options o = {.heads_q = 4, .sinks_dtype = s.dtype, .sinks_shift = s.shift, .gradients = kGradQkv | kGradSinks};
    table.add(std::string("sinks_") + s.name, o);
    o.causal = MICA_CAUSAL_BOTTOM_RIGHT, o.len_q = 60, o.len_k = 40, o.has_d_lse = true;
    table.add(std::string("sinks_") + s.name + "_empty_rows", o);
  }
  table.add("sinks_no_keys",
            {.len_q = 9, .len_k = 0, .sinks_dtype = MICA_FP32, .gradients = kGradQkv | kGradSinks, .has_d_lse = true});
}

std::vector<Options> named_options() {
  CaseTable table;
  add_shape_cases(table);
  add_layout_cases(table);
  add_aligned_cases(table);
  add_mask_cases(table);
  add_chunk_cases(table);
  add_tree_cases(table);
  add_prefix_cases(table);
  add_score_cases(table);
  add_sequence_cases(table);
  add_cache_cases(table);
  add_append_cases(table);
  add_fp8_cases(table);
  add_latent_cases(table);
  add_second_query_cases(table);
  add_dropout_cases(table);
  add_place_cases(table);
  add_control_cases(table);
  add_gradient_cases(table);
  add_combined_cases(table);
  return table.take();
}

}  // namespace mica::conformance
