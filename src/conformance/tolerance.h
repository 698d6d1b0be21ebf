// SPDX-License-Identifier: Apache-2.0
// The tolerance is earned: error against the double reference at most twice that of naive attention in the same
// precision, plus a pinned floor for the cases where the naive way happens to be (nearly) exact.
#pragma once

#include "mica/mica.h"

namespace mica::conformance {

// floor = relative * (largest magnitude of the reference) + of_terms * (largest magnitude of what was summed up to it,
// see Expected::terms) + absolute
struct Floor {
  double relative, of_terms, absolute;
};

// By the element type that the result passed through: q's type for o and the gradients, fp32 for lse and probs.
// Products of e4m3 are summed with some 14 bits by Hopper's tensor cores, and so lse is one of fp16.
inline Floor floor_of(int32_t dtype) {
  switch (dtype) {
    case MICA_FP16: return {0x1p-11, 0x1p-12, 1e-6};  // half a unit in the last place; delta reads a rounded o
    case MICA_BF16: return {0x1p-8, 0x1p-9, 1e-6};
    case MICA_FP8_E4M3: return {0x1p-4, 0x1p-5, 1e-6};
    default: return {0x1p-18, 0x1p-20, 2e-6};  // exp, log and tanh of each backend, and another order of the sums
  }
}

// What a bound depends on beside the type.
struct Magnitudes {
  double naive_error;
  double reference;  // largest
  double terms;      // largest, see Expected::terms
  double lse;        // gradients: the largest; they come from exp(score - lse), and lse was rounded to fp32
};

inline double bound_of(int32_t dtype, const Magnitudes& m) {
  const Floor floor = floor_of(dtype);
  const double of_terms = floor.of_terms + 0x1p-23 * m.lse;
  return 2 * m.naive_error + floor.relative * m.reference + of_terms * m.terms + floor.absolute;
}

}  // namespace mica::conformance
