// SPDX-License-Identifier: Apache-2.0
#include "conformance/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

namespace mica::conformance {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double square(double x) { return x * x; }

double largest_root(const std::vector<double>& squares) {
  return squares.empty() ? 0.0 : std::sqrt(*std::max_element(squares.begin(), squares.end()));
}

void prepare(Expected& e, const HostTensor& t, Want want) {
  e.value.assign(size_t(t.size()), 0.0);
  e.want.assign(size_t(t.size()), want);
}

void put(Expected& e, const HostTensor& t, const int64_t (&at)[4], double value, Want want) {
  const int64_t* n = t.description.shape;
  const auto index = size_t(((at[0] * n[1] + at[1]) * n[2] + at[2]) * n[3] + at[3]);
  e.value[index] = value;
  e.want[index] = want;
}

// In double the order of the sum is free, and four sums that do not wait for each other take a third of the time.
double dot(const double* a, const double* b, int64_t count) {
  double sum[4] = {};
  int64_t n = 0;
  for (; n + 4 <= count; n += 4)
    for (int64_t lane = 0; lane < 4; ++lane) sum[lane] += a[n + lane] * b[n + lane];
  for (; n < count; ++n) sum[0] += a[n] * b[n];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
// The textbook's: one after the other.
float dot(const float* a, const float* b, int64_t count) {
  float sum = 0;
  for (int64_t n = 0; n < count; ++n) sum += a[n] * b[n];
  return sum;
}

// An element of mask or bias; axes of size 1 broadcast. False: outside the shape.
bool read_pair(const HostTensor& t, int64_t b, int64_t h, int64_t i, int64_t j, double& value) {
  const int64_t* n = t.description.shape;
  if (n[0] == 1) b = 0;
  if (n[1] == 1) h = 0;
  if (n[2] == 1) i = 0;
  if (n[3] == 1) j = 0;
  if (b >= n[0] || h >= n[1] || i >= n[2] || j >= n[3]) return false;
  value = t.get(b, h, i, j);
  return true;
}

// T accumulates. double: nothing is rounded. float: the textbook in the case's precision.
template <class T>
class Attention {
 public:
  explicit Attention(const Inputs& inputs) : x_(inputs), o_(inputs.options) {}
  Results compute();

 private:
  static constexpr bool kNaive = std::is_same_v<T, float>;
  using Matrix = std::vector<T>;

  T rounded(T value) const { return kNaive ? T(round_to(o_.dtype, value)) : value; }
  // Scores of e4m3 products stay in fp32, and P, at most 1, becomes e4m3 times 256, before it is normalised.
  T rounded_score(T value) const { return o_.fp8 == Fp8::kAll ? value : rounded(value); }
  T rounded_weight(T value) const {
    return kNaive && o_.fp8 == Fp8::kAll ? T(round_to(MICA_FP8_E4M3, value * 256) / 256) : value;
  }
  int64_t shift(int32_t alignment, const SequenceView& s) const {
    return o_.place.shift + (alignment == 1 ? s.len_k - s.len_q : 0);
  }
  // Whether dropout keeps the pair: the bits are those of its place in the larger call.
  bool is_kept(const DropoutBits& bits, int64_t b, int64_t h, int64_t i, int64_t j) const {
    const mica_place& at = o_.place;
    const int64_t heads = at.heads ? at.heads : o_.heads_q;
    return bits.is_kept(uint32_t((at.batch_first + b) * heads + at.head_first + h),
                        uint32_t(at.row_first + i * (at.row_step ? at.row_step : 1)),
                        uint32_t(at.key_first + j * (at.key_step ? at.key_step : 1)));
  }
  bool is_visible(int64_t b, int64_t h, int64_t i, int64_t j) const;
  void rotate(T* row, int64_t position) const;
  void load_keys(int64_t b);
  void load_queries(int64_t b, int64_t h);
  void scores(int64_t b, int64_t h);
  void forward_head(int64_t b, int64_t h);
  void backward_head(int64_t b, int64_t h);
  int64_t bias_index(int64_t b, int64_t h, int64_t i, int64_t j) const;
  // Rows of neighbouring heads are others.
  bool is_compared(int64_t b, int64_t h, int64_t i) const { return (i + 5 * h + 3 * b) % o_.row_step == 0; }
  void unused_rows(int64_t b, int64_t h);
  void store_key_gradients(int64_t b);
  void store_sums();

  const Inputs& x_;
  const Options& o_;
  Results r_;
  // One sequence: keys and values (head, key, dim) and their gradients.
  Matrix k_, v_, dk_, dv_;
  // One head of it: (row, dim), (row, key), (row).
  Matrix q_, qv_, score_, cap_slope_, p_, p_sink_;
  std::vector<bool> kept_, empty_;
  Matrix d_bias_, d_sinks_;
  // Squares of the magnitudes of what is summed up over the rows, for Expected::terms.
  std::vector<double> dk_terms_, dv_terms_, d_bias_terms_, d_sinks_terms_;
};

// Keys of the prefix come first, and every row sees them.
template <class T>
bool Attention<T>::is_visible(int64_t b, int64_t h, int64_t i, int64_t j) const {
  const SequenceView& s = x_.sequences[size_t(b)];
  j -= o_.len_prefix;
  if (j < 0) return true;
  if (o_.causal && j > i + shift(o_.causal, s)) return false;
  const int64_t diagonal = i + shift(o_.causal ? o_.causal : o_.diagonal, s);
  if (o_.window_left != MICA_UNLIMITED && j < diagonal - o_.window_left) return false;
  if (o_.window_right != MICA_UNLIMITED && j > diagonal + o_.window_right) return false;
  if (o_.chunk > 0) {
    const auto chunk_of = [&](int64_t at) { return std::floor(double(at + o_.place.key_first) / double(o_.chunk)); };
    if (chunk_of(diagonal) != chunk_of(j)) return false;
  }
  double value;
  if (o_.mask_last_keys) {
    const int64_t column = j - (s.len_k - o_.mask_last_keys);
    return column < 0 ||
           x_.mask.get(x_.mask.description.shape[0] == 1 ? 0 : b, x_.mask.description.shape[1] == 1 ? 0 : h,
                       x_.mask.description.shape[2] == 1 ? 0 : i, column) != 0;
  }
  return !x_.mask.present() || (read_pair(x_.mask, b, h, i, j, value) && value != 0);
}

template <class T>
void Attention<T>::rotate(T* row, int64_t position) const {
  const int64_t half = o_.rotary_dim / 2;
  position = std::min(position, x_.rotary_cos.description.shape[0] - 1);
  for (int64_t n = 0; n < half; ++n) {
    const T c = T(x_.rotary_cos.get(position, n, 0, 0)), s = T(x_.rotary_sin.get(position, n, 0, 0));
    T& first = row[o_.rotary_interleaved ? 2 * n : n];
    T& second = row[o_.rotary_interleaved ? 2 * n + 1 : n + half];
    const T a = first, b = second;
    first = rounded(a * c - b * s);
    second = rounded(b * c + a * s);
  }
}

// Also says what append must have written into the cache.
template <class T>
void Attention<T>::load_keys(int64_t b) {
  const SequenceView& s = x_.sequences[size_t(b)];
  const int64_t dim = o_.dim, dim_v = o_.value_dim();
  const int64_t keys = o_.len_prefix + s.len_k;
  k_.assign(size_t(o_.heads_k * keys * dim), T(0));
  v_.assign(size_t(o_.heads_k * keys * dim_v), T(0));
  dk_.assign(k_.size(), T(0));
  dv_.assign(v_.size(), T(0));
  dk_terms_.assign(k_.size(), 0.0);
  dv_terms_.assign(v_.size(), 0.0);
  for (int64_t h = 0; h < o_.heads_k; ++h) {
    for (int64_t j = 0; j < o_.len_prefix; ++j) {
      for (int64_t d = 0; d < dim; ++d) k_[size_t((h * keys + j) * dim + d)] = T(x_.k_prefix.get(0, j, h, d));
      for (int64_t d = 0; d < dim_v; ++d) v_[size_t((h * keys + j) * dim_v + d)] = T(x_.v_prefix.get(0, j, h, d));
    }
    for (int64_t j = 0; j < s.len_k; ++j) {
      T* k = &k_[size_t((h * keys + o_.len_prefix + j) * dim)];
      T* v = &v_[size_t((h * keys + o_.len_prefix + j) * dim_v)];
      int64_t slot, row;
      x_.locate_key(b, s.leftpad + j, slot, row);
      const int64_t fresh = j - s.new_from;
      for (int64_t d = 0; d < dim; ++d) k[d] = T(fresh < 0 ? x_.k.get(slot, row, h, d) : x_.k_new.get(b, fresh, h, d));
      for (int64_t d = 0; d < dim_v; ++d)
        v[d] = T(fresh < 0 ? x_.v.get(slot, row, h, d) : x_.v_new.get(b, fresh, h, d));
      const double k_factor = x_.descale(x_.k_descale, b, slot, h), v_factor = x_.descale(x_.v_descale, b, slot, h);
      if (fresh < 0) {
        for (int64_t d = 0; d < dim; ++d) k[d] = T(k[d] * k_factor);
        for (int64_t d = 0; d < dim_v; ++d) v[d] = T(v[d] * v_factor);
        continue;
      }
      if (o_.rotary_dim) rotate(k, s.used_k + fresh);
      if (o_.fp8 != Fp8::kNone) {
        const bool divides = o_.fp8 == Fp8::kKeys;
        const auto store = [&](T* values, int64_t count, double factor, Expected& e, const HostTensor& t, bool turned) {
          for (int64_t d = 0; d < count; ++d) {
            // The quotient is one of fp32, by definition.
            const double stored =
                round_to(MICA_FP8_E4M3, divides ? float(values[d]) / float(factor) : double(values[d]));
            put(e, t, {slot, row, h, d}, stored, turned && d < o_.rotary_dim ? Want::kClose : Want::kExact);
            values[d] = T(stored * factor);
          }
        };
        store(k, dim, k_factor, r_.k, x_.k, true);
        store(v, dim_v, v_factor, r_.v, x_.v, false);
        continue;
      }
      for (int64_t d = 0; d < dim; ++d) {
        put(r_.k, x_.k, {slot, row, h, d}, double(k[d]), d < o_.rotary_dim ? Want::kClose : Want::kExact);
        k[d] = T(round_to(o_.dtype, k[d]));  // the cache holds the element type
      }
      for (int64_t d = 0; d < dim_v; ++d) put(r_.v, x_.v, {slot, row, h, d}, double(v[d]), Want::kExact);
    }
  }
}

template <class T>
void Attention<T>::load_queries(int64_t b, int64_t h) {
  const SequenceView& s = x_.sequences[size_t(b)];
  q_.assign(size_t(s.len_q * o_.dim), T(0));
  for (int64_t i = 0; i < s.len_q; ++i) {
    T* q = &q_[size_t(i * o_.dim)];
    const double factor = x_.descale(x_.q_descale, b, 0, h / (o_.heads_q / o_.heads_k));
    for (int64_t d = 0; d < o_.dim; ++d) q[d] = T(x_.q.get(s.q_slot, s.q_first + i, h, d) * factor);
    if (o_.rotary_dim) rotate(q, s.used_k + (o_.has_band() ? i : 0));
  }
  if (!o_.has_qv) return;
  qv_.assign(size_t(s.len_q * o_.value_dim()), T(0));
  for (int64_t i = 0; i < s.len_q; ++i)
    for (int64_t d = 0; d < o_.value_dim(); ++d)
      qv_[size_t(i * o_.value_dim() + d)] = T(x_.qv.get(s.q_slot, s.q_first + i, h, d));
}

// Fills score_, cap_slope_ (d score / d product), p_, p_sink_, empty_ and the LSE.
template <class T>
void Attention<T>::scores(int64_t b, int64_t h) {
  const SequenceView& s = x_.sequences[size_t(b)];
  const int64_t keys = o_.len_prefix + s.len_k;
  const int64_t dim_v = o_.value_dim(), head_k = h / (o_.heads_q / o_.heads_k);
  const T *k = k_.data() + head_k * keys * o_.dim, *v = v_.data() + head_k * keys * dim_v;
  const T scale = T(o_.scale != 0 ? double(o_.scale) : 1.0 / std::sqrt(double(o_.product_dim()))), cap = T(o_.softcap);
  const T slope = x_.alibi.present() ? T(x_.alibi.get(o_.alibi_per_batch ? b : 0, h, 0, 0)) : T(0);
  const T sink = x_.sinks.present() ? T(x_.sinks.get(h, 0, 0, 0)) : T(-kInfinity);
  const int64_t diagonal = shift(o_.causal ? o_.causal : o_.diagonal, s);
  score_.assign(size_t(s.len_q * keys), T(-kInfinity));
  cap_slope_.assign(score_.size(), T(0));
  p_.assign(score_.size(), T(0));
  p_sink_.assign(size_t(s.len_q), T(0));
  empty_.assign(size_t(s.len_q), false);
  for (int64_t i = 0; i < s.len_q; ++i) {
    if (!is_compared(b, h, i)) {
      if (x_.lse.present()) put(r_.lse, x_.lse, {s.q_slot, h, s.q_first + i, 0}, 0, Want::kNumber);
      continue;
    }
    T max = sink, max_precise = sink;
    Matrix precise(size_t(keys), T(-kInfinity));
    for (int64_t j = 0; j < keys; ++j) {
      if (!is_visible(b, h, i, j)) continue;
      T product = dot(&q_[size_t(i * o_.dim)], k + j * o_.dim, o_.dim);
      if (o_.has_qv) product += dot(&qv_[size_t(i * dim_v)], v + j * dim_v, dim_v);
      double added = 0;
      if (x_.bias.present()) read_pair(x_.bias, b, h, i, j, added);
      const T offset = T(added) - slope * T(std::abs(i + diagonal - j));
      const T scaled = rounded_score(product * scale);
      const T turn = cap > 0 ? std::tanh(scaled / cap) : T(0);
      const T capped = cap > 0 ? rounded_score(cap * turn) : scaled;
      precise[size_t(j)] = (cap > 0 ? cap * std::tanh(product * scale / cap) : product * scale) + offset;
      const auto at = size_t(i * keys + j);
      score_[at] = rounded_score(capped + offset);
      cap_slope_[at] = cap > 0 ? scale * (1 - turn * turn) : scale;
      max = std::max(max, score_[at]);
      max_precise = std::max(max_precise, precise[size_t(j)]);
    }
    T lse = T(-kInfinity);
    empty_[size_t(i)] = max == T(-kInfinity);
    if (!empty_[size_t(i)]) {
      T sum = std::exp(sink - max), sum_precise = std::exp(sink - max_precise);
      for (int64_t j = 0; j < keys; ++j) {
        sum += std::exp(score_[size_t(i * keys + j)] - max);
        sum_precise += std::exp(precise[size_t(j)] - max_precise);
      }
      for (int64_t j = 0; j < keys; ++j)
        p_[size_t(i * keys + j)] = rounded_score(rounded_weight(std::exp(score_[size_t(i * keys + j)] - max)) / sum);
      p_sink_[size_t(i)] = rounded(std::exp(sink - max) / sum);
      lse = max_precise + std::log(sum_precise);
    }
    if (!std::isinf(lse)) r_.largest_lse = std::max(r_.largest_lse, std::fabs(double(lse)));
    if (x_.lse.present())
      put(r_.lse, x_.lse, {s.q_slot, h, s.q_first + i, 0}, double(lse), std::isinf(lse) ? Want::kExact : Want::kClose);
  }
}

template <class T>
void Attention<T>::forward_head(int64_t b, int64_t h) {
  const SequenceView& s = x_.sequences[size_t(b)];
  const int64_t keys = o_.len_prefix + s.len_k, dim_v = o_.value_dim();
  const T* v = v_.data() + h / (o_.heads_q / o_.heads_k) * keys * dim_v;
  const DropoutBits bits = {o_.rng_seed, o_.rng_offset, double(o_.dropout)};
  const T keep_scale = T(1.0 / (1.0 - double(o_.dropout)));
  kept_.assign(size_t(s.len_q * keys), true);
  Matrix sum(static_cast<size_t>(dim_v));
  for (int64_t i = 0; i < s.len_q; ++i) {
    if (!is_compared(b, h, i)) {
      for (int64_t d = 0; d < dim_v; ++d) put(r_.o, x_.o, {s.q_slot, s.q_first + i, h, d}, 0, Want::kNumber);
      continue;
    }
    std::fill(sum.begin(), sum.end(), T(0));
    bool sees_a_key = false;
    for (int64_t j = 0; j < keys; ++j) {
      const auto at = size_t(i * keys + j);
      if (o_.dropout > 0) kept_[at] = is_kept(bits, b, h, i, j);
      const bool hidden = score_[at] == T(-kInfinity);
      sees_a_key |= !hidden;
      if (x_.probs.present() && i < x_.probs.description.shape[2] && j < x_.probs.description.shape[3] && !hidden)
        put(r_.probs, x_.probs, {b, h, i, j}, double(kept_[at] ? p_[at] : -p_[at]), Want::kClose);
      if (hidden || !kept_[at]) continue;
      const T weight = o_.dropout > 0 ? rounded(p_[at] * keep_scale) : p_[at];
      for (int64_t d = 0; d < dim_v; ++d) sum[size_t(d)] += weight * v[j * dim_v + d];
    }
    for (int64_t d = 0; d < dim_v; ++d) {
      const T value = o_.o_fp32 ? sum[size_t(d)] : rounded(sum[size_t(d)]);
      put(r_.o, x_.o, {s.q_slot, s.q_first + i, h, d}, double(value), sees_a_key ? Want::kClose : Want::kExact);
    }
  }
}

// Where a pair's gradient goes in d_bias; -1: nowhere.
template <class T>
int64_t Attention<T>::bias_index(int64_t b, int64_t h, int64_t i, int64_t j) const {
  const int64_t* n = x_.d_bias.description.shape;
  if (n[0] == 1) b = 0;
  if (n[1] == 1) h = 0;
  if (n[2] == 1) i = 0;
  if (n[3] == 1) j = 0;
  return x_.d_bias.present() && i < n[2] && j < n[3] ? ((b * n[1] + h) * n[2] + i) * n[3] + j : -1;
}

template <class T>
void Attention<T>::backward_head(int64_t b, int64_t h) {
  const SequenceView& s = x_.sequences[size_t(b)];
  const int64_t keys = s.len_k, dim = o_.dim, dim_v = o_.value_dim(), head_k = h / (o_.heads_q / o_.heads_k);
  const T *k = k_.data() + head_k * keys * dim, *v = v_.data() + head_k * keys * dim_v;
  T *dk = dk_.data() + head_k * keys * dim, *dv = dv_.data() + head_k * keys * dim_v;
  const T keep_scale = T(1.0 / (1.0 - double(o_.dropout)));
  Matrix d_p(static_cast<size_t>(keys)), d_o(static_cast<size_t>(dim_v)), dq(static_cast<size_t>(dim));
  std::vector<double> o(static_cast<size_t>(dim_v));
  for (int64_t i = 0; i < s.len_q; ++i) {
    const T d_lse = x_.d_lse.present() ? T(x_.d_lse.get(s.q_slot, h, s.q_first + i, 0)) : T(0);
    for (int64_t d = 0; d < dim_v; ++d) d_o[size_t(d)] = T(x_.d_o.get(s.q_slot, s.q_first + i, h, d));
    std::fill(dq.begin(), dq.end(), T(0));
    std::fill(o.begin(), o.end(), 0.0);
    std::vector<double> dq_terms(dq.size(), 0.0);
    T delta = 0;
    double delta_terms = std::fabs(double(d_lse));
    for (int64_t j = 0; j < keys; ++j) {
      const auto at = size_t(i * keys + j);
      d_p[size_t(j)] = 0;
      if (score_[at] == T(-kInfinity) || !kept_[at]) continue;
      const T product = dot(d_o.data(), v + j * dim_v, dim_v);
      d_p[size_t(j)] = rounded(rounded(product) * keep_scale);
      delta += p_[at] * d_p[size_t(j)];
      delta_terms += std::fabs(double(p_[at] * d_p[size_t(j)]));
      const T weight = rounded(p_[at] * keep_scale);
      for (int64_t d = 0; d < dim_v; ++d) dv[j * dim_v + d] += weight * d_o[size_t(d)];
      if (kNaive) continue;
      for (int64_t d = 0; d < dim_v; ++d) {
        dv_terms_[size_t((head_k * keys + j) * dim_v + d)] += square(weight * d_o[size_t(d)]);
        o[size_t(d)] += double(weight) * double(v[j * dim_v + d]);
      }
    }
    // A backend takes delta as the product of d_o and a rounded o: independent errors, of which two deviations count.
    double products = 0;
    for (int64_t d = 0; d < dim_v; ++d) products += square(double(d_o[size_t(d)]) * o[size_t(d)]);
    delta_terms += 2 * std::sqrt(products);
    if (!empty_[size_t(i)]) d_sinks_[size_t(h)] += p_sink_[size_t(i)] * (d_lse - delta);
    d_sinks_terms_[size_t(h)] += square(p_sink_[size_t(i)] * delta_terms);
    double row_terms = 0;  // of the score's gradients
    for (int64_t j = 0; j < keys; ++j) {
      const auto at = size_t(i * keys + j);
      if (score_[at] == T(-kInfinity)) continue;
      const T d_score = rounded(p_[at] * (d_p[size_t(j)] - delta + d_lse));
      const double terms = double(p_[at]) * (std::fabs(double(d_p[size_t(j)])) + delta_terms);
      row_terms += terms;
      if (int64_t n = bias_index(b, h, i, j); n >= 0) {
        d_bias_[size_t(n)] += d_score;
        if (x_.bias.description.shape[3] != 1) d_bias_terms_[size_t(n)] += square(terms);
      }
      const T d_product = rounded(d_score * cap_slope_[at]);
      for (int64_t d = 0; d < dim; ++d) {
        dq[size_t(d)] += d_product * k[j * dim + d];
        dk[j * dim + d] += d_product * q_[size_t(i * dim + d)];
      }
      if (kNaive) continue;
      const double slope = double(cap_slope_[at]);
      for (int64_t d = 0; d < dim; ++d) {
        dq_terms[size_t(d)] += std::fabs(terms * slope * k[j * dim + d]);
        dk_terms_[size_t((head_k * keys + j) * dim + d)] += square(terms * slope * q_[size_t(i * dim + d)]);
      }
    }
    if (x_.bias.present() && x_.bias.description.shape[3] == 1)
      if (int64_t n = bias_index(b, h, i, 0); n >= 0) d_bias_terms_[size_t(n)] += square(row_terms);
    for (const double terms : dq_terms) r_.dq.terms = std::max(r_.dq.terms, terms);
    if (x_.dq.present())
      for (int64_t d = 0; d < dim; ++d)
        put(r_.dq, x_.dq, {s.q_slot, s.q_first + i, h, d}, double(rounded(dq[size_t(d)])), Want::kClose);
  }
}

// Rows of the slot past those in use are written as rows that saw nothing.
template <class T>
void Attention<T>::unused_rows(int64_t b, int64_t h) {
  const SequenceView& s = x_.sequences[size_t(b)];
  const double lse = x_.sinks.present() ? x_.sinks.get(h, 0, 0, 0) : -kInfinity;
  for (int64_t i = s.len_q; i < s.room_q; ++i) {
    for (int64_t d = 0; d < o_.value_dim(); ++d) put(r_.o, x_.o, {s.q_slot, s.q_first + i, h, d}, 0, Want::kExact);
    if (x_.lse.present())
      put(r_.lse, x_.lse, {s.q_slot, h, s.q_first + i, 0}, lse, x_.sinks.present() ? Want::kClose : Want::kExact);
    if (x_.dq.present())
      for (int64_t d = 0; d < o_.dim; ++d) put(r_.dq, x_.dq, {s.q_slot, s.q_first + i, h, d}, 0, Want::kExact);
  }
}

template <class T>
void Attention<T>::store_key_gradients(int64_t b) {
  const SequenceView& s = x_.sequences[size_t(b)];
  r_.dk.terms = std::max(r_.dk.terms, largest_root(dk_terms_));
  r_.dv.terms = std::max(r_.dv.terms, largest_root(dv_terms_));
  for (int64_t position = 0; position < s.slot_len_k; ++position) {
    const int64_t j = position - s.leftpad;
    const bool in_use = j >= 0 && j < s.len_k;
    const Want want = in_use ? Want::kClose : Want::kExact;
    int64_t slot, row;
    x_.locate_key(b, position, slot, row);
    for (int64_t h = 0; h < o_.heads_k; ++h) {
      if (x_.dk.present())
        for (int64_t d = 0; d < o_.dim; ++d)
          put(r_.dk, x_.dk, {slot, row, h, d},
              in_use ? double(rounded(dk_[size_t((h * s.len_k + j) * o_.dim + d)])) : 0, want);
      if (x_.dv.present())
        for (int64_t d = 0; d < o_.value_dim(); ++d)
          put(r_.dv, x_.dv, {slot, row, h, d},
              in_use ? double(rounded(dv_[size_t((h * s.len_k + j) * o_.value_dim() + d)])) : 0, want);
    }
  }
}

template <class T>
void Attention<T>::store_sums() {
  if (x_.d_bias.present()) {
    prepare(r_.d_bias, x_.d_bias, Want::kClose);
    r_.d_bias.terms = largest_root(d_bias_terms_);
    for (size_t n = 0; n < d_bias_.size(); ++n)
      r_.d_bias.value[n] = kNaive ? round_to(o_.d_bias_dtype, d_bias_[n]) : double(d_bias_[n]);
  }
  if (x_.d_sinks.present()) {
    prepare(r_.d_sinks, x_.d_sinks, Want::kClose);
    r_.d_sinks.terms = largest_root(d_sinks_terms_);
    for (size_t h = 0; h < d_sinks_.size(); ++h)
      r_.d_sinks.value[h] = kNaive ? round_to(o_.d_sinks_dtype, d_sinks_[h]) : double(d_sinks_[h]);
  }
}

template <class T>
Results Attention<T>::compute() {
  prepare(r_.o, x_.o, Want::kUntouched);
  prepare(r_.lse, x_.lse, Want::kUntouched);
  prepare(r_.probs, x_.probs, Want::kExact);
  if (o_.len_new > 0) {
    prepare(r_.k, x_.k, Want::kUntouched);
    prepare(r_.v, x_.v, Want::kUntouched);
  }
  prepare(r_.dq, x_.dq, Want::kUntouched);
  prepare(r_.dk, x_.dk, Want::kUntouched);
  prepare(r_.dv, x_.dv, Want::kUntouched);
  d_bias_.assign(size_t(x_.d_bias.size()), T(0));
  d_sinks_.assign(size_t(o_.heads_q), T(0));
  d_bias_terms_.assign(d_bias_.size(), 0.0);
  d_sinks_terms_.assign(d_sinks_.size(), 0.0);
  for (int64_t b = 0; b < o_.batch; ++b) {
    load_keys(b);
    for (int64_t h = 0; h < o_.heads_q; ++h) {
      load_queries(b, h);
      scores(b, h);
      forward_head(b, h);
      if (o_.is_backward()) backward_head(b, h);
      unused_rows(b, h);
    }
    if (o_.is_backward()) store_key_gradients(b);
  }
  store_sums();
  return std::move(r_);
}

}  // namespace

Results reference(const Inputs& inputs) { return Attention<double>(inputs).compute(); }
Results naive(const Inputs& inputs) { return Attention<float>(inputs).compute(); }

}  // namespace mica::conformance
