// SPDX-License-Identifier: Apache-2.0
// A case as data: every option of the library with its default. What is not said here is drawn from the seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mica/mica.h"

namespace mica::conformance {

// How the axes (batch, row, head, dim) lie in memory. The gaps that kPadded leaves hold NaN.
enum class Layout {
  kRowsFirst,    // (batch, row, head, dim), dense
  kHeadsFirst,   // (batch, head, row, dim), dense
  kPadded,       // rows of dim + 3 elements, further gaps after heads and rows
  kNegative,     // batch, row and head run backwards (inputs)
  kSharedHead,   // head stride 0 (inputs)
  kSharedBatch,  // batch stride 0 (inputs)
  kSpread        // last stride 2 (tensors whose last dimension need not be dense)
};

// Where v lies.
enum class PlaceOfV {
  kApart,  // in a tensor of its own
  kInK,    // v is columns of k
  kLikeK,  // apart, but with the strides of k
};

// Which of q, k and v are e4m3; the type of the others and of o is Options::dtype.
enum class Fp8 { kNone, kKeys, kAll };

// By what the factors of e4m3 go.
enum class Factors { kNone, kTensor, kHead, kSequence, kPage };

// Axes of (batch, head, query, key) along which a mask or bias varies; the others have size 1.
enum Axes : uint32_t { kAxisBatch = 1, kAxisHead = 2, kAxisQuery = 4, kAxisKey = 8, kAllAxes = 15 };

// Gradients asked for.
enum Gradients : uint32_t {
  kGradQ = 1,
  kGradK = 2,
  kGradV = 4,
  kGradBias = 8,
  kGradSinks = 16,
  kGradQkv = 7,
  kNoGradients = 0
};

struct Options {
  std::string name;
  int32_t dtype = MICA_FP32;
  Fp8 fp8 = Fp8::kNone;
  Factors factors = Factors::kNone;  // kSequence: for each sequence and head; kPage: for each page and head
  double factor_spread = 0;          // a factor is from 2^-factor_spread to 2^factor_spread times as large
  int64_t batch = 2, heads_q = 2, heads_k = 2;
  int64_t len_q = 33, len_k = 47;  // packed: the longest sequence
  int64_t dim = 32, dim_v = 0;     // dim_v 0: as dim
  PlaceOfV place_of_v = PlaceOfV::kApart;
  int64_t v_column = 0;  // kInK: v's first column in k
  bool has_qv = false;   // a second query, for the values

  Layout layout_q = Layout::kRowsFirst, layout_k = Layout::kRowsFirst, layout_v = Layout::kRowsFirst;
  Layout layout_o = Layout::kRowsFirst, layout_gradients = Layout::kRowsFirst;
  Layout layout_score = Layout::kRowsFirst;  // mask, bias, ALiBi, sinks, block table, rotary tables
  Layout layout_rows = Layout::kRowsFirst;   // lse, probs, d_lse, d_bias, d_sinks
  int32_t alignment = 0;   // of every tensor; 0: the element's size, and the addresses are no better aligned than that
  double amplitude = 1.0;  // of q, k and v
  // A row of q and k is the same in all columns: keys are the larger the nearer they are to the first, rows of q differ
  // by factors of 2. So e4m3's products are summed exactly, however large the scores.
  bool rising_scores = false;
  bool has_loud_key = false;  // a sequence's last one: its k and v are 2^30 times as large

  int32_t causal = MICA_CAUSAL_NONE;
  int32_t diagonal = MICA_DIAGONAL_FROM_CAUSAL;
  int64_t window_left = MICA_UNLIMITED, window_right = MICA_UNLIMITED;
  int64_t chunk = 0;
  bool has_mask = false;
  uint32_t mask_axes = kAllAxes;
  double mask_density = 0.7;  // of true
  bool mask_empty_rows = false;
  int64_t mask_last_keys = 0;  // with has_mask: it is about so many keys at the end

  float scale = 0, softcap = 0;
  bool has_alibi = false, alibi_per_batch = false;
  int32_t bias_dtype = MICA_NONE;
  uint32_t bias_axes = kAllAxes;
  bool bias_has_minus_infinity = false;
  int32_t sinks_dtype = MICA_NONE;
  double sinks_shift = 0;  // about this value

  // Lengths, one per sequence; empty: not given.
  std::vector<int32_t> packed_q, packed_k;  // lengths behind cu_seqlens
  int64_t hint_q = 0, hint_k = 0;           // how long the longest is said to be; 0: as it is
  std::vector<int32_t> used_q, used_k;
  bool has_batch_idx = false;  // k has batch + 2 slots, in a shuffled order
  std::vector<int32_t> leftpad;
  int64_t page_size = 0;
  int64_t pair_shape_cut = 0;  // packed or cached: mask, bias and probs are this much shorter than the longest sequence
  int64_t len_prefix = 0;      // keys that all sequences share, before their own
  int64_t len_new = 0;
  int64_t rotary_dim = 0;
  int32_t rotary_interleaved = 0;
  int32_t rotary_dtype = MICA_FP32;

  float dropout = 0;
  bool rng_from_memory = false;
  uint64_t rng_seed = 0x123456789abcdef0u, rng_offset = 77;

  mica_place place = {};

  int32_t num_splits = 0, deterministic = 0, batch_invariant = 0;
  bool want_lse = true, want_probs = false;
  int64_t row_step = 1;  // of each head every so manieth row is compared, of the others that they are numbers
  bool o_fp32 = false;

  uint32_t gradients = kNoGradients;
  int64_t piece_keys = 0;      // on a GPU: backward by pieces of so many keys that share a workspace (mica_pieces)
  bool pieces_beside = false;  // every second one as if on another stream
  bool has_d_lse = false;
  bool d_o_fp32 = false, gradients_fp32 = false;
  int32_t d_bias_dtype = MICA_FP32, d_sinks_dtype = MICA_FP32;

  int32_t q_dtype() const { return fp8 == Fp8::kAll ? MICA_FP8_E4M3 : dtype; }
  int32_t k_dtype() const { return fp8 == Fp8::kNone ? dtype : MICA_FP8_E4M3; }
  bool packs_q() const { return !packed_q.empty(); }
  bool packs_k() const { return !packed_k.empty(); }
  bool is_cached() const { return packs_k() || page_size > 0 || !used_k.empty(); }
  // Whether a row's position hides keys from it.
  bool has_band() const { return causal || window_left != MICA_UNLIMITED || window_right != MICA_UNLIMITED || chunk; }
  int64_t value_dim() const { return dim_v ? dim_v : dim; }
  int64_t product_dim() const { return dim + (has_qv ? value_dim() : 0); }
  bool is_backward() const { return gradients != kNoGradients; }
};

}  // namespace mica::conformance
