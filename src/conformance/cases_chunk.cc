// SPDX-License-Identifier: Apache-2.0
// Chunked attention: chunks smaller than a tile, as large, larger, and cut by the ends of the sequence.
#include "conformance/cases.h"

namespace mica::conformance {

void add_chunk_cases(CaseTable& table) {
  for (const int64_t chunk : {1, 7, 16, 48, 1000}) {
    const std::string name = "chunk_" + std::to_string(chunk);
    table.add(name, {.diagonal = MICA_DIAGONAL_BOTTOM_RIGHT, .chunk = chunk});
    table.add(name + "_top_left", {.len_q = 70, .len_k = 50, .diagonal = MICA_DIAGONAL_TOP_LEFT, .chunk = chunk});
    // Rows before the first key lie in chunks of negative positions.
    table.add(name + "_tall", {.len_q = 90, .len_k = 50, .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT, .chunk = chunk});
    table.add(name + "_causal", {.len_q = 60, .len_k = 90, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .chunk = chunk});
    table.add(name + "_varlen_causal", {.batch = 5,
                                        .heads_q = 4,
                                        .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                        .chunk = chunk,
                                        .packed_q = {5, 0, 33, 1, 20},
                                        .packed_k = {9, 12, 0, 1, 51}});
  }
  table.add("chunk_window", {.len_q = 60,
                             .len_k = 90,
                             .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT,
                             .window_left = 20,
                             .window_right = 9,
                             .chunk = 32});
  table.add("chunk_seqused_leftpad", {.batch = 3,
                                      .len_k = 64,
                                      .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                      .chunk = 10,
                                      .used_q = {33, 10, 5},
                                      .used_k = {60, 20, 3},
                                      .leftpad = {7, 1, 0}});
  // A piece of a larger call, whose chunks are those of the whole.
  table.add(
      "chunk_place",
      {.len_q = 60, .len_k = 90, .causal = MICA_CAUSAL_TOP_LEFT, .chunk = 32, .place = {.shift = 40, .key_first = 50}});
  table.add("chunk_place_back", {.len_q = 60,
                                 .len_k = 90,
                                 .diagonal = MICA_DIAGONAL_TOP_LEFT,
                                 .chunk = 24,
                                 .place = {.shift = -25, .key_first = 23}});
  table.add("chunk_bias_mask_dropout", {.len_q = 60,
                                        .len_k = 90,
                                        .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                        .chunk = 32,
                                        .has_mask = true,
                                        .bias_dtype = MICA_FP32,
                                        .dropout = 0.2f,
                                        .gradients = kGradQkv | kGradBias});
  table.add("chunk_append_rotary", {.batch = 3,
                                    .heads_q = 4,
                                    .len_q = 5,
                                    .len_k = 64,
                                    .dim = 64,
                                    .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT,
                                    .chunk = 8,
                                    .used_k = {40, 0, 17},
                                    .len_new = 5,
                                    .rotary_dim = 32});
  // What the fastest kernels serve.
  for (const int64_t dim : {64, 128, 192, 256}) {
    const auto add = [&](const std::string& suffix, Options o) {
      o.dim = dim;
      o.alignment = 16;
      table.add("chunk_aligned_" + std::to_string(dim) + suffix, o);
    };
    add("", {.batch = 1,
             .heads_k = 1,
             .len_q = 300,
             .len_k = 300,
             .causal = MICA_CAUSAL_BOTTOM_RIGHT,
             .chunk = 100,
             .deterministic = dim == 128});
    add("_both_sides",
        {.batch = 1, .heads_k = 1, .len_q = 200, .len_k = 330, .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT, .chunk = 128});
    if (dim == 192) continue;
    add("_alibi",
        {.batch = 1, .len_q = 200, .len_k = 200, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .chunk = 70, .has_alibi = true});
    add("_decode", {.batch = 3,
                    .heads_q = 8,
                    .len_q = 1,
                    .len_k = 400,
                    .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                    .chunk = 150,
                    .used_k = {400, 151, 0}});
    add("_decode_5_rows", {.batch = 3,
                           .heads_q = 16,
                           .len_q = 5,
                           .len_k = 320,
                           .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                           .chunk = 64,
                           .used_k = {300, 3, 66},
                           .page_size = 16,
                           .num_splits = dim == 64 ? 3 : 0});
  }
}

}  // namespace mica::conformance
