// SPDX-License-Identifier: Apache-2.0
#include "cli/attention/naive.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

namespace cli {
namespace {

// Calls body(index) for [0, count), dealt to the threads in turn: causal rows differ in length.
template <class Body>
void parallel_for(std::int64_t count, int threads, Body body) {
  std::vector<std::jthread> pool;
  const auto work = [&](int first) {
    for (std::int64_t i = first; i < count; i += threads) body(i);
  };
  for (int t = 1; t < threads; ++t) pool.emplace_back(work, t);
  work(0);
}

}  // namespace

void naive_attention(const NaiveProblem& p, std::span<const float> q, std::span<const float> k,
                     std::span<const float> v, std::span<float> o, int threads,
                     const std::function<void()>& before_release) {
  const std::int64_t n = p.rows, stride = p.heads * p.dim;
  const float scale = 1 / std::sqrt(float(p.dim));
  // Not initialised: the passes below write each element before they read it.
  const auto scores = std::make_unique_for_overwrite<float[]>(std::size_t(p.heads * n * n));
  const auto k_transposed = std::make_unique_for_overwrite<float[]>(std::size_t(p.heads * p.dim * n));
  parallel_for(p.heads * p.dim, threads, [&](std::int64_t hc) {
    for (std::int64_t j = 0; j < n; ++j) k_transposed[std::size_t(hc * n + j)] = k[std::size_t(j * stride + hc)];
  });

  parallel_for(p.heads * n, threads, [&](std::int64_t hi) {  // S = Q K^T * scale
    const std::int64_t h = hi / n, i = hi % n, keys = p.causal ? i + 1 : n;
    float* __restrict s = &scores[std::size_t(hi * n)];
    std::fill(s, s + n, p.causal ? -INFINITY : 0.0f);
    std::fill(s, s + keys, 0.0f);
    for (std::int64_t c = 0; c < p.dim; ++c) {
      const float q_c = q[std::size_t(i * stride + h * p.dim + c)] * scale;
      const float* __restrict k_c = &k_transposed[std::size_t((h * p.dim + c) * n)];
      for (std::int64_t j = 0; j < keys; ++j) s[j] += q_c * k_c[j];
    }
  });
  parallel_for(p.heads * n, threads, [&](std::int64_t hi) {  // P = softmax(S)
    float* __restrict s = &scores[std::size_t(hi * n)];
    const float max = *std::max_element(s, s + n);
    float sum = 0;
    for (std::int64_t j = 0; j < n; ++j) sum += s[j] = std::exp(s[j] - max);
    for (std::int64_t j = 0; j < n; ++j) s[j] /= sum;
  });
  parallel_for(p.heads * n, threads, [&](std::int64_t hi) {  // O = P V
    const std::int64_t h = hi / n, i = hi % n, keys = p.causal ? i + 1 : n;
    const float* __restrict s = &scores[std::size_t(hi * n)];
    float* __restrict o_row = &o[std::size_t(i * stride + h * p.dim)];
    std::fill(o_row, o_row + p.dim, 0.0f);
    for (std::int64_t j = 0; j < keys; ++j) {
      const float* __restrict v_row = &v[std::size_t(j * stride + h * p.dim)];
      for (std::int64_t c = 0; c < p.dim; ++c) o_row[c] += s[j] * v_row[c];
    }
  });
  before_release();
}

std::size_t naive_extra_bytes(const NaiveProblem& p) {
  return sizeof(float) * std::size_t(p.heads * p.rows * (p.rows + p.dim));
}

void exact_row(const NaiveProblem& p, std::span<const float> q, std::span<const float> k, std::span<const float> v,
               std::int64_t i, std::int64_t head, std::span<double> o_row) {
  const std::int64_t stride = p.heads * p.dim, column = head * p.dim, keys = p.causal ? i + 1 : p.rows;
  std::vector<double> s(std::size_t(keys), 0.0);
  double max = -INFINITY, sum = 0;
  for (std::int64_t j = 0; j < keys; ++j) {
    double product = 0;
    for (std::int64_t c = column; c < column + p.dim; ++c)
      product += double(q[std::size_t(i * stride + c)]) * double(k[std::size_t(j * stride + c)]);
    s[std::size_t(j)] = product / std::sqrt(double(p.dim));
    max = std::max(max, s[std::size_t(j)]);
  }
  for (double& x : s) sum += x = std::exp(x - max);
  std::fill(o_row.begin(), o_row.end(), 0.0);
  for (std::int64_t j = 0; j < keys; ++j)
    for (std::int64_t c = 0; c < p.dim; ++c)
      o_row[std::size_t(c)] += s[std::size_t(j)] / sum * double(v[std::size_t(j * stride + column + c)]);
}

}  // namespace cli
