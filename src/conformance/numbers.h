// SPDX-License-Identifier: Apache-2.0
// Numbers of the reference: its own conversions of the element types, its own dropout bits, a generator of test data.
// Written from the definitions, independent of src/core.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mica/mica.h"

namespace mica::conformance {

size_t element_bytes(int32_t dtype);
const char* dtype_name(int32_t dtype);

// The value nearest to x that the type holds, ties to even mantissas; beyond the largest: infinity.
double round_to(int32_t dtype, double x);

// One element in memory.
double load_element(int32_t dtype, const void* address);
void store_element(int32_t dtype, void* address, double value);

// Philox 4x32 with 7 rounds, as src/core/random.h defines the dropout of an element.
struct DropoutBits {
  uint64_t seed;
  uint64_t offset;
  double probability;
  // head_index = sequence * query heads + head; i and j count from the first row and key of the sequence.
  bool is_kept(uint32_t head_index, uint32_t i, uint32_t j) const;
};

// Test data: small, seeded, the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  int64_t integer(int64_t begin, int64_t end);  // in [begin, end)
  double uniform();                             // in [0, 1)
  double normal();                              // about N(0, 1), never beyond 6
  bool chance(double probability) { return uniform() < probability; }

 private:
  uint64_t state_;
};

}  // namespace mica::conformance
