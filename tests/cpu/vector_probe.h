// SPDX-License-Identifier: Apache-2.0
// The CPU backend's vector arithmetic behind plain functions, one set per instruction set.
#pragma once

#include "core/random.h"

namespace mica_test {

struct VectorProbe {
  const char* isa;
  // x: count values, replaced. count is a multiple of 16.
  void (*exp2)(float* x, mica::i32 count);
  void (*tanh)(float* x, mica::i32 count);
  void (*load_row)(float* to, const void* from, mica::i32 dtype, mica::i32 count);
  void (*store_row)(void* to, const float* from, mica::i32 dtype, mica::i32 count);
  void (*drop_row)(const mica::PhiloxKey& key, mica::u32 threshold, mica::u32 head_index, mica::u32 i,
                   mica::i64 j_begin, float* row, mica::i32 count);
};

}  // namespace mica_test
