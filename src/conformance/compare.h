// SPDX-License-Identifier: Apache-2.0
// What a call left in a tensor, against what it should have left.
#pragma once

#include <string>

#include "conformance/conformance.h"
#include "conformance/inputs.h"
#include "conformance/reference.h"

namespace mica::conformance {

// `before` and `after` are the tensor's bytes around the call (after: before.bytes.size() bytes). Elements wanted
// untouched and the gaps between elements must be the same bytes. Appends to the outcome: a comparison where something
// is wanted close, a line of message for each kind of mismatch.
struct Tensors {
  const char* name;
  const HostTensor& before;
  const unsigned char* after;
  const Expected& truth;
  const Expected& naive;
  int32_t tolerance_dtype;
  double largest_lse;  // of a gradient's case; 0 in forward
  bool sign_is_exact;  // probs: the sign says whether the element was dropped
};
void compare(const Tensors& tensors, Outcome& outcome);

// The bytes of an input, or of anything else a call must leave alone.
void compare_untouched(const char* name, const HostTensor& before, const unsigned char* after, Outcome& outcome);

void add_failure(Outcome& outcome, const std::string& line);

}  // namespace mica::conformance
