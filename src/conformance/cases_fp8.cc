// SPDX-License-Identifier: Apache-2.0
// Named cases of e4m3: all of q, k and v, and caches beside queries of 16 bits.
#include "conformance/cases.h"
#include "conformance/numbers.h"

namespace mica::conformance {
namespace {

const char* factors_name(Factors factors) {
  switch (factors) {
    case Factors::kNone: return "none";
    case Factors::kTensor: return "tensor";
    case Factors::kHead: return "head";
    case Factors::kSequence: return "sequence";
    case Factors::kPage: return "page";
  }
  return "";
}

void add_forward(CaseTable& table) {
  const auto add = [&table](const std::string& name, Options o) {
    o.fp8 = Fp8::kAll;
    for (const int32_t dtype : {MICA_BF16, MICA_FP16, MICA_FP32}) {
      if (dtype == MICA_FP32 && o.dim > 64) continue;
      o.dtype = dtype;
      o.want_probs = dtype == MICA_FP32 && o.num_splits <= 1;
      table.add_one("fp8_" + name + "_" + dtype_name(dtype), o);
    }
  };
  for (const Factors factors : {Factors::kNone, Factors::kTensor, Factors::kHead, Factors::kSequence})
    add(std::string("factors_") + factors_name(factors),
        {.factors = factors, .batch = 3, .heads_q = 4, .dim = 64, .alignment = 16});
  for (const int64_t dim : {8, 33, 64, 96, 128, 256})
    for (const int32_t causal : {MICA_CAUSAL_NONE, MICA_CAUSAL_BOTTOM_RIGHT, MICA_CAUSAL_TOP_LEFT})
      add("dim_" + std::to_string(dim) +
              (causal == 0   ? ""
               : causal == 1 ? "_causal"
                             : "_causal_top_left"),
          {.factors = Factors::kSequence,
           .batch = 1,
           .heads_q = 2,
           .heads_k = 1,
           .len_q = 140,
           .len_k = 270,
           .dim = dim,
           .alignment = dim % 16 ? 0 : 16,
           .causal = causal});
  for (const int64_t dim : {64, 256})
    add(dim == 64 ? "long" : "long_256", {.factors = Factors::kSequence,
                                          .batch = 1,
                                          .heads_q = 1,
                                          .heads_k = 1,
                                          .len_q = 200,
                                          .len_k = 1500,
                                          .dim = dim,
                                          .alignment = 16});
  // So many keys that O goes to sums outside of the registers twice (kFp8KeptTiles); with rising scores the maxima of
  // some rows have grown by more than a factor of 2^60 between, those of others by less.
  for (const bool rises : {false, true})
    add(rises ? "kept_256_rising" : "kept_256", {.factors = rises ? Factors::kNone : Factors::kSequence,
                                                 .batch = 1,
                                                 .heads_q = 2,
                                                 .heads_k = 1,
                                                 .len_q = 140,
                                                 .len_k = 8400,
                                                 .dim = 256,
                                                 .alignment = 16,
                                                 .amplitude = rises ? 4.0 : 1.0,
                                                 .rising_scores = rises,
                                                 .row_step = 7});
  // So many rows and keys that blocks come in pairs. Of a head's last pair the second block has one row, or none.
  for (const mica_causal causal : {MICA_CAUSAL_NONE, MICA_CAUSAL_BOTTOM_RIGHT}) {
    const bool is_causal = causal != MICA_CAUSAL_NONE;
    add(is_causal ? "pairs_causal" : "pairs", {.factors = Factors::kSequence,
                                               .batch = is_causal ? 2 : 1,
                                               .heads_q = is_causal ? 34 : 48,
                                               .heads_k = 2,
                                               .len_q = is_causal ? 129 : 257,
                                               .len_k = is_causal ? 2000 : 500,
                                               .dim = 256,
                                               .alignment = 16,
                                               .causal = causal,
                                               .row_step = 32});
  }
  add("large_scores", {.factors = Factors::kHead, .dim = 128, .alignment = 16, .amplitude = 4});
  add("heads_first", {.factors = Factors::kHead,
                      .heads_q = 4,
                      .len_q = 100,
                      .len_k = 200,
                      .dim = 64,
                      .layout_q = Layout::kHeadsFirst,
                      .layout_k = Layout::kHeadsFirst,
                      .layout_v = Layout::kHeadsFirst,
                      .layout_o = Layout::kHeadsFirst,
                      .alignment = 16,
                      .causal = MICA_CAUSAL_BOTTOM_RIGHT});
  add("empty_rows", {.len_q = 90, .len_k = 40, .dim = 64, .alignment = 16, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
  add("no_keys", {.len_k = 0, .dim = 64});
  add("window", {.factors = Factors::kHead,
                 .len_q = 300,
                 .len_k = 300,
                 .dim = 128,
                 .alignment = 16,
                 .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                 .window_left = 70});
  add("packed", {.factors = Factors::kSequence,
                 .batch = 3,
                 .dim = 64,
                 .alignment = 16,
                 .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                 .packed_q = {20, 0, 130},
                 .packed_k = {35, 9, 130}});
  add("softcap_sinks", {.factors = Factors::kTensor, .amplitude = 2, .softcap = 5, .sinks_dtype = MICA_FP32});
}

void add_cached(CaseTable& table) {
  const auto add = [&table](const std::string& name, Options o) {
    o.fp8 = Fp8::kKeys;
    for (const int32_t dtype : {MICA_BF16, MICA_FP16, MICA_FP32}) {
      if (dtype == MICA_FP32 && o.page_size == 64) continue;
      o.dtype = dtype;
      table.add_one("fp8_cache_" + name + "_" + dtype_name(dtype), o);
    }
  };
  for (const Factors factors : {Factors::kNone, Factors::kTensor, Factors::kHead, Factors::kSequence, Factors::kPage})
    for (const int64_t page_size : {0, 16, 64}) {
      if (factors == Factors::kPage && page_size == 0) continue;
      const std::string kind =
          std::string(factors_name(factors)) + (page_size ? "_pages_" + std::to_string(page_size) : "");
      Options o = {.factors = factors,
                   .batch = 3,
                   .heads_q = 4,
                   .heads_k = 2,
                   .len_q = 1,
                   .len_k = 150,
                   .dim = 64,
                   .alignment = 16,
                   .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                   .used_k = {149, 0, 77},
                   .page_size = page_size,
                   .len_new = 1};
      add("decode_" + kind, o);
      o.len_q = o.len_new = 40, o.used_k = {110, 0, 77}, o.rotary_dim = 32;
      add("prefill_" + kind, o);
    }
  for (const int64_t dim : {64, 96, 128, 256})
    add("dim_" + std::to_string(dim), {.factors = Factors::kHead,
                                       .batch = 2,
                                       .heads_q = 8,
                                       .heads_k = 2,
                                       .len_q = 2,
                                       .len_k = 300,
                                       .dim = dim,
                                       .alignment = 16,
                                       .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                       .used_k = {300, 131}});
  for (const int64_t page_size : {0, 16})
    add(page_size ? "7_rows_window_pages" : "7_rows_window", {.factors = Factors::kHead,
                                                              .batch = 2,
                                                              .heads_q = 3,
                                                              .heads_k = 3,
                                                              .len_q = 7,
                                                              .len_k = 304,
                                                              .dim = 256,
                                                              .alignment = 16,
                                                              .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                                              .window_left = 150,
                                                              .sinks_dtype = MICA_FP32,
                                                              .used_k = {300, 131},
                                                              .page_size = page_size});
  add("splits", {.factors = Factors::kHead,
                 .batch = 1,
                 .heads_q = 4,
                 .heads_k = 1,
                 .len_q = 1,
                 .len_k = 700,
                 .dim = 128,
                 .alignment = 16,
                 .num_splits = 3});
  add("unaligned", {.factors = Factors::kHead, .len_q = 3, .len_k = 70, .dim = 40});
  // Two key heads a block, which a cache as small as this has for batch-invariant calls alone.
  for (const int64_t page_size : {0, 16})
    add(page_size ? "two_heads_pages" : "two_heads", {.factors = page_size ? Factors::kPage : Factors::kHead,
                                                      .batch = 2,
                                                      .heads_q = 12,
                                                      .heads_k = 4,
                                                      .len_q = 2,
                                                      .len_k = page_size ? 150 : 2200,
                                                      .dim = 64,
                                                      .alignment = 16,
                                                      .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                                      .used_k = {page_size ? 150 : 2200, 77},
                                                      .page_size = page_size,
                                                      .batch_invariant = 1});
  for (const int64_t page_size : {0, 16})
    add(page_size ? "uneven_pages" : "uneven", {.factors = page_size ? Factors::kPage : Factors::kHead,
                                                .batch = 5,
                                                .heads_q = 6,
                                                .heads_k = 2,
                                                .len_q = 2,
                                                .len_k = 1504,
                                                .dim = 64,
                                                .alignment = 16,
                                                .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                                .used_k = {1500, 3, 1504, 77, 1499},
                                                .page_size = page_size});
  add("two_heads_unaligned", {.factors = Factors::kHead,
                              .heads_q = 4,
                              .heads_k = 2,
                              .len_q = 1,
                              .len_k = 170,
                              .dim = 40,
                              .batch_invariant = 1});
  add("two_heads_options", {.factors = Factors::kHead,
                            .heads_q = 6,
                            .heads_k = 2,
                            .len_q = 2,
                            .len_k = 170,
                            .dim = 64,
                            .alignment = 16,
                            .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                            .softcap = 5,
                            .has_alibi = true,
                            .sinks_dtype = MICA_FP32,
                            .batch_invariant = 1});
  add("leftpad", {.factors = Factors::kPage,
                  .batch = 2,
                  .len_q = 2,
                  .len_k = 64,
                  .dim = 64,
                  .used_k = {50, 33},
                  .leftpad = {7, 20},
                  .page_size = 16});
  // Values of one page that are a million times another's.
  for (const int64_t len_q : {1, 40})
    add("page_spread_" + std::to_string(len_q) + "_rows", {.factors = Factors::kPage,
                                                           .factor_spread = 12,
                                                           .batch = 2,
                                                           .heads_q = 4,
                                                           .len_q = len_q,
                                                           .len_k = 160,
                                                           .dim = 64,
                                                           .alignment = 16,
                                                           .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                                           .used_k = {150, 77},
                                                           .page_size = 16});
  add("batch_idx",
      {.factors = Factors::kSequence, .len_q = 2, .len_k = 60, .dim = 64, .used_k = {50, 33}, .has_batch_idx = true});
}

}  // namespace

void add_fp8_cases(CaseTable& table) {
  add_forward(table);
  add_cached(table);
  // e4m3 rows for a cache of e4m3 are copied.
  table.add_one("fp8_append_as_it_is", {.dtype = MICA_BF16,
                                        .fp8 = Fp8::kAll,
                                        .factors = Factors::kSequence,
                                        .len_q = 3,
                                        .len_k = 70,
                                        .dim = 64,
                                        .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                        .used_k = {40, 3},
                                        .len_new = 3});
}

}  // namespace mica::conformance
