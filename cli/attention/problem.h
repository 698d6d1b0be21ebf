// SPDX-License-Identifier: Apache-2.0
// A problem in words: what the flags of `mica plan` and the cases of a bench suite say, and the description it becomes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "mica/mica.hpp"

namespace cli {

// Each field is a flag of the same name (with - for _) and a key of a suite's case.
struct ProblemSpec {
  std::string pass = "forward";  // forward, backward
  std::string dtype = "bf16";    // fp32, fp16, bf16
  std::string device = "cpu";    // cpu, cuda, cuda:1
  std::int64_t batch = 1;
  std::int64_t seqlen_q = 1024, seqlen_k = -1;  // -1: as seqlen_q
  std::int64_t heads_q = 8, heads_k = -1;       // -1: as heads_q
  std::int64_t dim = 64, dim_v = -1;            // -1: as dim
  std::string causal = "none";                  // none, bottom-right, top-left
  std::vector<std::int64_t> window;             // left, right; -1: unlimited; empty: none
  std::int64_t chunk = 0;                       // positions per chunk; 0: no chunks
  double scale = 0, softcap = 0, dropout = 0;
  bool alibi = false, sinks = false, bias = false, mask = false;
  std::vector<std::int64_t> varlen;  // lengths of packed sequences (q and k alike); empty: dense
  std::int64_t paged = 0;            // page size; 0: contiguous
  std::int64_t append = 0;           // rows to append to the cache
  std::int64_t rotary = 0;           // rotary dimension (with append)
  std::int64_t splits = 0;
  bool deterministic = false, batch_invariant = false;

  std::int64_t keys() const { return seqlen_k < 0 ? seqlen_q : seqlen_k; }
  std::int64_t key_heads() const { return heads_k < 0 ? heads_q : heads_k; }
  std::int64_t value_dim() const { return dim_v < 0 ? dim : dim_v; }
  bool is_backward() const { return pass == "backward"; }
  mica_pass pass_value() const { return is_backward() ? MICA_BACKWARD : MICA_FORWARD; }
};

// Adds the flags above to a verb.
void add_problem_flags(Command& verb, ProblemSpec& spec);

// Reads one case of a suite. Throws std::runtime_error, naming the key, for what is no such flag or has a wrong type.
ProblemSpec problem_from_json(const nlohmann::json& object);
nlohmann::json problem_to_json(const ProblemSpec& spec);

// "forward bf16 b1 s1024 h8 d64 causal": every field that is not at its default, in a fixed order.
std::string problem_name(const ProblemSpec& spec);

// Throws std::runtime_error, in one line, for a word it does not know ("cpuu").
mica_device parse_device(const std::string& word);
mica_dtype parse_dtype(const std::string& word);

// Dense tensors in the shapes that the flags name. What the numbers make illegal, the library says.
mica_attention describe(const ProblemSpec& spec);

// Floating-point operations of the two products (forward) or the five of backward, counting visible pairs alone.
double problem_flops(const ProblemSpec& spec);
// Bytes that must be read or written at least once.
double problem_bytes(const ProblemSpec& spec);

}  // namespace cli
