// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa/isa_list.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define MICA_DECLARE_ISA(name)     \
  namespace mica_##name {          \
    const mica::IsaTable& table(); \
  }
MICA_DECLARE_ISA(neon)
MICA_DECLARE_ISA(bfmmla)
MICA_DECLARE_ISA(avx2)
MICA_DECLARE_ISA(avx512)
MICA_DECLARE_ISA(amx)

namespace mica {
namespace {

#if defined(__aarch64__)

[[maybe_unused]] bool has_neon() { return true; }

[[maybe_unused]] bool has_bfmmla() {
  constexpr u64 kBf16 = 1u << 14;  // HWCAP2_BF16
  return getauxval(AT_HWCAP2) & kBf16;
}

#elif defined(__x86_64__)

// What the processor offers and the operating system saves.
struct X86 {
  u32 ecx1 = 0, ebx7 = 0, edx7 = 0, eax7_1 = 0;
  u64 saved = 0;  // XCR0

  X86() {
    u32 eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return;
    ecx1 = ecx;
    if (ecx1 >> 27 & 1) {  // OSXSAVE
      u32 low, high;
      __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
      saved = u64(high) << 32 | low;
    }
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
      ebx7 = ebx;
      edx7 = edx;
    }
    if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) eax7_1 = eax;
  }
};

constexpr bool all_of(u64 word, u64 bits) { return (word & bits) == bits; }

[[maybe_unused]] bool has_avx2() {
  static const X86 x;
  constexpr u32 kFma = 1u << 12, kAvx = 1u << 28, kF16c = 1u << 29, kBmi = 1u << 3, kAvx2 = 1u << 5, kBmi2 = 1u << 8;
  return all_of(x.saved, 0x6) && all_of(x.ecx1, kFma | kAvx | kF16c) && all_of(x.ebx7, kBmi | kAvx2 | kBmi2);
}

[[maybe_unused]] bool has_avx512() {
  static const X86 x;
  constexpr u32 kF = 1u << 16, kDq = 1u << 17, kCd = 1u << 28, kBw = 1u << 30, kVl = 1u << 31;
  return has_avx2() && all_of(x.saved, 0xe6) && all_of(x.ebx7, kF | kDq | kCd | kBw | kVl);
}

// NOTE: the process must ask Linux for the tile registers once, before the first use.
[[maybe_unused]] bool has_amx() {
  static const X86 x;
  constexpr u32 kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAvx512Bf16 = 1u << 5;
  constexpr u64 kTileState = u64(3) << 17;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = has_avx512() && all_of(x.saved, kTileState) && all_of(x.edx7, kAmxBf16 | kAmxTile) &&
                              all_of(x.eax7_1, kAvx512Bf16) &&
                              syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

#endif

}  // namespace

// The best first. CMake says which were compiled.
const Isa kIsas[] = {
#if defined(MICA_HAS_ISA_bfmmla)
    {mica_bfmmla::table, has_bfmmla},
#endif
#if defined(MICA_HAS_ISA_neon)
    {mica_neon::table, has_neon},
#endif
#if defined(MICA_HAS_ISA_amx)
    {mica_amx::table, has_amx},
#endif
#if defined(MICA_HAS_ISA_avx512)
    {mica_avx512::table, has_avx512},
#endif
#if defined(MICA_HAS_ISA_avx2)
    {mica_avx2::table, has_avx2},
#endif
};
const i32 kNumIsas = i32(sizeof kIsas / sizeof kIsas[0]);

bool has_amx_fp16() {
#if defined(__x86_64__)
  static const X86 x;
  constexpr u32 kAmxFp16 = 1u << 21;
  return has_amx() && all_of(x.eax7_1, kAmxFp16);
#else
  return false;
#endif
}

}  // namespace mica
