// SPDX-License-Identifier: Apache-2.0
// The table of named cases under construction; each file of cases adds its subject.
#pragma once

#include <string>
#include <vector>

#include "conformance/options.h"

namespace mica::conformance {

class CaseTable {
 public:
  // One case, as it is.
  void add_one(const std::string& name, Options options);
  // The case in fp32, fp16 and bf16, with the gradients of q, k and v where they exist, and probs in fp32.
  void add(const std::string& name, const Options& options);
  void add_16_bit(const std::string& name, const Options& options);  // without fp32
  std::vector<Options> take() { return std::move(options_); }

 private:
  void add_typed(const std::string& name, Options options, int32_t dtype);
  std::vector<Options> options_;
};

// What the library defines no gradient for: keys that sequences may share or do, append, masks of the last keys, and a
// second query.
bool has_gradients(const Options& options);

// Every named case.
std::vector<Options> named_options();

void add_shape_cases(CaseTable& table);
void add_layout_cases(CaseTable& table);
void add_aligned_cases(CaseTable& table);
void add_mask_cases(CaseTable& table);
void add_chunk_cases(CaseTable& table);
void add_tree_cases(CaseTable& table);
void add_prefix_cases(CaseTable& table);
void add_score_cases(CaseTable& table);
void add_sequence_cases(CaseTable& table);
void add_cache_cases(CaseTable& table);
void add_append_cases(CaseTable& table);
void add_fp8_cases(CaseTable& table);
void add_latent_cases(CaseTable& table);
void add_second_query_cases(CaseTable& table);
void add_dropout_cases(CaseTable& table);
void add_place_cases(CaseTable& table);
void add_control_cases(CaseTable& table);
void add_gradient_cases(CaseTable& table);
void add_combined_cases(CaseTable& table);

}  // namespace mica::conformance
