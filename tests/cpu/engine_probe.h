// SPDX-License-Identifier: Apache-2.0
// One engine behind a plain function, so that a test compiled for any CPU can call those of each instruction set.
#pragma once

#include "core/types.h"

namespace mica_test {

// C = or += A B, of which b is given as (depth x cols) or transposed, with some distance between rows.
struct Product {
  const float* a;  // (rows, depth), dense
  const void* b;
  mica::i32 dtype_b;
  mica::i64 ld_b;
  bool b_is_transposed;
  mica::i32 rows, cols, depth;
  mica::i32 used_depth;  // at most depth, with which b is packed
  bool accumulate;
  float* c;  // (padded_rows, ld_c), 64-byte aligned
  mica::i64 ld_c;
};

struct EngineProbe {
  const char* isa;
  const char* engine;
  mica::i32 dtype;              // of the operands
  mica::i32 rows, cols, depth;  // granularity
  void (*multiply)(const Product& product);
};

}  // namespace mica_test
