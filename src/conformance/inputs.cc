// SPDX-License-Identifier: Apache-2.0
#include "conformance/inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace mica::conformance {
namespace {

uint64_t hash_of(const std::string& name) {
  uint64_t hash = 1469598103934665603u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

int64_t longest(const std::vector<int32_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

// Rows that a slot of k offers to a sequence: whole pages when paged.
int64_t capacity(const Options& o) {
  return o.page_size > 0 ? (o.len_k + o.page_size - 1) / o.page_size * o.page_size : o.len_k;
}

// Packed sequences with two rows before the first and three after the last that belong to nobody.
constexpr int32_t kRowsBefore = 2, kRowsAfter = 3;
std::vector<int32_t> cumulate(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> sums = {kRowsBefore};
  for (const int32_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

void fill_all(HostTensor& t, Random& random, double amplitude) {
  const int64_t* n = t.description.shape;
  for (int64_t a = 0; a < n[0]; ++a)
    for (int64_t b = 0; b < n[1]; ++b)
      for (int64_t c = 0; c < n[2]; ++c)
        for (int64_t d = 0; d < n[3]; ++d) t.set(a, b, c, d, amplitude * random.normal());
}

void make_vectors(Inputs& x, Random& random) {
  const Options& o = x.options;
  if (o.packs_q()) x.cu_seqlens_q = cumulate(o.packed_q);
  if (o.packs_k()) x.cu_seqlens_k = cumulate(o.packed_k);
  if (o.has_batch_idx) {
    std::vector<int32_t> slots;
    for (int64_t s = 0; s < o.batch + 2; ++s) slots.push_back(int32_t(s));
    for (size_t n = slots.size(); n > 1; --n) std::swap(slots[n - 1], slots[size_t(random.integer(0, int64_t(n)))]);
    x.batch_idx.assign(slots.begin(), slots.begin() + o.batch);
  }
  if (o.rng_from_memory) x.rng_state = {int64_t(o.rng_seed), int64_t(o.rng_offset)};

  for (int64_t b = 0; b < o.batch; ++b) {
    SequenceView s = {};
    const auto at = size_t(b);
    s.q_slot = o.packs_q() ? 0 : b;
    s.q_first = o.packs_q() ? x.cu_seqlens_q[at] : 0;
    s.room_q = o.packs_q() ? o.packed_q[at] : o.len_q;
    s.len_q = o.used_q.empty() ? s.room_q : o.used_q[at];
    s.slot_len_k = o.packs_k() ? o.packed_k[at] : capacity(o);
    s.used_k = o.used_k.empty() ? s.slot_len_k - o.len_new : o.used_k[at];
    s.leftpad = o.leftpad.empty() ? 0 : o.leftpad[at];
    s.new_from = s.used_k - s.leftpad;
    s.len_k = s.new_from + o.len_new;
    x.sequences.push_back(s);
  }
}

void make_block_table(Inputs& x, Random& random) {
  const Options& o = x.options;
  if (o.page_size == 0) return;
  const int64_t blocks = capacity(o) / o.page_size, pages = o.batch * blocks + 1;
  x.block_table = make_tensor(MICA_INT32, {o.batch, blocks, 1, 1}, o.layout_score, 0);
  std::vector<int64_t> order;
  for (int64_t p = 0; p < pages; ++p) order.push_back(p);
  for (size_t n = order.size(); n > 1; --n) std::swap(order[n - 1], order[size_t(random.integer(0, int64_t(n)))]);
  for (int64_t b = 0; b < o.batch; ++b)
    for (int64_t p = 0; p < blocks; ++p) {
      // Entries past the last key are nobody's business: one that points nowhere must not be followed.
      const bool in_use = p * o.page_size < x.sequences[size_t(b)].leftpad + x.sequences[size_t(b)].len_k;
      x.block_table.set(b, p, 0, 0, in_use ? double(order[size_t(b * blocks + p)]) : -7.0);
    }
}

void make_query_side(Inputs& x, Random& random) {
  const Options& o = x.options;
  const int64_t slots = o.packs_q() ? 1 : o.batch;
  const int64_t rows = o.packs_q() ? x.cu_seqlens_q.back() + kRowsAfter : o.len_q;
  const int32_t o_dtype = o.o_fp32 ? MICA_FP32 : o.dtype, grad = o.gradients_fp32 ? MICA_FP32 : o.dtype;
  x.q = make_tensor(o.q_dtype(), {slots, rows, o.heads_q, o.dim}, o.layout_q, o.alignment);
  x.o = make_tensor(o_dtype, {slots, rows, o.heads_q, o.value_dim()}, o.layout_o, o.alignment);
  if (o.has_qv) x.qv = make_tensor(o.dtype, {slots, rows, o.heads_q, o.value_dim()}, o.layout_q, o.alignment);
  if (o.want_lse) x.lse = make_tensor(MICA_FP32, {slots, o.heads_q, rows, 1}, o.layout_rows, 0);
  if (o.is_backward()) {
    x.d_o =
        make_tensor(o.d_o_fp32 ? MICA_FP32 : o.dtype, {slots, rows, o.heads_q, o.value_dim()}, o.layout_q, o.alignment);
    if (o.has_d_lse) x.d_lse = make_tensor(MICA_FP32, {slots, o.heads_q, rows, 1}, o.layout_rows, 0);
    if (o.gradients & kGradQ)
      x.dq = make_tensor(grad, {slots, rows, o.heads_q, o.dim}, o.layout_gradients, o.alignment);
  }
  for (const SequenceView& s : x.sequences)
    for (int64_t i = 0; i < s.len_q; ++i)
      for (int64_t h = 0; h < o.heads_q; ++h) {
        const double of_row = std::ldexp(1.0, int(-i % 3));
        for (int64_t d = 0; d < o.dim; ++d)
          x.q.set(s.q_slot, s.q_first + i, h, d, o.amplitude * (o.rising_scores ? of_row : random.normal()));
        for (int64_t d = 0; d < (o.has_qv ? o.value_dim() : 0); ++d)
          x.qv.set(s.q_slot, s.q_first + i, h, d, o.amplitude * random.normal());
        if (!o.is_backward()) continue;
        for (int64_t d = 0; d < o.value_dim(); ++d) x.d_o.set(s.q_slot, s.q_first + i, h, d, random.normal());
        if (o.has_d_lse) x.d_lse.set(s.q_slot, h, s.q_first + i, 0, random.normal());
      }
}

void make_key_side(Inputs& x, Random& random) {
  const Options& o = x.options;
  int64_t slots = o.batch + (o.has_batch_idx ? 2 : 0), rows = o.len_k;
  if (o.page_size > 0) {
    slots = o.batch * x.block_table.description.shape[1] + 1;
    rows = o.page_size;
  } else if (o.packs_k()) {
    slots = 1;
    rows = x.cu_seqlens_k.back() + kRowsAfter;
  }
  const int32_t grad = o.gradients_fp32 ? MICA_FP32 : o.dtype;
  x.k = make_tensor(o.k_dtype(), {slots, rows, o.heads_k, o.dim}, o.layout_k, o.alignment);
  const bool like_k = o.place_of_v == PlaceOfV::kLikeK;
  x.v = make_tensor(o.k_dtype(), {slots, rows, o.heads_k, like_k ? o.dim : o.value_dim()}, o.layout_v, o.alignment);
  x.v.description.shape[3] = o.value_dim();
  if (o.gradients & kGradK) x.dk = make_tensor(grad, {slots, rows, o.heads_k, o.dim}, o.layout_gradients, o.alignment);
  if (o.gradients & kGradV)
    x.dv = make_tensor(grad, {slots, rows, o.heads_k, o.value_dim()}, o.layout_gradients, o.alignment);
  for (int64_t b = 0; b < o.batch; ++b) {
    const SequenceView& s = x.sequences[size_t(b)];
    for (int64_t j = 0; j < s.new_from; ++j)
      for (int64_t h = 0; h < o.heads_k; ++h) {
        int64_t slot, row;
        x.locate_key(b, s.leftpad + j, slot, row);
        const double of_key = 1 - double(j) / double(s.new_from);
        const double amplitude = std::ldexp(o.amplitude, o.has_loud_key && j == s.new_from - 1 ? 30 : 0);
        for (int64_t d = 0; d < o.dim; ++d)
          x.k.set(slot, row, h, d, amplitude * (o.rising_scores ? of_key : random.normal()));
        if (o.place_of_v == PlaceOfV::kInK) continue;
        for (int64_t d = 0; d < o.value_dim(); ++d) x.v.set(slot, row, h, d, amplitude * random.normal());
      }
  }
  if (o.place_of_v == PlaceOfV::kInK) {
    x.v = x.k;
    x.v.description.shape[3] = o.value_dim();
    x.v.origin += o.v_column;
  }
  if (o.len_new == 0) return;
  x.k_new = make_tensor(o.q_dtype(), {o.batch, o.len_new, o.heads_k, o.dim}, o.layout_q, o.alignment);
  x.v_new = make_tensor(o.q_dtype(), {o.batch, o.len_new, o.heads_k, o.value_dim()}, o.layout_q, o.alignment);
  fill_all(x.k_new, random, o.amplitude);
  fill_all(x.v_new, random, o.amplitude);
  if (o.rotary_dim == 0) return;
  const int64_t positions = capacity(o);
  x.rotary_cos = make_tensor(o.rotary_dtype, {positions, o.rotary_dim / 2, 1, 1}, o.layout_score, 0);
  x.rotary_sin = make_tensor(o.rotary_dtype, {positions, o.rotary_dim / 2, 1, 1}, o.layout_score, 0);
  for (int64_t p = 0; p < positions; ++p)
    for (int64_t d = 0; d < o.rotary_dim / 2; ++d) {
      const double angle = double(p) * std::pow(10000.0, -2.0 * double(d) / double(o.rotary_dim));
      x.rotary_cos.set(p, d, 0, 0, std::cos(angle));
      x.rotary_sin.set(p, d, 0, 0, std::sin(angle));
    }
}

void make_prefix(Inputs& x, Random& random) {
  const Options& o = x.options;
  if (o.len_prefix == 0) return;
  x.k_prefix = make_tensor(o.dtype, {1, o.len_prefix, o.heads_k, o.dim}, o.layout_k, o.alignment);
  x.v_prefix = make_tensor(o.dtype, {1, o.len_prefix, o.heads_k, o.value_dim()}, o.layout_v, o.alignment);
  fill_all(x.k_prefix, random, o.amplitude);
  fill_all(x.v_prefix, random, o.amplitude);
}

void make_factors(Inputs& x, Random& random) {
  const Options& o = x.options;
  if (o.factors == Factors::kNone) return;
  const bool by_page = o.factors == Factors::kPage;
  const int64_t heads = o.factors == Factors::kTensor ? 1 : o.heads_k;
  const int64_t sequences = o.factors == Factors::kSequence ? o.batch : 1;
  const auto make = [&](HostTensor& t, int64_t slots, double spread) {
    t = make_tensor(MICA_FP32, {slots, heads, 1, 1}, o.layout_score, 0);
    for (int64_t s = 0; s < slots; ++s)
      for (int64_t h = 0; h < heads; ++h) {
        const double factor = 0.5 + random.uniform();
        t.set(s, h, 0, 0, spread == 0 ? factor : factor * std::exp2(spread * (2 * random.uniform() - 1)));
      }
  };
  const int64_t key_slots = by_page ? x.k.description.shape[0] : sequences;
  if (o.fp8 == Fp8::kAll) make(x.q_descale, sequences, 0);
  make(x.k_descale, key_slots, 0);
  make(x.v_descale, key_slots, o.factor_spread);
}

// The shape of mask, bias and probs over (batch, head, query, key).
void pair_shape(const Inputs& x, uint32_t axes, int64_t (&shape)[4]) {
  const Options& o = x.options;
  const int64_t rows = o.packs_q() ? std::max<int64_t>(longest(o.packed_q) - o.pair_shape_cut, 0) : o.len_q;
  int64_t keys = capacity(o);
  if (o.packs_k()) keys = longest(o.packed_k);
  if (o.is_cached()) keys = std::max<int64_t>(keys - o.pair_shape_cut, 0);
  shape[0] = axes & kAxisBatch ? o.batch : 1;
  shape[1] = axes & kAxisHead ? o.heads_q : 1;
  shape[2] = axes & kAxisQuery ? rows : 1;
  shape[3] = axes & kAxisKey ? keys : 1;
}

void make_score_side(Inputs& x, Random& random) {
  const Options& o = x.options;
  int64_t shape[4];
  if (o.want_probs) {
    pair_shape(x, kAllAxes, shape);
    x.probs = make_tensor(MICA_FP32, shape, o.layout_rows, 0);
  }
  if (o.has_mask) {
    pair_shape(x, o.mask_axes, shape);
    if (o.mask_last_keys) shape[3] = o.mask_last_keys;
    x.mask = make_tensor(MICA_BOOL, shape, o.layout_score, o.alignment);
    for (int64_t b = 0; b < shape[0]; ++b)
      for (int64_t h = 0; h < shape[1]; ++h)
        for (int64_t i = 0; i < shape[2]; ++i)
          for (int64_t j = 0; j < shape[3]; ++j) {
            const bool hidden_row = o.mask_empty_rows && (i + h) % 3 == 1;
            // Any nonzero byte is true.
            const unsigned char truths[4] = {1, 2, 0x80, 0xff};
            const bool is_true = !hidden_row && random.chance(o.mask_density);
            *static_cast<unsigned char*>(x.mask.address(x.mask.index(b, h, i, j))) =
                is_true ? truths[random.integer(0, 4)] : 0;
          }
  }
  if (o.bias_dtype) {
    pair_shape(x, o.bias_axes, shape);
    x.bias = make_tensor(o.bias_dtype, shape, o.layout_score, o.alignment);
    fill_all(x.bias, random, 1.0);
    if (o.bias_has_minus_infinity)
      for (int64_t b = 0; b < shape[0]; ++b)
        for (int64_t h = 0; h < shape[1]; ++h)
          for (int64_t i = 0; i < shape[2]; ++i)
            for (int64_t j = 0; j < shape[3]; ++j)
              if (random.chance(0.3) || i % 7 == 3) x.bias.set(b, h, i, j, -std::numeric_limits<double>::infinity());
    if (o.gradients & kGradBias) x.d_bias = make_tensor(o.d_bias_dtype, shape, o.layout_rows, 0);
  }
  if (o.has_alibi) {
    x.alibi = make_tensor(MICA_FP32, {o.alibi_per_batch ? o.batch : 1, o.heads_q, 1, 1}, o.layout_score, 0);
    for (int64_t b = 0; b < x.alibi.description.shape[0]; ++b)
      for (int64_t h = 0; h < o.heads_q; ++h) x.alibi.set(b, h, 0, 0, 0.3 * random.uniform());
  }
  if (o.sinks_dtype) {
    x.sinks = make_tensor(o.sinks_dtype, {o.heads_q, 1, 1, 1}, o.layout_score, 0);
    for (int64_t h = 0; h < o.heads_q; ++h) x.sinks.set(h, 0, 0, 0, o.sinks_shift + random.normal());
    if (o.gradients & kGradSinks) x.d_sinks = make_tensor(o.d_sinks_dtype, {o.heads_q, 1, 1, 1}, o.layout_rows, 0);
  }
}

void describe(Inputs& x) {
  const Options& o = x.options;
  mica_attention& a = x.forward;
  a.q = x.q.description, a.k = x.k.description, a.v = x.v.description, a.o = x.o.description;
  a.lse = x.lse.description, a.probs = x.probs.description;
  a.mask.causal = o.causal, a.mask.diagonal = o.diagonal;
  a.mask.window_left = o.window_left, a.mask.window_right = o.window_right;
  a.attention_chunk = o.chunk;
  a.mask.boolean = x.mask.description;
  a.mask_last_keys = o.mask_last_keys;
  a.score.scale = o.scale, a.score.softcap = o.softcap;
  a.score.alibi = x.alibi.description, a.score.bias = x.bias.description, a.score.sinks = x.sinks.description;
  const auto carry = [&a](bool is_there, uint32_t vector) { a.sequences.vectors |= is_there ? vector : 0u; };
  carry(o.packs_q(), MICA_CU_SEQLENS_Q);
  carry(o.packs_k(), MICA_CU_SEQLENS_K);
  carry(!o.used_q.empty(), MICA_SEQUSED_Q);
  carry(!o.used_k.empty(), MICA_SEQUSED_K);
  carry(o.has_batch_idx, MICA_CACHE_BATCH_IDX);
  carry(!o.leftpad.empty(), MICA_CACHE_LEFTPAD);
  a.sequences.batch = o.packs_q() ? o.batch : 0;
  a.sequences.max_seqlen_q = o.hint_q > 0 ? o.hint_q : longest(o.packed_q);
  a.sequences.max_seqlen_k = o.hint_k > 0 ? o.hint_k : longest(o.packed_k);
  a.sequences.block_table = x.block_table.description;
  a.append = {x.k_new.description,      x.v_new.description,  x.rotary_cos.description,
              x.rotary_sin.description, o.rotary_interleaved, 0};
  a.place = o.place;
  a.quantisation = {x.q_descale.description, x.k_descale.description, x.v_descale.description,
                    o.factors == Factors::kPage ? 1 : 0, 0};
  a.k_prefix = x.k_prefix.description, a.v_prefix = x.v_prefix.description;
  a.qv = x.qv.description;
  a.dropout = {o.dropout, o.rng_from_memory ? 1 : 0};
  a.control = {o.num_splits, o.deterministic, o.batch_invariant, 0};
}

}  // namespace

int64_t HostTensor::size() const {
  const int64_t* n = description.shape;
  return n[0] * n[1] * n[2] * n[3];
}

int64_t HostTensor::index(int64_t a, int64_t b, int64_t c, int64_t d) const {
  const int64_t* s = description.stride;
  return origin + a * s[0] + b * s[1] + c * s[2] + d * s[3];
}

double HostTensor::get(int64_t a, int64_t b, int64_t c, int64_t d) const {
  return load_element(description.dtype, address(index(a, b, c, d)));
}

void HostTensor::set(int64_t a, int64_t b, int64_t c, int64_t d, double value) {
  store_element(description.dtype, address(index(a, b, c, d)), value);
}

HostTensor make_tensor(int32_t dtype, const int64_t (&shape)[4], Layout layout, int32_t alignment) {
  HostTensor t;
  t.description.dtype = dtype;
  t.description.alignment = alignment;
  // Axes from the innermost outwards, and the elements of padding that follow each.
  const int rows_first[4] = {3, 2, 1, 0}, heads_first[4] = {3, 1, 2, 0};
  const int* order = layout == Layout::kHeadsFirst ? heads_first : rows_first;
  const int64_t padding = layout == Layout::kPadded ? (alignment ? alignment : 3) : 0;
  int64_t extent = layout == Layout::kSpread ? 2 : 1;
  for (int n = 0; n < 4; ++n) {
    const int axis = order[n];
    t.description.shape[axis] = shape[axis];
    t.description.stride[axis] = extent;
    const bool shared = (layout == Layout::kSharedHead && axis == 2) || (layout == Layout::kSharedBatch && axis == 0);
    if (shared)
      t.description.stride[axis] = 0;
    else
      extent = extent * std::max<int64_t>(shape[axis], 1) + padding;
    if (layout == Layout::kNegative && axis != 3 && shape[axis] > 0) {
      t.origin += t.description.stride[axis] * (shape[axis] - 1);
      t.description.stride[axis] = -t.description.stride[axis];
    }
  }
  if (t.size() == 0) extent = 0, t.origin = 0;
  // Promise no more than holds: backwards strides may put the first element anywhere.
  if (alignment && t.origin * int64_t(element_bytes(dtype)) % alignment) t.description.alignment = 0;
  t.bytes.assign(size_t(extent) * element_bytes(dtype), 0xff);
  return t;
}

void Inputs::locate_key(int64_t b, int64_t position, int64_t& slot, int64_t& row) const {
  if (options.page_size > 0) {
    slot = int64_t(block_table.get(b, position / options.page_size, 0, 0));
    row = position % options.page_size;
  } else if (options.packs_k()) {
    slot = 0;
    row = cu_seqlens_k[size_t(b)] + position;
  } else {
    slot = options.has_batch_idx ? batch_idx[size_t(b)] : b;
    row = position;
  }
}

double Inputs::descale(const HostTensor& factors, int64_t b, int64_t slot, int64_t head_k) const {
  if (!factors.present()) return 1;
  const int64_t* n = factors.description.shape;
  const int64_t at = options.factors == Factors::kPage && &factors != &q_descale ? slot : b;
  return factors.get(n[0] == 1 ? 0 : at, n[1] == 1 ? 0 : head_k, 0, 0);
}

mica_attention Inputs::backward() const {
  mica_attention a = forward;
  a.probs = mica_tensor{};
  a.control.num_splits = 0;
  a.gradients = {d_o.description, d_lse.description,  dq.description,     dk.description,
                 dv.description,  d_bias.description, d_sinks.description};
  return a;
}

Inputs make_inputs(const Options& options) {
  Inputs x;
  x.options = options;
  Random random(hash_of(options.name));
  make_vectors(x, random);
  make_block_table(x, random);
  make_query_side(x, random);
  make_key_side(x, random);
  make_score_side(x, random);
  make_prefix(x, random);
  make_factors(x, random);
  describe(x);
  return x;
}

}  // namespace mica::conformance
