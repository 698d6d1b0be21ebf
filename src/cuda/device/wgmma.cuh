// SPDX-License-Identifier: Apache-2.0
// wgmma (PTX 9.7.15.5.2): c (64 x n, fp32) += a (64 x 16) * b (16 x n), of e4m3 a (64 x 32) * b (32 x n), by the four
// warps of a warpgroup, asynchronously. Warp w has rows 16w to 16w + 15 of c, and of a where it comes from registers,
// as in mma m16n8k16 (device/mma.cuh).
#pragma once

#include "device/ptx_sm90.cuh"

namespace mica {

// An operand in shared memory, in panels of 128 bytes by rows, swizzled as in PanelTile. Where the summed index runs
// along the rows, leading_bytes is not used; where it goes down them, they are the bytes between panels. stride_bytes:
// between groups of eight rows.
MICA_DEVICE u64 matrix_descriptor(u32 address, u32 leading_bytes, u32 stride_bytes) {
  constexpr u64 kSwizzle128 = u64(1) << 62;
  return kSwizzle128 | u64(stride_bytes >> 4) << 32 | u64(leading_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// The descriptor of what lies `bytes` further on.
MICA_DEVICE u64 advance(u64 descriptor, u32 bytes) {
  return (descriptor & ~u64(0xffffffffu)) | u32(u32(descriptor) + (bytes >> 4));
}

// add: a and b in shared memory, the summed index along the rows of both. add_a_transposed, add_b_transposed: the same,
// but one of them with the summed index down its rows. add_both_transposed: down the rows of both. add_transposed: a
// from registers, b with the summed index down its rows. accumulate 0: c is what it makes. e4m3 has add, and
// add_registers: a from registers (lane l: four columns from 4 (l % 4) on of rows l / 4 and 8 + l / 4, and the same 16
// columns further on), b with the summed index along its rows.
template <class Element, int n>
struct Wgmma;

#define MICA_C2(i)                                                                                                     \
  "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3]), "+f"(c[i + 1][0]), "+f"(c[i + 1][1]), "+f"(c[i + 1][2]), \
      "+f"(c[i + 1][3])
#define MICA_C1(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define MICA_C4(i) MICA_C2(i), MICA_C2(i + 2)
#define MICA_C8(i) MICA_C4(i), MICA_C4(i + 4)
// The accumulators' registers: n / 2 of them.
#define MICA_R32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define MICA_R40 MICA_R32 ",%16,%17,%18,%19"
#define MICA_R48 MICA_R32 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define MICA_R56 MICA_R48 ",%24,%25,%26,%27"
#define MICA_R64 MICA_R48 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define MICA_R80 MICA_R64 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define MICA_R96 MICA_R80 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define MICA_R112 MICA_R96 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define MICA_R128 MICA_R112 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define MICA_R144 MICA_R128 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define MICA_R160 MICA_R144 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define MICA_R176 MICA_R160 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define MICA_R192 MICA_R176 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define MICA_R208 MICA_R192 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define MICA_R224 MICA_R208 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define MICA_R240 MICA_R224 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define MICA_R256 MICA_R240 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define MICA_SHARED(type, n, a, b, accumulate, a_down, b_down)                                                  \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" #accumulate ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type \
  "." type " {" MICA_R##n "}, %" #a ", %" #b ", p, 1, 1, " a_down ", " b_down ";\n}\n"
#define MICA_REGISTERS(type, n, a0, a1, a2, a3, b)                                                             \
  "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" MICA_R##n "}, {%" #a0 ",%" #a1 ",%" #a2 \
                                                                                 ",%" #a3 "}, %" #b ", 1, 1, 1, 1;\n"
#define MICA_REGISTERS_OR_ZERO(type, n, a0, a1, a2, a3, b, accumulate)                                          \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" #accumulate ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type \
  "." type " {" MICA_R##n "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #b ", p, 1, 1, 1;\n}\n"
// r0 to r5: the numbers of the operands after the accumulators, C: the accumulators.
#define MICA_WGMMA_OF(Element, type, n, r0, r1, r2, r3, r4, r5, ...)                                            \
  template <>                                                                                                   \
  struct Wgmma<Element, n> {                                                                                    \
    static MICA_DEVICE void add(float (&c)[n / 8][4], u64 a, u64 b, i32 accumulate) {                           \
      asm volatile(MICA_SHARED(type, n, r0, r1, r2, "0", "0") : __VA_ARGS__ : "l"(a), "l"(b), "r"(accumulate)); \
    }                                                                                                           \
    static MICA_DEVICE void add_a_transposed(float (&c)[n / 8][4], u64 a, u64 b, i32 accumulate) {              \
      asm volatile(MICA_SHARED(type, n, r0, r1, r2, "1", "0") : __VA_ARGS__ : "l"(a), "l"(b), "r"(accumulate)); \
    }                                                                                                           \
    static MICA_DEVICE void add_b_transposed(float (&c)[n / 8][4], u64 a, u64 b, i32 accumulate) {              \
      asm volatile(MICA_SHARED(type, n, r0, r1, r2, "0", "1") : __VA_ARGS__ : "l"(a), "l"(b), "r"(accumulate)); \
    }                                                                                                           \
    static MICA_DEVICE void add_both_transposed(float (&c)[n / 8][4], u64 a, u64 b, i32 accumulate) {           \
      asm volatile(MICA_SHARED(type, n, r0, r1, r2, "1", "1") : __VA_ARGS__ : "l"(a), "l"(b), "r"(accumulate)); \
    }                                                                                                           \
    static MICA_DEVICE void add_transposed(float (&c)[n / 8][4], const u32 (&a)[4], u64 b) {                    \
      asm volatile(MICA_REGISTERS(type, n, r0, r1, r2, r3, r4)                                                  \
                   : __VA_ARGS__                                                                                \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                       \
    }                                                                                                           \
    static MICA_DEVICE void add_transposed(float (&c)[n / 8][4], const u32 (&a)[4], u64 b, i32 accumulate) {    \
      asm volatile(MICA_REGISTERS_OR_ZERO(type, n, r0, r1, r2, r3, r4, r5)                                      \
                   : __VA_ARGS__                                                                                \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                      \
    }                                                                                                           \
  };
#define MICA_WGMMA(n, r0, r1, r2, r3, r4, r5, ...)                    \
  MICA_WGMMA_OF(Bf16, "bf16", n, r0, r1, r2, r3, r4, r5, __VA_ARGS__) \
  MICA_WGMMA_OF(Fp16, "f16", n, r0, r1, r2, r3, r4, r5, __VA_ARGS__)

#define MICA_SHARED_E4M3(n, a, b, accumulate)                                                   \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" #accumulate ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n \
  "k32.f32.e4m3.e4m3 {" MICA_R##n "}, %" #a ", %" #b ", p, 1, 1;\n}\n"
#define MICA_REGISTERS_E4M3(n, a0, a1, a2, a3, b, accumulate)                                   \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" #accumulate ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n \
  "k32.f32.e4m3.e4m3 {" MICA_R##n "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #b ", p, 1, 1;\n}\n"
#define MICA_WGMMA_E4M3(n, r0, r1, r2, r3, r4, r5, ...)                                                     \
  template <>                                                                                               \
  struct Wgmma<E4m3, n> {                                                                                   \
    static MICA_DEVICE void add(float (&c)[n / 8][4], u64 a, u64 b, i32 accumulate) {                       \
      asm volatile(MICA_SHARED_E4M3(n, r0, r1, r2) : __VA_ARGS__ : "l"(a), "l"(b), "r"(accumulate));        \
    }                                                                                                       \
    static MICA_DEVICE void add_registers(float (&c)[n / 8][4], const u32 (&a)[4], u64 b, i32 accumulate) { \
      asm volatile(MICA_REGISTERS_E4M3(n, r0, r1, r2, r3, r4, r5)                                           \
                   : __VA_ARGS__                                                                            \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                  \
    }                                                                                                       \
  };

MICA_WGMMA(32, 16, 17, 18, 19, 20, 21, MICA_C4(0))
MICA_WGMMA(40, 20, 21, 22, 23, 24, 25, MICA_C4(0), MICA_C1(4))
MICA_WGMMA(48, 24, 25, 26, 27, 28, 29, MICA_C4(0), MICA_C2(4))
MICA_WGMMA(56, 28, 29, 30, 31, 32, 33, MICA_C4(0), MICA_C2(4), MICA_C1(6))
MICA_WGMMA(64, 32, 33, 34, 35, 36, 37, MICA_C8(0))
MICA_WGMMA(80, 40, 41, 42, 43, 44, 45, MICA_C8(0), MICA_C2(8))
MICA_WGMMA(96, 48, 49, 50, 51, 52, 53, MICA_C8(0), MICA_C4(8))
MICA_WGMMA(112, 56, 57, 58, 59, 60, 61, MICA_C8(0), MICA_C4(8), MICA_C2(12))
MICA_WGMMA(128, 64, 65, 66, 67, 68, 69, MICA_C8(0), MICA_C8(8))
MICA_WGMMA(144, 72, 73, 74, 75, 76, 77, MICA_C8(0), MICA_C8(8), MICA_C2(16))
MICA_WGMMA(160, 80, 81, 82, 83, 84, 85, MICA_C8(0), MICA_C8(8), MICA_C4(16))
MICA_WGMMA(176, 88, 89, 90, 91, 92, 93, MICA_C8(0), MICA_C8(8), MICA_C4(16), MICA_C2(20))
MICA_WGMMA(192, 96, 97, 98, 99, 100, 101, MICA_C8(0), MICA_C8(8), MICA_C8(16))
MICA_WGMMA(208, 104, 105, 106, 107, 108, 109, MICA_C8(0), MICA_C8(8), MICA_C8(16), MICA_C2(24))
MICA_WGMMA(224, 112, 113, 114, 115, 116, 117, MICA_C8(0), MICA_C8(8), MICA_C8(16), MICA_C4(24))
MICA_WGMMA(240, 120, 121, 122, 123, 124, 125, MICA_C8(0), MICA_C8(8), MICA_C8(16), MICA_C4(24), MICA_C2(28))
MICA_WGMMA(256, 128, 129, 130, 131, 132, 133, MICA_C8(0), MICA_C8(8), MICA_C8(16), MICA_C8(24))

MICA_WGMMA_E4M3(48, 24, 25, 26, 27, 28, 29, MICA_C4(0), MICA_C2(4))
MICA_WGMMA_E4M3(64, 32, 33, 34, 35, 36, 37, MICA_C8(0))
MICA_WGMMA_E4M3(80, 40, 41, 42, 43, 44, 45, MICA_C8(0), MICA_C2(8))
MICA_WGMMA_E4M3(128, 64, 65, 66, 67, 68, 69, MICA_C8(0), MICA_C8(8))
MICA_WGMMA_E4M3(256, 128, 129, 130, 131, 132, 133, MICA_C8(0), MICA_C8(8), MICA_C8(16), MICA_C8(24))

#undef MICA_C1
#undef MICA_C2
#undef MICA_C4
#undef MICA_C8
#undef MICA_R32
#undef MICA_R40
#undef MICA_R48
#undef MICA_R56
#undef MICA_R64
#undef MICA_R80
#undef MICA_R96
#undef MICA_R112
#undef MICA_R128
#undef MICA_R144
#undef MICA_R160
#undef MICA_R176
#undef MICA_R192
#undef MICA_R208
#undef MICA_R224
#undef MICA_R240
#undef MICA_R256
#undef MICA_SHARED
#undef MICA_REGISTERS
#undef MICA_REGISTERS_OR_ZERO
#undef MICA_WGMMA_OF
#undef MICA_WGMMA
#undef MICA_SHARED_E4M3
#undef MICA_REGISTERS_E4M3
#undef MICA_WGMMA_E4M3

}  // namespace mica
