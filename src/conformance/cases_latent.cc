// SPDX-License-Identifier: Apache-2.0
// Named cases of latent attention (MLA) as it decodes: one key head for many query heads, and V a part of K, or beside
// it with a query of its own.
#include "conformance/cases.h"
#include "conformance/numbers.h"

namespace mica::conformance {
namespace {

// Of few rows of many heads on one cache: its pages, lengths and masks. add(name, options).
template <class Add>
void add_caches(const Add& add) {
  for (const int64_t page_size : {1, 16, 64, 128})
    add("paged_" + std::to_string(page_size), {.batch = 4,
                                               .heads_q = 16,
                                               .len_q = 2,
                                               .len_k = 256,
                                               .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                               .used_k = {197, 64, 1, 0},
                                               .page_size = page_size});
  add("paged_64_leftpad",
      {.batch = 2, .heads_q = 16, .len_q = 1, .len_k = 256, .used_k = {250, 70}, .leftpad = {9, 65}, .page_size = 64});
  add("batch_idx", {.batch = 2, .heads_q = 16, .len_q = 1, .len_k = 140, .used_k = {90, 140}, .has_batch_idx = true});
  add("varlen",
      {.batch = 3, .heads_q = 16, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .packed_q = {5, 0, 2}, .packed_k = {90, 12, 70}});
  add("rows_not_in_use", {.batch = 2, .heads_q = 16, .len_q = 3, .len_k = 90, .used_q = {2, 0}, .used_k = {90, 40}});
  add("window", {.batch = 1,
                 .heads_q = 16,
                 .len_q = 3,
                 .len_k = 400,
                 .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT,
                 .window_left = 100,
                 .window_right = 0});
  add("sinks", {.batch = 1, .heads_q = 16, .len_q = 1, .len_k = 100, .sinks_dtype = MICA_FP32});
  add("softcap", {.batch = 1, .heads_q = 16, .len_q = 2, .len_k = 150, .softcap = 5});
  add("softcap_paged_16_large_scores", {.batch = 2,
                                        .heads_q = 64,
                                        .len_q = 3,
                                        .len_k = 320,
                                        .amplitude = 4.0,
                                        .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                        .softcap = 20,
                                        .used_k = {320, 131},
                                        .page_size = 16,
                                        .num_splits = 2});
  add("splits_3", {.batch = 2, .heads_q = 16, .len_q = 1, .len_k = 500, .used_k = {500, 65}, .num_splits = 3});
  add("batch_invariant", {.batch = 1, .heads_q = 16, .len_q = 1, .len_k = 300, .batch_invariant = 1});
}

}  // namespace

void add_latent_cases(CaseTable& table) {
  // No gradients: this is decoding.
  const auto add = [&table](const std::string& name, Options o) {
    o.heads_k = 1;
    if (!o.dim_v) o.dim = 576, o.dim_v = 512;
    o.alignment = 16;
    for (const int32_t dtype : {MICA_FP32, MICA_FP16, MICA_BF16}) {
      o.dtype = dtype;
      table.add_one("latent_" + name + "_" + dtype_name(dtype), o);
    }
  };
  const auto in_k = [&add](const std::string& name, Options o) {
    o.place_of_v = PlaceOfV::kInK;
    add(name, o);
  };
  for (const int64_t heads : {16, 64, 128})
    in_k(std::to_string(heads) + "_heads",
         {.batch = 2, .heads_q = heads, .len_q = 1, .len_k = 200, .used_k = {200, 77}});
  for (const int64_t rows : {1, 2, 3, 4})
    in_k(std::to_string(rows) + "_rows",
         {.batch = 1, .heads_q = 16, .len_q = rows, .len_k = 150, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
  in_k("128_heads_3_rows",
       {.batch = 1, .heads_q = 128, .len_q = 3, .len_k = 130, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .used_k = {129}});
  in_k("20_heads_5_rows",
       {.batch = 2, .heads_q = 20, .len_q = 5, .len_k = 70, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .used_k = {3, 65}});
  in_k("96_heads", {.batch = 1, .heads_q = 96, .len_q = 1, .len_k = 65});
  add_caches(in_k);
  in_k("large_scores", {.batch = 1, .heads_q = 32, .len_q = 2, .len_k = 500, .amplitude = 4.0});
  in_k("narrower", {.batch = 1, .heads_q = 16, .len_q = 1, .len_k = 100, .dim = 320, .dim_v = 256});
  in_k("second_panel", {.batch = 1, .heads_q = 16, .len_q = 2, .len_k = 150, .v_column = 64});
  in_k("odd_column", {.batch = 1, .heads_q = 16, .len_q = 2, .len_k = 150, .v_column = 8});
  add("apart", {.batch = 1, .heads_q = 16, .len_q = 2, .len_k = 150, .place_of_v = PlaceOfV::kLikeK});
  add("apart_batch_invariant",
      {.batch = 1, .heads_q = 16, .len_q = 1, .len_k = 300, .place_of_v = PlaceOfV::kLikeK, .batch_invariant = 1});
}

void add_second_query_cases(CaseTable& table) {
  const auto add = [&table](const std::string& name, Options o) {
    o.has_qv = true;
    table.add("qv_" + name, o);
  };
  // As the copy engine takes it: MLA's dimensions, 16 bytes of alignment.
  const auto latent = [&add](const std::string& name, Options o) {
    if (!o.dim_v) o.dim = 64, o.dim_v = 512;
    o.heads_k = 1;
    o.alignment = 16;
    add("latent_" + name, o);
  };
  for (const int64_t heads : {16, 128})
    latent(std::to_string(heads) + "_heads",
           {.batch = 2, .heads_q = heads, .len_q = 1, .len_k = 200, .used_k = {200, 77}});
  latent("3_rows",
         {.batch = 1, .heads_q = 16, .len_q = 3, .len_k = 150, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .used_k = {149}});
  latent("prompt", {.batch = 1, .heads_q = 3, .len_q = 70, .len_k = 200, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
  add_caches(latent);
  latent("chunk",
         {.batch = 1, .heads_q = 16, .len_q = 5, .len_k = 200, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .chunk = 70});
  latent("fp32_output", {.batch = 1, .heads_q = 16, .len_q = 2, .len_k = 150, .o_fp32 = true});
  latent("scale", {.batch = 1, .heads_q = 32, .len_q = 2, .len_k = 500, .amplitude = 4.0, .scale = 0.07f});
  latent("narrower", {.batch = 1, .heads_q = 16, .len_q = 2, .len_k = 100, .dim = 48, .dim_v = 200});
  latent("64_256", {.batch = 2, .heads_q = 6, .len_q = 9, .len_k = 130, .dim = 64, .dim_v = 256});
  latent("v_like_k_strides", {.batch = 1,
                              .heads_q = 16,
                              .len_q = 1,
                              .len_k = 140,
                              .layout_q = Layout::kHeadsFirst,
                              .layout_k = Layout::kPadded,
                              .layout_v = Layout::kHeadsFirst});
  latent("append_rotary", {.batch = 2,
                           .heads_q = 16,
                           .len_q = 2,
                           .len_k = 140,
                           .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                           .used_k = {70, 0},
                           .len_new = 2,
                           .rotary_dim = 64});
  // As any dimensions and options come.
  add("dense", {.dim_v = 48});
  add("grouped", {.heads_q = 6, .len_q = 5, .len_k = 90, .dim = 40, .dim_v = 24, .causal = MICA_CAUSAL_TOP_LEFT});
  add("odd", {.len_q = 7, .len_k = 60, .dim = 15, .dim_v = 17});
  add("wide_q", {.batch = 1, .len_q = 20, .len_k = 60, .dim = 300, .dim_v = 200, .alignment = 16});
  add("no_keys", {.len_q = 3, .len_k = 0});
  add("strides", {.len_q = 4,
                  .len_k = 30,
                  .dim = 24,
                  .dim_v = 40,
                  .layout_q = Layout::kPadded,
                  .layout_k = Layout::kNegative,
                  .layout_v = Layout::kSharedHead,
                  .layout_o = Layout::kPadded});
  add("every_option", {.heads_q = 4,
                       .len_q = 9,
                       .len_k = 80,
                       .dim = 16,
                       .dim_v = 32,
                       .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                       .window_left = 60,
                       .has_mask = true,
                       .softcap = 5,
                       .has_alibi = true,
                       .bias_dtype = MICA_FP32,
                       .sinks_dtype = MICA_FP32});
  add("pages_append_rotary", {.batch = 3,
                              .heads_q = 4,
                              .len_q = 2,
                              .len_k = 64,
                              .dim = 24,
                              .dim_v = 40,
                              .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                              .used_k = {30, 5, 0},
                              .page_size = 7,
                              .len_new = 2,
                              .rotary_dim = 16,
                              .rotary_interleaved = 1});
}

}  // namespace mica::conformance
