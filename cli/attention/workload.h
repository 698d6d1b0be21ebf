// SPDX-License-Identifier: Apache-2.0
// A problem with memory behind it: random tensors on a device, the bindings, and a check of the results by samples.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/attention/problem.h"
#include "conformance/memory.h"

namespace cli {

// One tensor, in the host's memory and on the device.
struct Buffer {
  mica_tensor layout = {};
  std::vector<unsigned char> host;
  void* device = nullptr;

  bool present() const { return layout.dtype != MICA_NONE; }
  double get(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const;
};

class Workload {
 public:
  // Throws std::runtime_error when there is no memory and mica::Error when there is no plan.
  Workload(const ProblemSpec& spec, mica::conformance::Memory& memory);
  ~Workload();
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  // Forward, or, of a backward problem, backward alone: forward ran once, when the workload was made. On a GPU it may
  // return before the work is done.
  void execute() const { plan_.execute(bindings_); }
  void synchronise() const;
  const mica::Plan& plan() const { return plan_; }

  // Reads the results back and compares sampled rows (and columns, for the gradients of k and v) with the formula in
  // double. "" or, in one line, what is wrong.
  std::string check();

 private:
  friend class SampledReference;
  void allocate(const mica_attention& description);
  void fill();
  void upload_and_bind();
  void run_forward_once();

  ProblemSpec spec_;
  mica::conformance::Memory& memory_;
  mica_attention description_;
  mica_bindings bindings_ = MICA_BINDINGS_INIT;
  mica::Plan plan_;
  std::vector<void*> taken_;
  Buffer q_, k_, v_, o_, lse_, mask_, bias_, alibi_, sinks_, block_table_, k_new_, v_new_, cos_, sin_;
  Buffer d_o_, dq_, dk_, dv_, d_bias_, d_sinks_;
  Buffer cu_seqlens_, seqused_k_;  // int32 vectors, shaped (n)
};

}  // namespace cli
