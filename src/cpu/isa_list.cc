// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa_list.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#if defined(__aarch64__)
namespace mica_neon {
const mica::IsaTable& table();
}
#elif defined(__x86_64__)
namespace mica_avx2 {
const mica::IsaTable& table();
}
namespace mica_avx512 {
const mica::IsaTable& table();
}
#endif

namespace mica {
namespace {

#if defined(__aarch64__)
bool has_neon() { return true; }
#elif defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd");
}
#endif

}  // namespace

#if defined(__aarch64__)
const Isa kIsas[] = {{mica_neon::table, has_neon}};
#elif defined(__x86_64__)
const Isa kIsas[] = {{mica_avx512::table, has_avx512}, {mica_avx2::table, has_avx2}};
#endif
const i32 kNumIsas = i32(sizeof kIsas / sizeof kIsas[0]);

}  // namespace mica
