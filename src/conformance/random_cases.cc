// SPDX-License-Identifier: Apache-2.0
// Cases drawn at random, because interactions hide defects: every draw is a legal combination of options.
#include "conformance/random_cases.h"

#include <algorithm>
#include <cstdio>

#include "conformance/cases.h"
#include "conformance/numbers.h"

namespace mica::conformance {
namespace {

int32_t draw_dtype(Random& r) { return int32_t(r.integer(MICA_FP32, MICA_BF16 + 1)); }

Layout draw_input_layout(Random& r) { return r.chance(0.5) ? Layout::kRowsFirst : Layout(r.integer(0, 6)); }
// Outputs may not overlap: no shared axes.
Layout draw_output_layout(Random& r) { return r.chance(0.5) ? Layout::kRowsFirst : Layout(r.integer(0, 4)); }

std::vector<int32_t> draw_lengths(Random& r, int64_t count, int64_t longest) {
  std::vector<int32_t> lengths;
  for (int64_t n = 0; n < count; ++n) lengths.push_back(r.chance(0.1) ? 0 : int32_t(r.integer(0, longest + 1)));
  return lengths;
}

// Per sequence, at most what it has room for.
std::vector<int32_t> draw_used(Random& r, const std::vector<int32_t>& room) {
  std::vector<int32_t> used;
  used.reserve(room.size());
  for (const int32_t n : room) used.push_back(r.chance(0.3) ? n : int32_t(r.integer(0, n + 1)));
  return used;
}

void draw_shape(Random& r, Options& o) {
  const int64_t dims[] = {1, 8, 16, 24, 32, 40, 59, 64, 72, 80, 96, 111, 128, 192, 256};
  o.dtype = draw_dtype(r);
  o.batch = r.integer(1, 5);
  o.heads_k = r.integer(1, 4);
  o.heads_q = o.heads_k * r.integer(1, 5);
  o.len_q = r.chance(0.3) ? r.integer(0, 5) : r.integer(1, 80);
  o.len_k = r.chance(0.2) ? r.integer(0, 5) : r.integer(1, 200);
  o.dim = dims[r.integer(0, 15)];
  o.dim_v = r.chance(0.7) ? 0 : dims[r.integer(0, 15)];
  o.alignment = r.chance(0.3) ? 16 : 0;
  o.layout_q = draw_input_layout(r), o.layout_k = draw_input_layout(r), o.layout_v = draw_input_layout(r);
  o.layout_o = draw_output_layout(r), o.layout_gradients = draw_output_layout(r);
  o.layout_score = r.chance(0.2) ? Layout::kSpread : draw_output_layout(r);
  o.layout_rows = r.chance(0.2) ? Layout::kSpread : draw_output_layout(r);
}

void draw_mask_and_score(Random& r, Options& o) {
  if (r.chance(0.5)) o.causal = int32_t(r.integer(1, 3));
  if (r.chance(0.4)) o.window_left = r.integer(0, o.len_k + 5);
  if (r.chance(0.3)) o.window_right = o.causal ? 0 : r.integer(0, o.len_k + 5);
  if (r.chance(0.2)) o.chunk = r.integer(1, o.len_k + 6);
  o.has_alibi = r.chance(0.3);
  o.alibi_per_batch = r.chance(0.5);
  if (!o.causal) o.diagonal = int32_t(r.integer(1, 3));
  o.has_mask = r.chance(0.3);
  o.mask_axes = uint32_t(r.integer(0, 16));
  o.mask_empty_rows = r.chance(0.3);
  if (r.chance(0.3)) {
    o.bias_dtype = draw_dtype(r);
    o.bias_axes = uint32_t(r.integer(0, 16));
    o.bias_has_minus_infinity = r.chance(0.3);
    o.d_bias_dtype = draw_dtype(r);
  }
  if (r.chance(0.3)) {
    o.sinks_dtype = draw_dtype(r);
    o.sinks_shift = 2 * r.normal();
    o.d_sinks_dtype = draw_dtype(r);
  }
  if (r.chance(0.3)) o.scale = float(0.05 + 0.4 * r.uniform());
  if (r.chance(0.3)) o.softcap = float(1 + 10 * r.uniform());
}

void draw_sequences(Random& r, Options& o) {
  std::vector<int32_t> room_q(size_t(o.batch), int32_t(o.len_q)), room_k(size_t(o.batch), int32_t(o.len_k));
  if (r.chance(0.3)) o.packed_q = room_q = draw_lengths(r, o.batch, o.len_q);
  const bool has_cache = r.chance(0.4);
  if (has_cache) {
    const int64_t page_sizes[] = {0, 1, 3, 16, 24, 32, 40, 64};
    o.page_size = page_sizes[r.integer(0, 8)];
    o.has_batch_idx = o.page_size == 0 && r.chance(0.4);
    if (r.chance(0.4)) o.len_new = std::min<int64_t>(r.integer(1, 9), o.len_k);
    if (o.layout_k == Layout::kSharedHead || o.layout_k == Layout::kSharedBatch) o.layout_k = Layout::kHeadsFirst;
    if (o.layout_v == Layout::kSharedHead || o.layout_v == Layout::kSharedBatch) o.layout_v = Layout::kPadded;
  } else if (r.chance(0.5)) {
    o.packed_k = room_k = draw_lengths(r, o.batch, o.len_k);
  }
  if (r.chance(0.3)) o.used_q = draw_used(r, room_q);
  if (o.len_new > 0 || r.chance(0.4)) {
    for (int32_t& n : room_k) n -= int32_t(o.len_new);
    o.used_k = room_k = draw_used(r, room_k);
  }
  if (r.chance(0.3)) o.leftpad = draw_used(r, room_k);
  if (r.chance(0.3)) o.pair_shape_cut = r.integer(0, 7);
  if (o.len_new > 0 && o.dim >= 2 && r.chance(0.6)) {
    o.rotary_dim = 2 * r.integer(1, o.dim / 2 + 1);
    o.rotary_interleaved = r.chance(0.5);
    if (r.chance(0.3)) o.rotary_dtype = o.dtype;
  }
}

void draw_results(Random& r, Options& o) {
  if (r.chance(0.3)) o.dropout = float(0.6 * r.uniform());
  o.rng_from_memory = r.chance(0.5);
  o.rng_seed = r.next(), o.rng_offset = r.next();
  o.deterministic = r.chance(0.3);
  o.batch_invariant = r.chance(0.3);
  o.o_fp32 = r.chance(0.2);
  const int32_t splits[] = {0, 0, 0, 1, 2, 3, 7};
  o.num_splits = splits[r.integer(0, 7)];
  o.want_probs = o.num_splits <= 1 && r.chance(0.5);
  if (has_gradients(o) && r.chance(0.7)) {
    o.gradients = r.chance(0.7) ? kGradQkv : uint32_t(r.integer(1, 8));
    if (o.bias_dtype && r.chance(0.7)) o.gradients |= kGradBias;
    if (o.sinks_dtype && r.chance(0.7)) o.gradients |= kGradSinks;
    o.has_d_lse = r.chance(0.4);
    o.d_o_fp32 = r.chance(0.2);
    o.gradients_fp32 = r.chance(0.2);
  } else {
    o.want_lse = r.chance(0.8);
  }
}

}  // namespace

std::vector<Options> random_options(int count) {
  CaseTable table;
  for (int n = 0; n < count; ++n) {
    Random r(uint64_t(n) * 7919 + 1);
    Options o;
    draw_shape(r, o);
    draw_mask_and_score(r, o);
    draw_sequences(r, o);
    draw_results(r, o);
    char name[32];
    std::snprintf(name, sizeof name, "random_%03d", n);
    table.add_one(name, o);
  }
  return table.take();
}

}  // namespace mica::conformance
