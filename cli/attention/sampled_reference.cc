// SPDX-License-Identifier: Apache-2.0
#include "cli/attention/sampled_reference.h"

#include <algorithm>
#include <cmath>

#include "cli/text.h"
#include "conformance/numbers.h"

namespace cli {

void SampledReference::Difference::add(double got, double want) {
  if (got == want) return;  // infinities too
  is_nan |= !std::isfinite(got - want);
  error = std::max(error, std::abs(got - want));
  magnitude = std::max(magnitude, std::abs(want));
}

SampledReference::Sequence SampledReference::sequence(std::int64_t batch) const {
  if (s_.varlen.empty()) return {batch, batch, batch, 0, 0, s_.seqlen_q, s_.keys()};
  std::int64_t begin = 0;
  for (std::int64_t b = 0; b < batch; ++b) begin += s_.varlen[std::size_t(b)];
  const std::int64_t length = s_.varlen[std::size_t(batch)];
  return {batch, 0, 0, begin, begin, length, length};
}

double SampledReference::key(const Buffer& buffer, const Sequence& sequence, std::int64_t j, std::int64_t head,
                             std::int64_t c) const {
  if (s_.paged == 0) return buffer.get(sequence.k_slot, sequence.k_begin + j, head, c);
  const auto page = std::int64_t(w_.block_table_.get(sequence.batch, j / s_.paged, 0, 0));
  return buffer.get(page, j % s_.paged, head, c);
}

std::vector<double> SampledReference::query(const Sequence& sequence, std::int64_t i, std::int64_t head) const {
  std::vector<double> q(std::size_t(s_.dim), 0.0);
  for (std::int64_t c = 0; c < s_.dim; ++c)
    q[std::size_t(c)] = w_.q_.get(sequence.q_slot, sequence.q_begin + i, head, c);
  const std::int64_t half = s_.rotary / 2;
  if (half == 0) return q;
  const bool advances = s_.causal != "none" || !s_.window.empty() || s_.chunk > 0;
  // Rows past the last appended key take the last position there is.
  const std::int64_t position = std::min(sequence.keys - s_.append + (advances ? i : 0), w_.cos_.layout.shape[0] - 1);
  for (std::int64_t c = 0; c < half; ++c) {
    const double cos = w_.cos_.get(position, c, 0, 0), sin = w_.sin_.get(position, c, 0, 0);
    const double x = q[std::size_t(c)], y = q[std::size_t(c + half)];
    q[std::size_t(c)] = x * cos - y * sin;
    q[std::size_t(c + half)] = x * sin + y * cos;
  }
  return q;
}

bool SampledReference::visible(const Sequence& sequence, std::int64_t i, std::int64_t j) const {
  const std::int64_t diagonal = i + (s_.causal == "top-left" ? 0 : sequence.keys - sequence.rows);
  if (s_.causal != "none" && j > diagonal) return false;
  if (s_.window.size() == 2) {
    if (s_.window[0] >= 0 && j < diagonal - s_.window[0]) return false;
    if (s_.window[1] >= 0 && j > diagonal + s_.window[1]) return false;
  }
  const auto chunk_of = [this](std::int64_t at) { return std::floor(double(at) / double(s_.chunk)); };
  if (s_.chunk > 0 && chunk_of(diagonal) != chunk_of(j)) return false;
  return !w_.mask_.present() || w_.mask_.host[std::size_t(i * w_.mask_.layout.stride[2] + j)] != 0;
}

double SampledReference::score(const Sequence& sequence, std::int64_t head, std::int64_t i, std::int64_t j,
                               double product, double* derivative) const {
  const double scale = s_.scale != 0 ? s_.scale : 1 / std::sqrt(double(s_.dim));
  double value = product * scale;
  *derivative = scale;
  if (s_.softcap != 0) {
    const double t = std::tanh(value / s_.softcap);
    value = s_.softcap * t;
    *derivative = scale * (1 - t * t);
  }
  const std::int64_t shift = s_.causal == "top-left" ? 0 : sequence.keys - sequence.rows;
  if (w_.alibi_.present()) value -= w_.alibi_.get(0, head, 0, 0) * std::abs(double(i + shift - j));
  if (w_.bias_.present()) value += w_.bias_.get(0, head, i, j);
  return value;
}

double SampledReference::keep_factor(const Sequence& sequence, std::int64_t head, std::int64_t i,
                                     std::int64_t j) const {
  if (s_.dropout == 0) return 1;
  const mica::conformance::DropoutBits bits = {kSeed, kOffset, s_.dropout};
  const auto head_index = std::uint32_t(sequence.batch * s_.heads_q + head);
  return bits.is_kept(head_index, std::uint32_t(i), std::uint32_t(j)) ? 1 / (1 - s_.dropout) : 0;
}

SampledReference::Row SampledReference::row(const Sequence& sequence, std::int64_t head, std::int64_t i) const {
  const std::int64_t head_k = head / (s_.heads_q / s_.key_heads());
  const std::vector<double> q = query(sequence, i, head);
  Row r;
  const auto keys = std::size_t(sequence.keys);
  r.derivative.assign(keys, 0);
  r.probability.assign(keys, -INFINITY);
  r.dropped.assign(keys, 0);
  r.o.assign(std::size_t(s_.value_dim()), 0);
  const double sink = w_.sinks_.present() ? w_.sinks_.get(head, 0, 0, 0) : -INFINITY;
  double max = sink;
  for (std::int64_t j = 0; j < sequence.keys; ++j) {
    if (!visible(sequence, i, j)) continue;
    double product = 0;
    for (std::int64_t c = 0; c < s_.dim; ++c) product += q[std::size_t(c)] * key(w_.k_, sequence, j, head_k, c);
    double& value = r.probability[std::size_t(j)];
    value = score(sequence, head, i, j, product, &r.derivative[std::size_t(j)]);
    max = std::max(max, value);
  }
  if (max == -INFINITY) {
    r.lse = -INFINITY;
    r.probability.assign(keys, 0);
    return r;
  }
  double sum = std::exp(sink - max);
  for (double& value : r.probability) sum += value = std::exp(value - max);
  r.lse = max + std::log(sum);
  for (std::int64_t j = 0; j < sequence.keys; ++j) {
    double& p = r.probability[std::size_t(j)];
    p /= sum;
    if (p == 0) continue;
    r.dropped[std::size_t(j)] = p * keep_factor(sequence, head, i, j);
    for (std::int64_t c = 0; c < s_.value_dim(); ++c)
      r.o[std::size_t(c)] += r.dropped[std::size_t(j)] * key(w_.v_, sequence, j, head_k, c);
  }
  return r;
}

// o and lse, or dq.
void SampledReference::check_row(const Sequence& sequence, std::int64_t head, std::int64_t i,
                                 std::vector<Difference>& out) const {
  const Row r = row(sequence, head, i);
  const std::int64_t slot = sequence.q_slot, at = sequence.q_begin + i, dim_v = s_.value_dim();
  for (std::int64_t c = 0; c < dim_v; ++c) out[0].add(w_.o_.get(slot, at, head, c), r.o[std::size_t(c)]);
  out[1].add(w_.lse_.get(slot, head, at, 0), r.lse);
  if (!s_.is_backward()) return;
  const std::int64_t head_k = head / (s_.heads_q / s_.key_heads());
  std::vector<double> dq(std::size_t(s_.dim), 0.0);
  double delta = 0;
  for (std::int64_t c = 0; c < dim_v; ++c) delta += w_.d_o_.get(slot, at, head, c) * r.o[std::size_t(c)];
  for (std::int64_t j = 0; j < sequence.keys; ++j) {
    const double p = r.probability[std::size_t(j)];
    if (p == 0) continue;
    double dp = 0;
    for (std::int64_t c = 0; c < dim_v; ++c) dp += w_.d_o_.get(slot, at, head, c) * key(w_.v_, sequence, j, head_k, c);
    const double ds = (r.dropped[std::size_t(j)] * dp - p * delta) * r.derivative[std::size_t(j)];
    for (std::int64_t c = 0; c < s_.dim; ++c) dq[std::size_t(c)] += ds * key(w_.k_, sequence, j, head_k, c);
  }
  for (std::int64_t c = 0; c < s_.dim; ++c) out[2].add(w_.dq_.get(slot, at, head, c), dq[std::size_t(c)]);
}

// dk and dv. The rows' LSE and outputs are taken from the library: check_row looks after those.
void SampledReference::check_column(const Sequence& sequence, std::int64_t head_k, std::int64_t j,
                                    std::vector<Difference>& out) const {
  const std::int64_t group = s_.heads_q / s_.key_heads(), slot = sequence.q_slot, dim_v = s_.value_dim();
  std::vector<double> dk(std::size_t(s_.dim), 0.0), dv(std::size_t(dim_v), 0.0);
  for (std::int64_t head = head_k * group; head < (head_k + 1) * group; ++head)
    for (std::int64_t i = 0; i < sequence.rows; ++i) {
      const std::int64_t at = sequence.q_begin + i;
      const double lse = w_.lse_.get(slot, head, at, 0);
      if (!visible(sequence, i, j) || std::isinf(lse)) continue;
      double product = 0, derivative = 0, dp = 0, delta = 0;
      for (std::int64_t c = 0; c < s_.dim; ++c)
        product += w_.q_.get(slot, at, head, c) * key(w_.k_, sequence, j, head_k, c);
      const double p = std::exp(score(sequence, head, i, j, product, &derivative) - lse);
      const double dropped = p * keep_factor(sequence, head, i, j);
      for (std::int64_t c = 0; c < dim_v; ++c) {
        const double d_o = w_.d_o_.get(slot, at, head, c);
        dp += d_o * key(w_.v_, sequence, j, head_k, c);
        delta += d_o * w_.o_.get(slot, at, head, c);
        dv[std::size_t(c)] += dropped * d_o;
      }
      const double ds = (dropped * dp - p * delta) * derivative;
      for (std::int64_t c = 0; c < s_.dim; ++c) dk[std::size_t(c)] += ds * w_.q_.get(slot, at, head, c);
    }
  const std::int64_t row = sequence.k_begin + j;
  for (std::int64_t c = 0; c < s_.dim; ++c) out[3].add(w_.dk_.get(sequence.k_slot, row, head_k, c), dk[std::size_t(c)]);
  for (std::int64_t c = 0; c < dim_v; ++c) out[4].add(w_.dv_.get(sequence.k_slot, row, head_k, c), dv[std::size_t(c)]);
}

std::string SampledReference::check() const {
  std::vector<Difference> differences = {{"o"}, {"lse"}, {"dq"}, {"dk"}, {"dv"}};
  mica::conformance::Random random(5);
  const auto batch = std::int64_t(s_.varlen.empty() ? s_.batch : std::int64_t(s_.varlen.size()));
  constexpr int kSamples = 6;
  for (int sample = 0; sample < kSamples; ++sample) {
    const Sequence sequence = this->sequence(random.integer(0, batch));
    if (sequence.rows == 0) continue;
    // The first and the last row are among the samples: masks and splits go wrong there first.
    const std::int64_t i = sample == 0 ? 0 : (sample == 1 ? sequence.rows - 1 : random.integer(0, sequence.rows));
    check_row(sequence, random.integer(0, s_.heads_q), i, differences);
    if (!s_.is_backward() || sequence.keys == 0) continue;
    const std::int64_t j = sample == 0 ? 0 : (sample == 1 ? sequence.keys - 1 : random.integer(0, sequence.keys));
    check_column(sequence, random.integer(0, s_.key_heads()), j, differences);
  }
  // Of the largest value: a few roundings of the type. LSE is fp32, from products of rounded inputs.
  const double tolerance = s_.dtype == "fp32" ? 1e-4 : (s_.dtype == "fp16" ? 5e-3 : 4e-2);
  for (const Difference& d : differences)
    if (d.is_nan || d.error > tolerance * d.magnitude + 1e-6)
      return format("%s is off by %.2g (largest value %.2g)", d.tensor, d.is_nan ? NAN : d.error, d.magnitude);
  return "";
}

}  // namespace cli
