// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set. No standard container: its functions would be compiled for this instruction set
// and the linker might keep them for the whole program.
#include "tests/cpu/engine_probe.h"

#include <stdlib.h>
#include <string.h>

#include "cpu/engine/engine_f32.h"
#if defined(MICA_PROBE_amx)
#include "cpu/engine/engine_amx.h"
#elif defined(MICA_PROBE_bfmmla)
#include "cpu/engine/engine_bfmmla.h"
#endif

namespace MICA_NS {
namespace {

// Every byte is 0xff first, which is NaN in all types: whatever should have been packed and was not is seen.
template <class T>
T* allocate(i64 count) {
  const size_t bytes = size_t(round_up<i64>(count * i64(sizeof(T)) + 64, 64));
  void* memory = aligned_alloc(64, bytes);
  memset(memory, 0xff, bytes);
  return static_cast<T*>(memory);
}

template <class Engine>
void multiply(const mica_test::Product& p) {
  using Element = typename Engine::Element;
  const i64 ld_a = leading_dimension(p.depth, Engine::kDepth);
  Element* a = allocate<Element>(round_up(p.rows, Engine::kRows) * ld_a);
  Element* b = allocate<Element>(Engine::packed_b_elements(p.depth, p.cols));
  pack_a(
      a, ld_a, [&](i32 r) -> const void* { return p.a + i64(r) * p.depth; }, MICA_FP32, p.rows, p.used_depth);
  const auto row_at = [&](i32 r) -> const void* {
    return static_cast<const char*>(p.b) + r * p.ld_b * dtype_bytes(p.dtype_b);
  };
  if (p.b_is_transposed)
    Engine::pack_b_transposed(b, row_at, p.dtype_b, p.depth, p.cols);
  else
    Engine::pack_b(b, row_at, p.dtype_b, p.depth, p.cols);
  Engine::begin();
  Engine::multiply(a, ld_a, b, p.c, p.ld_c, p.rows, p.cols, p.used_depth, p.accumulate, p.depth);
  Engine::end();
  free(a);
  free(b);
}

}  // namespace

template <class Engine>
constexpr mica_test::EngineProbe probe_of(const char* engine, i32 dtype) {
  return {MICA_PROBE_NAME, engine, dtype, Engine::kRows, Engine::kCols, Engine::kDepth, multiply<Engine>};
}

extern const mica_test::EngineProbe probe;
#if defined(MICA_PROBE_amx)
const mica_test::EngineProbe probe = probe_of<EngineAmx>("amx", MICA_BF16);
extern const mica_test::EngineProbe probe_fp16;
const mica_test::EngineProbe probe_fp16 = probe_of<EngineAmxSplit>("amx_fp16_split", MICA_FP16);
extern const mica_test::EngineProbe probe_native_fp16;
const mica_test::EngineProbe probe_native_fp16 = probe_of<EngineAmxFp16>("amx_fp16", MICA_FP16);
#elif defined(MICA_PROBE_bfmmla)
const mica_test::EngineProbe probe = probe_of<EngineBfmmla>("bfmmla", MICA_BF16);
#else
const mica_test::EngineProbe probe = probe_of<EngineF32>(MICA_PROBE_NAME, MICA_FP32);
#endif

}  // namespace MICA_NS
