// SPDX-License-Identifier: Apache-2.0
// wgmma with a from registers and the summed index along the rows of b (device/wgmma.cuh has the others): 64 columns.
#pragma once

#include "device/wgmma.cuh"

namespace mica {

// c = a b, or c += a b.
template <class Element>
struct WgmmaOfRegisters;

#define MICA_ROW(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define MICA_OF_REGISTERS(Element, type)                                                                           \
  template <>                                                                                                      \
  struct WgmmaOfRegisters<Element> {                                                                               \
    static MICA_DEVICE void add(float (&c)[8][4], const u32 (&a)[4], u64 b, i32 accumulate) {                      \
      asm volatile(                                                                                                \
          "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type    \
          " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"       \
          "%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}\n"                                     \
          : MICA_ROW(0), MICA_ROW(1), MICA_ROW(2), MICA_ROW(3), MICA_ROW(4), MICA_ROW(5), MICA_ROW(6), MICA_ROW(7) \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                                  \
    }                                                                                                              \
  };
MICA_OF_REGISTERS(Bf16, "bf16")
MICA_OF_REGISTERS(Fp16, "f16")
#undef MICA_OF_REGISTERS
#undef MICA_ROW

}  // namespace mica
