// SPDX-License-Identifier: Apache-2.0
// What most callers bring: rows that start at 16 bytes, several tiles of queries and keys, and only the options that
// the fastest kernels serve.
#include "conformance/cases.h"
#include "conformance/numbers.h"

namespace mica::conformance {

namespace {

// Gradients of packed sequences in a fixed order. add(name, options).
template <class Add>
void add_ordered_varlen(const Add& add) {
  for (const mica_causal causal : {MICA_CAUSAL_NONE, MICA_CAUSAL_BOTTOM_RIGHT})
    add(causal == MICA_CAUSAL_NONE ? "_varlen_deterministic" : "_varlen_causal_deterministic",
        {.batch = 4,
         .heads_q = 2,
         .causal = causal,
         .packed_q = {5, 300, 0, 140},
         .packed_k = {150, 400, 9, 270},
         .deterministic = 1});
}

// Few rows in ranges of keys that one launch joins: pages, sinks, a sequence without keys, two tiles of heads, rows
// that see fewer keys than others, rows of packed sequences.
template <class Add>
void add_split_decode(const Add& add) {
  add("_decode_splits_13", {.batch = 2, .heads_q = 8, .len_q = 1, .len_k = 336, .page_size = 16, .num_splits = 13});
  for (const int32_t splits : {2, 7}) {
    const std::string suffix = "_splits_" + std::to_string(splits);
    add("_decode" + suffix, {.batch = 3,
                             .heads_q = 8,
                             .len_q = 1,
                             .len_k = 336,
                             .sinks_dtype = MICA_FP32,
                             .used_k = {300, 17, 0},
                             .page_size = 16,
                             .num_splits = splits});
    add("_decode_24_heads" + suffix, {.batch = 2,
                                      .heads_q = 48,
                                      .len_q = 2,
                                      .len_k = 336,
                                      .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                      .used_k = {300, 17},
                                      .page_size = 48,
                                      .num_splits = splits});
    add("_decode_append" + suffix, {.batch = 2,
                                    .heads_q = 8,
                                    .len_q = 3,
                                    .len_k = 300,
                                    .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                    .window_left = 130,
                                    .used_k = {290, 130},
                                    .len_new = 3,
                                    .num_splits = splits});
    add("_decode_packed" + suffix,
        {.batch = 3, .heads_q = 8, .len_k = 208, .packed_q = {3, 0, 2}, .page_size = 16, .num_splits = splits});
  }
  // Where keys do not fit into L2 and the last of five sequences would be alone in its round, it is cut into more
  // ranges.
  add("_decode_uneven", {.batch = 5,
                         .heads_q = 4,
                         .heads_k = 1,
                         .len_q = 1,
                         .len_k = 1500,
                         .sinks_dtype = MICA_FP32,
                         .used_k = {1500, 0, 77, 1499, 1400}});
  add("_decode_uneven_pages", {.batch = 5,
                               .heads_q = 6,
                               .heads_k = 1,
                               .len_q = 2,
                               .len_k = 1504,
                               .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                               .used_k = {1500, 3, 1504, 1499, 1},
                               .page_size = 16});
}

}  // namespace

void add_aligned_cases(CaseTable& table) {
  for (const int64_t dim : {64, 80, 128, 192, 256}) {
    const std::string name = "aligned_" + std::to_string(dim);
    const auto add = [&](const std::string& suffix, Options o) {
      o.dim = dim;
      o.alignment = 16;
      table.add(name + suffix, o);
    };
    add("", {.batch = 1, .heads_k = 1, .len_q = 140, .len_k = 210});
    add("_causal", {.batch = 1, .heads_k = 1, .len_q = 140, .len_k = 140, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
    add("_negative_scale",
        {.batch = 1, .heads_k = 1, .len_q = 70, .len_k = 140, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .scale = -0.2f});
    // Nothing can be divided by it.
    if (dim <= 128) add("_tiny_scale", {.batch = 1, .heads_k = 1, .len_q = 70, .len_k = 140, .scale = 1e-30f});
    // As many heads as fill a GPU with tiles of 256 queries.
    if (dim < 128) {
      add("_short", {.batch = 1, .heads_q = 70, .heads_k = 1, .len_q = 200, .len_k = 130});
      add("_short_causal",
          {.batch = 1, .heads_q = 70, .heads_k = 1, .len_q = 200, .len_k = 200, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
    }
    // As many heads as a GPU has SMs, so that a block takes a whole one; few keys and many queries, so that blocks
    // share one.
    if (dim <= 128) {
      add("_many_heads",
          {.batch = 33, .heads_q = 4, .heads_k = 4, .len_q = 70, .len_k = 140, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
      // So many key tiles that blocks of backward have several, which go round.
      if (dim != 80) add("_round", {.batch = 17, .heads_q = 3, .heads_k = 3, .len_q = 140, .len_k = 300});
      // So few heads that their key tiles go round in a fixed order, two steps apart or less; one without keys.
      for (const int64_t len_q : {700, 140})
        add("_round_" + std::to_string(len_q) + "_deterministic", {.batch = 3,
                                                                   .heads_q = 2,
                                                                   .heads_k = 1,
                                                                   .len_q = len_q,
                                                                   .len_k = 600,
                                                                   .used_k = {600, 290, 0},
                                                                   .deterministic = 1});
      // Blocks that share a key tile, each with one head of the group.
      if (dim != 80)
        add("_round_groups_deterministic",
            {.batch = 1, .heads_q = 4, .heads_k = 1, .len_q = 500, .len_k = 600, .deterministic = 1});
      add("_few_keys", {.batch = 1, .heads_q = 2, .heads_k = 2, .len_q = 700, .len_k = 77});
    }
    // Some key tiles of two heads, with three heads or parts of the queries in each of the blocks that share them.
    for (const bool causal : {false, true})
      add(causal ? "_shared_causal_deterministic" : "_shared_deterministic",
          {.batch = 1,
           .heads_q = 6,
           .heads_k = 2,
           .len_q = 450,
           .len_k = 450,
           .causal = causal ? MICA_CAUSAL_BOTTOM_RIGHT : MICA_CAUSAL_NONE,
           .deterministic = 1});
    // Key tiles of one head, whose blocks take several heads of the group and a part of their queries each.
    for (const bool causal : {false, true})
      for (const bool deterministic : {false, true}) {
        if (dim > 128) continue;
        const std::string mask = causal ? "_causal" : "", order = deterministic ? "_deterministic" : "";
        add("_shared_heads" + mask + order, {.batch = 1,
                                             .heads_q = !causal         ? 6
                                                        : deterministic ? 2
                                                                        : 4,
                                             .heads_k = 1,
                                             .len_q = 600,
                                             .len_k = 600,
                                             .causal = causal ? MICA_CAUSAL_BOTTOM_RIGHT : MICA_CAUSAL_NONE,
                                             .deterministic = deterministic});
      }
    // One of two sequences has no keys, and nobody knows how large they are.
    add("_shared_used_deterministic",
        {.batch = 2, .heads_q = 6, .heads_k = 2, .len_q = 130, .len_k = 330, .used_k = {330, 0}, .deterministic = 1});
    // So many keys that tiles of 80 queries gain: two heads of a group, or parts of the queries.
    if (dim == 128)
      for (const int64_t heads_k : {1, 2})
        add("_shared_long_" + std::to_string(heads_k) + "_deterministic",
            {.batch = 1, .heads_q = 2, .heads_k = heads_k, .len_q = 170, .len_k = 1100, .deterministic = 1});
    // Beside a key that is so large the others have no scale of whole numbers: dQ is summed in turn.
    for (const int64_t heads_k : {1, 3}) {
      Options o = {.batch = 1, .heads_q = 6, .heads_k = heads_k, .len_q = 300, .len_k = 330, .dim = dim};
      o.dtype = MICA_BF16;
      o.alignment = 16;
      o.has_loud_key = true;
      o.causal = MICA_CAUSAL_TOP_LEFT;
      o.deterministic = 1;
      o.gradients = kGradQkv;
      table.add_one(name + "_loud_key_" + std::to_string(heads_k) + "_deterministic_bf16", o);
      if (dim != 128) continue;
      o.heads_q = 2 * heads_k;
      o.len_k = 2100;
      table.add_one(name + "_loud_key_long_" + std::to_string(heads_k) + "_deterministic_bf16", o);
    }
    // So many key tiles that blocks of backward clear dQ for those that come heads later; the group's heads, too.
    if (dim >= 128) {
      const int64_t len_k = dim <= 128 ? 1100 : 330, batch = dim <= 128 ? 12 : 24;  // up to 1024 keys: whole heads
      add("_many_sequences", {.batch = batch, .heads_q = 2, .heads_k = 2, .len_q = 70, .len_k = len_k});
      add("_many_groups", {.batch = batch,
                           .heads_q = 4,
                           .heads_k = 2,
                           .len_q = 40,
                           .len_k = len_k,
                           .causal = MICA_CAUSAL_BOTTOM_RIGHT});
    }
    // Pages that the copy engine takes in blocks of whole rows, or not: heads first, one head for all.
    if (dim > 64) {
      add("_paged_heads", {.batch = 2,
                           .heads_q = 4,
                           .heads_k = 2,
                           .len_q = 70,
                           .len_k = 150,
                           .layout_k = Layout::kHeadsFirst,
                           .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                           .used_k = {150, 77},
                           .page_size = 16});
      add("_paged_shared_head", {.batch = 1,
                                 .heads_q = 2,
                                 .heads_k = 2,
                                 .len_q = 70,
                                 .len_k = 150,
                                 .layout_v = Layout::kSharedHead,
                                 .page_size = 32});
    }
    if (dim % 64 != 0 || dim == 192) continue;
    // More query tiles than a GPU has SMs, so that a block takes several.
    if (dim == 64) {
      add("_many_tiles",
          {.batch = 2, .heads_q = 70, .heads_k = 1, .len_q = 20, .len_k = 150, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
      add("_many_tiles_window", {.batch = 2,
                                 .heads_q = 70,
                                 .heads_k = 1,
                                 .len_q = 20,
                                 .len_k = 150,
                                 .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT,
                                 .window_left = 100,
                                 .window_right = 10,
                                 .has_alibi = true});
    }
    // Prefill on pages: more rows than decode takes; boxes of a page smaller than a key tile, as large, larger.
    for (const int64_t page_size : {8, 16, 48, 64, 256})
      add("_paged_" + std::to_string(page_size), {.batch = 3,
                                                  .heads_k = 1,
                                                  .len_q = 140,
                                                  .len_k = 300,
                                                  .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                                  .used_k = {300, 0, 149},
                                                  .page_size = page_size});
    add("_causal_top_left",
        {.batch = 1, .heads_q = 1, .heads_k = 1, .len_q = 200, .len_k = 130, .causal = MICA_CAUSAL_TOP_LEFT});
    add("_window", {.batch = 1,
                    .heads_q = 1,
                    .heads_k = 1,
                    .len_q = 140,
                    .len_k = 270,
                    .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT,
                    .window_left = 70,
                    .window_right = 9});
    // Sequences of one query tile, as encoders have them: with all keys, and with as many as each has.
    if (dim == 64) {
      add("_encoder", {.batch = 2, .len_q = 128, .len_k = 128});
      add("_encoder_used", {.batch = 3, .len_q = 120, .len_k = 110, .used_q = {120, 70, 0}, .used_k = {110, 3, 64}});
      add("_encoder_causal", {.batch = 1, .len_q = 100, .len_k = 127, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
      add("_encoder_packed", {.batch = 4, .packed_q = {128, 1, 90, 64}, .packed_k = {128, 100, 0, 81}});
      add("_varlen_only_q", {.batch = 3, .heads_q = 2, .heads_k = 1, .len_k = 140, .packed_q = {140, 0, 70}});
      add("_varlen_only_k", {.batch = 3, .heads_q = 2, .heads_k = 1, .len_q = 140, .packed_k = {150, 0, 70}});
    }
    if (dim <= 128) add_ordered_varlen(add);
    add("_varlen",
        {.batch = 4, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .packed_q = {5, 0, 3, 140}, .packed_k = {150, 12, 0, 140}});
    // More sequences than a warp has lanes, of none to three query tiles, and more items of work than a GPU has SMs.
    if (dim == 64) {
      std::vector<int32_t> rows(37);
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = i % 9 == 4 ? 0 : i % 12 == 0 ? 390 : int32_t(7 * i % 50);
      add("_varlen_sections", {.batch = 37,
                               .heads_q = 4,
                               .heads_k = 1,
                               .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                               .packed_q = rows,
                               .packed_k = rows});
      add("_varlen_as_they_lie", {.batch = 37, .heads_q = 3, .heads_k = 1, .packed_q = rows, .packed_k = rows});
    }
    // Sequences of about one length: of one query tile each, and of several under a mask; boxes that end with them.
    add("_varlen_even",
        {.batch = 5, .heads_q = 2, .heads_k = 1, .packed_q = {64, 60, 64, 64, 58}, .packed_k = {70, 64, 0, 9, 130}});
    add("_varlen_even_causal", {.batch = 3,
                                .heads_q = 2,
                                .heads_k = 1,
                                .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                .packed_q = {300, 270, 290},
                                .packed_k = {300, 290, 280}});
    // Of which one is longer than was said: its tiles after the last numbered one.
    add("_varlen_even_longer", {.batch = 4,
                                .heads_q = 2,
                                .heads_k = 1,
                                .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                .packed_q = {200, 20, 0, 30},
                                .packed_k = {200, 20, 7, 60},
                                .hint_q = 64});
    // Of one length, which a block guesses for its first items; and lengths that only add up to it.
    add("_varlen_one_length", {.batch = 7,
                               .heads_q = 2,
                               .heads_k = 1,
                               .packed_q = std::vector<int32_t>(7, 80),
                               .packed_k = std::vector<int32_t>(7, 50)});
    add("_varlen_not_one_length", {.batch = 4,
                                   .heads_q = 3,
                                   .heads_k = 1,
                                   .packed_q = {100, 20, 60, 60},
                                   .packed_k = std::vector<int32_t>(4, 60),
                                   .hint_q = 60});
    // The first blocks find what they guessed, later ones do not.
    add("_varlen_late_not_one_length", {.batch = 6,
                                        .heads_q = 2,
                                        .heads_k = 1,
                                        .packed_q = {60, 60, 60, 60, 90, 30},
                                        .packed_k = {60, 60, 60, 60, 60, 60},
                                        .hint_q = 60});
    // The same of many key tiles.
    add("_varlen_one_long_length", {.batch = 3,
                                    .heads_q = 2,
                                    .heads_k = 1,
                                    .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                    .packed_q = {300, 300, 300},
                                    .packed_k = {400, 400, 400}});
    add("_varlen_not_one_long_length", {.batch = 3,
                                        .heads_q = 2,
                                        .heads_k = 1,
                                        .packed_q = {300, 340, 260},
                                        .packed_k = {400, 400, 400},
                                        .hint_q = 300});
    // Longer keys than was said, in the middle and at the end, with and without a mask.
    for (const mica_causal causal : {MICA_CAUSAL_NONE, MICA_CAUSAL_BOTTOM_RIGHT})
      add(causal == MICA_CAUSAL_NONE ? "_varlen_longer_keys" : "_varlen_longer_keys_causal",
          {.batch = 4,
           .heads_q = 2,
           .heads_k = 1,
           .causal = causal,
           .packed_q = {70, 300, 9, 200},
           .packed_k = {100, 420, 130, 330},
           .hint_q = 100,
           .hint_k = 140});
    if (dim == 64) {
      std::vector<int32_t> rows(40, 64);
      rows[3] = 0;
      add("_varlen_even_many", {.batch = 40, .heads_q = 4, .heads_k = 2, .packed_q = rows, .packed_k = rows});
    }
    // Sequences that backward takes from the longest on; under a mask all heads' first keys of the last ones first.
    if (dim == 64)
      add("_varlen_in_order", {.batch = 4, .heads_q = 2, .packed_q = {1, 520, 0, 70}, .packed_k = {140, 150, 9, 70}});
    if (dim == 128)
      add("_varlen_in_order", {.batch = 3,
                               .heads_q = 2,
                               .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                               .packed_q = {130, 520, 0},
                               .packed_k = {130, 200, 9}});
    // Scores that outgrow the first tiles' maximum again and again.
    add("_large_scores", {.batch = 1, .heads_q = 1, .heads_k = 1, .len_q = 40, .len_k = 300, .amplitude = 4.0});
    // So much that exponentials relative to it are infinite.
    add("_huge_scores", {.batch = 1, .heads_q = 1, .heads_k = 1, .len_q = 80, .len_k = 500, .amplitude = 16.0});
    // Not in fp32, where the rounding of scores of a thousand alone makes as much as the bound.
    table.add_16_bit(
        name + "_huge_scores_paged",
        {.batch = 1, .heads_q = 1, .heads_k = 1, .len_q = 80, .len_k = 500, .amplitude = 16.0, .page_size = 16});
    if (dim <= 128) {
      // Of 16 bits: fp32's own rounding of such scores is larger than what the cases allow it.
      table.add_16_bit(name + "_huge_scores_alibi", {.batch = 1,
                                                     .heads_q = 1,
                                                     .heads_k = 1,
                                                     .len_q = 80,
                                                     .len_k = 500,
                                                     .dim = dim,
                                                     .alignment = 16,
                                                     .amplitude = 16.0,
                                                     .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                                     .has_alibi = true});
      add("_huge_scores_softcap",
          {.batch = 1, .heads_q = 1, .heads_k = 1, .len_q = 80, .len_k = 500, .amplitude = 16.0, .softcap = 400.0f});
      add("_huge_scores_dropout",
          {.batch = 1, .heads_q = 1, .heads_k = 1, .len_q = 80, .len_k = 500, .amplitude = 16.0, .dropout = 0.3f});
    }
    add("_seqused", {.batch = 3,
                     .heads_q = 1,
                     .heads_k = 1,
                     .len_q = 140,
                     .len_k = 150,
                     .used_q = {140, 7, 0},
                     .used_k = {150, 100, 30}});
    add("_sinks", {.batch = 1,
                   .heads_k = 1,
                   .len_q = 70,
                   .len_k = 140,
                   .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                   .sinks_dtype = MICA_FP32,
                   .gradients = kGradQkv | kGradSinks});
    // Gradients, and dO, of another type than q.
    add("_types", {.batch = 1,
                   .heads_k = 1,
                   .len_q = 70,
                   .len_k = 140,
                   .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                   .o_fp32 = true,
                   .d_o_fp32 = true,
                   .gradients_fp32 = true});
    // As a piece of a ring has them: gradients in fp32, and keys so many that backward takes other tiles.
    if (dim <= 128)
      add("_long_gradients",
          {.batch = 1, .heads_q = 1, .heads_k = 1, .len_q = 90, .len_k = 2100, .gradients_fp32 = true});
    // Pieces of a ring, whose dQ is summed in one workspace. A group's heads share key tiles: dK is summed there, too.
    add("_pieces", {.batch = 1,
                    .heads_q = 6,
                    .heads_k = 1,
                    .len_q = 150,
                    .len_k = 300,
                    .causal = MICA_CAUSAL_TOP_LEFT,
                    .piece_keys = 140,
                    .gradients_fp32 = true});
    add("_pieces_beside", {.batch = 1,
                           .heads_q = 2,
                           .heads_k = 2,
                           .len_q = 150,
                           .len_k = 300,
                           .causal = MICA_CAUSAL_TOP_LEFT,
                           .piece_keys = 100,
                           .pieces_beside = true});
    add("_pieces_in_order",
        {.batch = 1, .heads_k = 1, .len_q = 70, .len_k = 250, .deterministic = 1, .piece_keys = 130});
    add("_splits", {.batch = 1, .heads_q = 1, .heads_k = 1, .len_q = 70, .len_k = 300, .num_splits = 3});
    // So few query tiles before so many keys that a GPU's SMs share the keys out without being asked to.
    if (dim <= 128) {
      add("_chunk_of_prompt",
          {.batch = 1, .heads_q = 2, .heads_k = 1, .len_q = 70, .len_k = 3300, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
      add("_chunk_of_prompt_packed", {.batch = 3,
                                      .heads_q = 1,
                                      .heads_k = 1,
                                      .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                      .packed_q = {70, 0, 66},
                                      .packed_k = {3300, 9, 70}});
    }
    add("_heads_first", {.batch = 1,
                         .len_q = 70,
                         .len_k = 80,
                         .layout_q = Layout::kHeadsFirst,
                         .layout_k = Layout::kHeadsFirst,
                         .layout_v = Layout::kHeadsFirst,
                         .layout_o = Layout::kHeadsFirst});
    // Masks and biases whose keys can be read two at a time; the last key in use has no neighbour.
    add("_mask", {.heads_k = 1, .len_q = 70, .len_k = 150, .has_mask = true, .used_k = {150, 77}});
    add("_bias", {.heads_k = 1,
                  .len_q = 70,
                  .len_k = 150,
                  .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                  .bias_dtype = MICA_FP32,
                  .used_k = {150, 77},
                  .gradients = kGradQkv | kGradBias});
    // Whole tiles inside a 16-bit bias, summed over the batch in dBias.
    if (dim <= 128)
      add("_bias_whole", {.heads_q = 1,
                          .heads_k = 1,
                          .len_q = 136,
                          .len_k = 264,
                          .bias_dtype = MICA_BF16,
                          .bias_axes = kAxisHead | kAxisQuery | kAxisKey,
                          .gradients = kGradQkv | kGradBias});
    add("_bias_half_mask", {.heads_k = 1,
                            .len_q = 5,
                            .len_k = 150,
                            .has_mask = true,
                            .mask_axes = kAxisQuery | kAxisKey,
                            .bias_dtype = MICA_FP16});
    add("_bias_brain", {.batch = 1,
                        .heads_k = 1,
                        .len_q = 140,
                        .len_k = 150,
                        .bias_dtype = MICA_BF16,
                        .bias_axes = kAxisHead | kAxisQuery | kAxisKey});
    // Scores on both sides of where softcap's tanh is done otherwise.
    add("_softcap",
        {.batch = 1, .len_q = 140, .len_k = 210, .amplitude = 2, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .softcap = 3.0f});
    // All scores small, and all keys of some tiles seen; then scores at both ends of a cap that still does without
    // maxima.
    add("_softcap_group", {.batch = 1,
                           .heads_q = 4,
                           .heads_k = 2,
                           .len_q = 200,
                           .len_k = 330,
                           .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                           .softcap = 50.0f});
    add("_softcap_extreme",
        {.batch = 1, .heads_q = 2, .heads_k = 1, .len_q = 140, .len_k = 330, .amplitude = 16, .softcap = 50.0f});
    add("_softcap_varlen", {.batch = 4,
                            .heads_q = 2,
                            .heads_k = 1,
                            .amplitude = 2,
                            .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                            .softcap = 20.0f,
                            .packed_q = {5, 0, 3, 240},
                            .packed_k = {150, 12, 0, 300}});
    add("_softcap_deterministic", {.batch = 1,
                                   .heads_q = 4,
                                   .heads_k = 2,
                                   .len_q = 270,
                                   .len_k = 400,
                                   .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT,
                                   .window_left = 190,
                                   .window_right = 0,
                                   .softcap = 30.0f,
                                   .deterministic = 1});
    add("_softcap_wide_alibi", {.batch = 1,
                                .len_q = 140,
                                .len_k = 210,
                                .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT,
                                .softcap = 50.0f,
                                .has_alibi = true});
    add("_alibi", {.batch = 1, .len_q = 140, .len_k = 210, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .has_alibi = true});
    // Keys on both sides of a query: ALiBi is a line in some tiles and has a corner in others.
    add("_alibi_both_sides",
        {.batch = 1, .len_q = 200, .len_k = 210, .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT, .has_alibi = true});
    // Rows whose maximum lies in an earlier tile than their own, where ALiBi is a line.
    add("_alibi_rising", {.batch = 1,
                          .len_q = 200,
                          .len_k = 200,
                          .amplitude = 3,
                          .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                          .has_alibi = true});
    add("_alibi_window", {.batch = 1,
                          .len_q = 200,
                          .len_k = 200,
                          .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT,
                          .window_left = 70,
                          .window_right = 40,
                          .has_alibi = true,
                          .deterministic = 1});
    add("_dropout", {.len_q = 140, .len_k = 210, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .dropout = 0.3f});
    add("_dropout_place",
        {.len_q = 140,
         .len_k = 210,
         .causal = MICA_CAUSAL_TOP_LEFT,
         .dropout = 0.3f,
         .place = {.shift = 80, .row_first = 176, .key_first = 96, .batch_first = 3, .head_first = 5, .heads = 40}});
    add("_decode", {.batch = 3, .heads_q = 8, .len_q = 1, .len_k = 300, .used_k = {300, 17, 0}});
    // Also pages that are no whole number of decode's tiles of 16 or 32 keys.
    for (const int64_t page_size : {16, 24, 48})
      add("_decode_pages_" + std::to_string(page_size),
          {.batch = 3, .heads_q = 8, .len_q = 1, .len_k = 336, .used_k = {300, 17, 0}, .page_size = page_size});
    // Fewer rows of a key head than a tile has, several of them and none that is a power of two, under a band.
    for (const int64_t page_size : {0, 1, 16})
      add("_decode_6_rows_window" + (page_size ? "_pages_" + std::to_string(page_size) : std::string()),
          {.batch = 3,
           .heads_q = 4,
           .heads_k = 2,
           .len_q = 3,
           .len_k = 304,
           .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT,
           .window_left = 150,
           .window_right = 0,
           .sinks_dtype = MICA_FP32,
           .used_k = {300, 2, 17},
           .page_size = page_size});
    // More rows of a key head than one tile of the smallest decode kernel.
    add("_decode_24_heads",
        {.batch = 2, .heads_q = 48, .len_q = 1, .len_k = 300, .used_k = {300, 17}, .has_batch_idx = true});
    add("_decode_3_rows_softcap", {.batch = 2,
                                   .heads_q = 48,
                                   .len_q = 3,
                                   .len_k = 320,
                                   .amplitude = 2,
                                   .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                   .softcap = 3.0f,
                                   .used_k = {300, 17},
                                   .page_size = 16});
    // More pages than lanes of a warp, and rows that cannot be joined heads.
    for (const int64_t page_size : {16, 48})
      add("_decode_3_rows_pages_" + std::to_string(page_size), {.batch = 2,
                                                                .heads_q = 48,
                                                                .len_q = 3,
                                                                .len_k = 2592,
                                                                .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                                                .sinks_dtype = MICA_FP32,
                                                                .used_k = {2590, 1100},
                                                                .page_size = page_size});
    // Groups that no box of 64 rows fits: more rows than one tile of 64, and than four, which tiles of 128 take.
    add("_decode_6_rows_of_12", {.batch = 2,
                                 .heads_q = 24,
                                 .len_q = 6,
                                 .len_k = 700,
                                 .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                 .used_k = {700, 17},
                                 .page_size = 16});
    for (const int rows : {12, 24})
      add("_decode_" + std::to_string(rows) + "_rows_of_12",
          {.batch = 2, .heads_q = 24, .len_q = rows, .len_k = 1000, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
    // Boxes of 21 queries' heads, and of a fifth of a query's.
    add("_decode_50_rows_of_3",
        {.batch = 2, .heads_q = 6, .len_q = 50, .len_k = 700, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .window_left = 300});
    add("_decode_3_rows_of_80",
        {.batch = 2, .heads_q = 160, .len_q = 3, .len_k = 700, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
    // Rows enough for a tile of forward, with heads as rows: of one query, and of several.
    add("_decode_128_heads", {.batch = 2,
                              .heads_q = 128,
                              .heads_k = 1,
                              .len_q = 1,
                              .len_k = 320,
                              .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                              .used_k = {300, 17},
                              .page_size = 64});
    add("_decode_64_heads_3_rows", {.batch = 2,
                                    .heads_q = 128,
                                    .heads_k = 2,
                                    .len_q = 3,
                                    .len_k = 300,
                                    .layout_q = Layout::kHeadsFirst,
                                    .layout_o = Layout::kHeadsFirst,
                                    .has_batch_idx = true});
    // In the LSE rows run within heads, and in q heads within rows. 100 sequences are a GPU's worth of tiles.
    add("_decode_64_heads_2_rows", {.batch = 3,
                                    .heads_q = 64,
                                    .heads_k = 1,
                                    .len_q = 2,
                                    .len_k = 70,
                                    .used_k = {70, 0, 17},
                                    .has_batch_idx = true});
    if (dim == 64)
      add("_decode_100_sequences",
          {.batch = 100, .heads_q = 64, .heads_k = 1, .len_q = 2, .len_k = 70, .has_batch_idx = true});
    add("_decode_70_heads", {.batch = 2,
                             .heads_q = 70,
                             .heads_k = 1,
                             .len_q = 2,
                             .len_k = 512,
                             .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                             .used_k = {500, 0},
                             .page_size = 64,
                             .num_splits = 3});
    add("_decode_5_rows", {.batch = 3,
                           .heads_q = 16,
                           .len_q = 5,
                           .len_k = 320,
                           .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                           .used_k = {300, 3, 17},
                           .page_size = 16});
    add("_decode_5_rows_window", {.batch = 2,
                                  .heads_q = 16,
                                  .len_q = 5,
                                  .len_k = 400,
                                  .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT,
                                  .window_left = 150,
                                  .window_right = 0,
                                  .sinks_dtype = MICA_FP32,
                                  .has_batch_idx = true});
    // More rows of a key head than decode takes, under a band: heads as rows again.
    add("_speculate_16_heads", {.batch = 3,
                                .heads_q = 32,
                                .heads_k = 2,
                                .len_q = 20,
                                .len_k = 300,
                                .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                .used_k = {300, 5, 0}});
    add("_speculate_8_heads_window", {.batch = 2,
                                      .heads_q = 16,
                                      .heads_k = 2,
                                      .len_q = 37,
                                      .len_k = 320,
                                      .layout_q = Layout::kHeadsFirst,
                                      .layout_o = Layout::kHeadsFirst,
                                      .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT,
                                      .window_left = 100,
                                      .window_right = 0,
                                      .used_k = {310, 20},
                                      .page_size = 16});
    add("_speculate_append", {.batch = 2,
                              .heads_q = 32,
                              .heads_k = 1,
                              .len_q = 9,
                              .len_k = 250,
                              .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                              .used_k = {200, 0},
                              .len_new = 9});
    add("_speculate_4_heads_top_left", {.batch = 1,
                                        .heads_q = 8,
                                        .heads_k = 2,
                                        .len_q = 63,
                                        .len_k = 200,
                                        .causal = MICA_CAUSAL_TOP_LEFT,
                                        .o_fp32 = true});
    add("_speculate_64_heads", {.batch = 1,
                                .heads_q = 64,
                                .heads_k = 1,
                                .len_q = 8,
                                .len_k = 1700,
                                .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                .has_batch_idx = true});
    add_split_decode(add);
    add("_deterministic",
        {.heads_q = 4, .len_q = 200, .len_k = 300, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .deterministic = 1});
  }
  // Heads that are no whole panels of 64 columns, by what backward does with the keys it draws.
  for (const int64_t dim : {72, 96}) {
    const auto add_16_bit = [&](const std::string& suffix, Options o) {
      o.dim = dim;
      o.alignment = 16;
      table.add_16_bit("aligned_" + std::to_string(dim) + suffix, o);
    };
    add_16_bit("", {.batch = 2, .heads_q = 2, .heads_k = 2, .len_q = 140, .len_k = 210});
    add_16_bit("_decode_splits",
               {.batch = 2, .heads_q = 8, .len_q = 1, .len_k = 336, .page_size = 16, .num_splits = 5});
    // More key tiles than a GPU has SMs.
    add_16_bit("_many_tiles", {.batch = 2, .heads_q = 8, .heads_k = 8, .len_q = 70, .len_k = 1100});
    add_16_bit("_many_tiles_causal",
               {.batch = 2, .heads_q = 8, .heads_k = 8, .len_k = 1100, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
    add_16_bit("_many_tiles_in_order", {.batch = 2,
                                        .heads_q = 8,
                                        .heads_k = 8,
                                        .len_q = 150,
                                        .len_k = 1100,
                                        .causal = MICA_CAUSAL_TOP_LEFT,
                                        .deterministic = 1});
    add_16_bit("_many_tiles_packed", {.batch = 5,
                                      .heads_q = 20,
                                      .heads_k = 20,
                                      .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                      .packed_q = {70, 0, 1, 200, 33},
                                      .packed_k = {1100, 200, 0, 210, 33}});
    add_16_bit("_window", {.batch = 1,
                           .heads_q = 2,
                           .heads_k = 2,
                           .len_q = 240,
                           .len_k = 470,
                           .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT,
                           .window_left = 70,
                           .window_right = 9});
    add_16_bit("_causal_top_left",
               {.batch = 1, .heads_q = 1, .heads_k = 1, .len_q = 200, .len_k = 330, .causal = MICA_CAUSAL_TOP_LEFT});
    add_16_bit(
        "_varlen",
        {.batch = 4, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .packed_q = {5, 0, 3, 140}, .packed_k = {150, 12, 0, 140}});
    add_16_bit("_varlen_only_q", {.batch = 3, .heads_q = 2, .heads_k = 1, .len_k = 140, .packed_q = {140, 0, 70}});
    add_16_bit("_varlen_only_k", {.batch = 3, .heads_q = 2, .heads_k = 1, .len_q = 140, .packed_k = {150, 0, 70}});
    add_16_bit("_varlen_in_order",
               {.batch = 4, .heads_q = 2, .packed_q = {1, 520, 0, 70}, .packed_k = {140, 150, 9, 70}});
    add_ordered_varlen(add_16_bit);
    add_16_bit("_seqused", {.batch = 3,
                            .heads_q = 1,
                            .heads_k = 1,
                            .len_q = 140,
                            .len_k = 150,
                            .used_q = {140, 7, 0},
                            .used_k = {150, 100, 30}});
    add_16_bit("_group", {.batch = 1,
                          .heads_q = 6,
                          .heads_k = 2,
                          .len_q = 130,
                          .len_k = 230,
                          .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                          .sinks_dtype = MICA_FP32,
                          .gradients = kGradQkv | kGradSinks,
                          .has_d_lse = true});
    add_16_bit("_types", {.batch = 1,
                          .heads_k = 1,
                          .len_q = 70,
                          .len_k = 140,
                          .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                          .o_fp32 = true,
                          .d_o_fp32 = true,
                          .gradients_fp32 = true});
    add_16_bit("_pieces", {.batch = 1,
                           .heads_q = 6,
                           .heads_k = 1,
                           .len_q = 150,
                           .len_k = 300,
                           .causal = MICA_CAUSAL_TOP_LEFT,
                           .piece_keys = 140,
                           .gradients_fp32 = true});
    add_16_bit("_heads_first", {.batch = 2,
                                .len_q = 70,
                                .len_k = 280,
                                .layout_q = Layout::kHeadsFirst,
                                .layout_k = Layout::kHeadsFirst,
                                .layout_v = Layout::kHeadsFirst,
                                .layout_o = Layout::kHeadsFirst,
                                .layout_gradients = Layout::kHeadsFirst});
    for (const int64_t dim_v : {64, 80})
      add_16_bit("_" + std::to_string(dim_v),
                 {.batch = 1, .heads_q = 2, .heads_k = 2, .len_q = 140, .len_k = 210, .dim_v = dim_v});
    add_16_bit("_deterministic",
               {.heads_q = 4, .len_q = 200, .len_k = 300, .causal = MICA_CAUSAL_BOTTOM_RIGHT, .deterministic = 1});
  }
  // Enough queries of one key head for the backward kernel that has to have many.
  const auto add_many = [&](const std::string& suffix, Options o) {
    o.batch = o.heads_k = 1;
    o.heads_q = 8;
    o.len_q = 130;
    o.dim = 256;
    o.alignment = 16;
    table.add("aligned_256_many_queries" + suffix, o);
  };
  add_many("", {.len_k = 140});
  add_many("_causal", {.len_k = 150, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
  add_many("_window", {.len_k = 200, .diagonal = MICA_DIAGONAL_BOTTOM_RIGHT, .window_left = 70, .window_right = 10});
  add_many("_deterministic", {.len_k = 140, .causal = MICA_CAUSAL_TOP_LEFT, .deterministic = 1});
  // So many rows and keys that blocks come in pairs which share keys. Of a head's last pair the second block has one
  // row, or none.
  for (const int64_t dim : {128, 256})
    for (const int32_t dtype : {MICA_FP16, MICA_BF16})
      for (const mica_causal causal : {MICA_CAUSAL_NONE, MICA_CAUSAL_BOTTOM_RIGHT}) {
        const bool is_causal = causal != MICA_CAUSAL_NONE;
        const int64_t tile_rows = dim == 128 ? 192 : 128;
        table.add_one("aligned_" + std::to_string(dim) + (is_causal ? "_pairs_causal_" : "_pairs_") + dtype_name(dtype),
                      {.dtype = dtype,
                       .batch = is_causal ? 2 : 1,
                       .heads_q = is_causal ? 34 : 48,
                       .heads_k = 2,
                       .len_q = is_causal ? tile_rows + 1 : 2 * tile_rows + 1,
                       .len_k = 3170,
                       .dim = dim,
                       .alignment = 16,
                       .causal = causal,
                       .row_step = 32});
      }
  // Another dimension for v.
  table.add("aligned_192_128", {.batch = 2,
                                .heads_q = 4,
                                .dim = 192,
                                .dim_v = 128,
                                .alignment = 16,
                                .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                .packed_q = {70, 140},
                                .packed_k = {70, 140}});
  // A group that blocks share unevenly: their dK and dV are added up, as they come or in a fixed order.
  for (const int64_t dim_v : {128, 192})
    for (const int deterministic : {0, 1})
      table.add("aligned_192_" + std::to_string(dim_v) + (deterministic ? "_deterministic" : "_group"),
                {.batch = 1,
                 .heads_q = 3,
                 .heads_k = 1,
                 .len_q = 130,
                 .len_k = 230,
                 .dim = 192,
                 .dim_v = dim_v,
                 .alignment = 16,
                 .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                 .deterministic = deterministic});
  // A fixed order asked of a kernel that has none, since nothing is added to dQ.
  table.add("aligned_192_128_deterministic_without_dq", {.batch = 1,
                                                         .heads_q = 2,
                                                         .heads_k = 2,
                                                         .len_q = 130,
                                                         .len_k = 230,
                                                         .dim = 192,
                                                         .dim_v = 128,
                                                         .alignment = 16,
                                                         .causal = MICA_CAUSAL_BOTTOM_RIGHT,
                                                         .deterministic = 1,
                                                         .gradients = kGradK | kGradV});
  for (const int64_t dim : {512, 576}) {
    const std::string name = "aligned_" + std::to_string(dim) + "_512";
    const auto add = [&](const std::string& suffix, Options o) {
      o.dim = dim;
      o.dim_v = 512;
      o.alignment = 16;
      table.add(name + suffix, o);
    };
    add("", {.batch = 1, .heads_q = 1, .heads_k = 1, .len_q = 100, .len_k = 150, .causal = MICA_CAUSAL_BOTTOM_RIGHT});
    add("_varlen", {.batch = 3, .heads_q = 1, .heads_k = 1, .packed_q = {5, 0, 140}, .packed_k = {90, 12, 70}});
    add("_large_scores", {.batch = 1, .heads_q = 1, .heads_k = 1, .len_q = 80, .len_k = 200, .amplitude = 4.0});
  }
}

}  // namespace mica::conformance
