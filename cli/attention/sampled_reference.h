// SPDX-License-Identifier: Apache-2.0
// The formula in double on a few rows and columns: a quick check before a case is timed. `mica check` is the thorough
// one; this one catches a result that is wrong at the size that is timed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/attention/workload.h"

namespace cli {

class SampledReference {
 public:
  static constexpr std::uint64_t kSeed = 42, kOffset = 7;  // of the dropout

  explicit SampledReference(const Workload& workload) : w_(workload), s_(workload.spec_) {}

  // "" or the tensor that is too far off.
  std::string check() const;

 private:
  struct Sequence {
    std::int64_t batch, q_slot, k_slot, q_begin, k_begin, rows, keys;
  };
  // One row of one head: scores' derivatives, probabilities (before dropout), those that count (after), sums.
  struct Row {
    std::vector<double> derivative, probability, dropped;
    std::vector<double> o;
    double lse;
  };
  // The largest difference so far, and the largest value that was wanted.
  struct Difference {
    const char* tensor;
    double error = 0, magnitude = 0;
    bool is_nan = false;
    void add(double got, double want);
  };

  Sequence sequence(std::int64_t batch) const;
  double key(const Buffer& buffer, const Sequence& sequence, std::int64_t j, std::int64_t head, std::int64_t c) const;
  std::vector<double> query(const Sequence& sequence, std::int64_t i, std::int64_t head) const;
  bool visible(const Sequence& sequence, std::int64_t i, std::int64_t j) const;
  // The score of a product q.k, and its derivative.
  double score(const Sequence& sequence, std::int64_t head, std::int64_t i, std::int64_t j, double product,
               double* derivative) const;
  double keep_factor(const Sequence& sequence, std::int64_t head, std::int64_t i, std::int64_t j) const;
  Row row(const Sequence& sequence, std::int64_t head, std::int64_t i) const;
  void check_row(const Sequence& sequence, std::int64_t head, std::int64_t i, std::vector<Difference>& out) const;
  void check_column(const Sequence& sequence, std::int64_t head_k, std::int64_t j, std::vector<Difference>& out) const;

  const Workload& w_;
  const ProblemSpec& s_;
};

}  // namespace cli
