// SPDX-License-Identifier: Apache-2.0
// Attention straight from the formula, scores materialised: in double (the truth), and as a textbook would compute it
// in the case's own precision (the yardstick of the tolerance).
//
//   s_ij = softcap * tanh(scale * q_i.k_j / softcap) - alibi * |i + shift - j| + bias_ij,  -inf where hidden
//   p_ij = exp(s_ij - lse_i),  lse_i = log(sum_j exp(s_ij) + exp(sink)),  o_i = sum_j drop(p_ij) v_j
//   ds_ij = p_ij (drop'(do_i.v_j) - delta_i),  delta_i = do_i.o_i - dlse_i,  dsink = -sum_i exp(sink - lse_i) delta_i
#pragma once

#include <cstdint>
#include <vector>

#include "conformance/inputs.h"

namespace mica::conformance {

// What an element of an output must be after the call.
enum class Want : unsigned char {
  kUntouched,  // the bytes it had
  kExact,      // this value
  kClose,      // this value within the tolerance
  kNumber      // not NaN
};

// Over the shape of the tensor, last axis fastest. Empty: all of it untouched.
struct Expected {
  std::vector<double> value;
  std::vector<Want> want;
  // Gradients, in the double reference: the largest of their elements' terms, as rounding errors add up: a row's terms
  // share the error of its delta, rows are independent. A sum that cancels is small and yet no more exact than this.
  double terms = 0;
};

struct Results {
  Expected o, lse, probs, k, v;
  Expected dq, dk, dv, d_bias, d_sinks;
  double largest_lse = 0;  // magnitude, of those that are finite
};

Results reference(const Inputs& inputs);
// Half types: scores, probabilities and their gradients are rounded to the element type where a chain of tensor
// operations would store them; sums are in fp32. fp32: everything in fp32. LSE comes from scores that stayed in fp32.
Results naive(const Inputs& inputs);

}  // namespace mica::conformance
