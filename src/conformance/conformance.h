// SPDX-License-Identifier: Apache-2.0
// Conformance: named cases that cross the options of the library, each compared with a reference in double.
// The tests and `mica check` run the same ones. Sees the library through include/mica alone.
//
//   for (size_t n : select_cases("varlen.*bf16")) {
//     Outcome outcome = run_case(n, host_memory());
//     ...
//   }
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "conformance/memory.h"

namespace mica::conformance {

struct CaseInfo {
  std::string name;
  std::vector<std::string> tags;  // "fp32", "backward", "paged", "dropout", ...
  double cost;                    // multiply-adds of the library's work, roughly: for progress bars and time limits
};

enum class Status { kPassed, kSkipped, kFailed };

// One output: its largest absolute error, that of naive attention in the same precision, and the bound.
struct Comparison {
  std::string tensor;
  double error, naive_error, bound;
};

struct Outcome {
  Status status = Status::kPassed;
  std::string message;  // skipped: the library's reason; failed: the first few things that were wrong
  std::vector<Comparison> comparisons;
  std::string forward_kernel, backward_kernel;
  double seconds = 0;  // in the library
};

// The named cases, then 200 (or $MICA_RANDOM_CASES) that draw their options at random.
const std::vector<CaseInfo>& cases();

// Indices of the cases whose name or one of whose tags matches the POSIX extended regular expression (anywhere in
// it); all for "". Throws std::invalid_argument, saying what is wrong with the expression.
std::vector<size_t> select_cases(const std::string& regex);

// A case with its inputs and its reference, which are made once and take most of its time: it can be run on several
// devices, by several instruction sets, with any number of threads.
class Case {
 public:
  explicit Case(size_t index);
  ~Case();

  // Forward, and backward if the case has gradients, on the device of this memory.
  Outcome run(Memory& memory);

  // What would run there; nothing is run. A pass that the library refuses is left out.
  struct PlannedPass {
    std::string kernel;
    int splits;
    size_t workspace_bytes;
    auto operator<=>(const PlannedPass&) const = default;
  };
  std::vector<PlannedPass> plan(mica_device device) const;

 private:
  struct Prepared;
  std::unique_ptr<Prepared> prepared_;
};

// A case that is run once.
Outcome run_case(size_t index, Memory& memory);

}  // namespace mica::conformance
