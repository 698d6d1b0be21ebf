// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set, like engine_probe.cc.
#include "tests/cpu/vector_probe.h"

#include "cpu/dropout.h"

namespace MICA_NS {
namespace {

void exp2_of(float* x, i32 count) {
  for (i32 c = 0; c < count; c += kLanes) store(VectorMath::exp2(load(x + c)), x + c);
}
void tanh_of(float* x, i32 count) {
  for (i32 c = 0; c < count; c += kLanes) store(VectorMath::tanh(load(x + c)), x + c);
}
void store_row(void* to, const float* from, i32 dtype, i32 count) { store_row_scaled(to, from, 1.0f, dtype, count); }

}  // namespace

extern const mica_test::VectorProbe vector_probe;
const mica_test::VectorProbe vector_probe = {MICA_PROBE_NAME, exp2_of, tanh_of, load_row, store_row, drop_row};

}  // namespace MICA_NS
