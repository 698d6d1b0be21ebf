// SPDX-License-Identifier: Apache-2.0
// Attention as the textbook writes it: the whole matrix of scores in memory. What `mica demo` compares with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace cli {

// (batch 1, rows, heads, dim), dense, fp32.
struct NaiveProblem {
  std::int64_t rows, heads, dim;
  bool causal;
};

// S = Q K^T / sqrt(dim); P = softmax(S), row by row; O = P V; three passes over all heads, on `threads` threads.
// The inner loops run along rows of memory, so that the compiler vectorises them. before_release is called at the end,
// while the matrix is still held: that is when the most memory is taken.
void naive_attention(const NaiveProblem& problem, std::span<const float> q, std::span<const float> k,
                     std::span<const float> v, std::span<float> o, int threads,
                     const std::function<void()>& before_release);

// Bytes that it takes beside its tensors: the scores of every head, and K transposed.
std::size_t naive_extra_bytes(const NaiveProblem& problem);

// The same formula in double for row i of one head: the judge of both.
void exact_row(const NaiveProblem& problem, std::span<const float> q, std::span<const float> k,
               std::span<const float> v, std::int64_t i, std::int64_t head, std::span<double> o_row);

}  // namespace cli
