// SPDX-License-Identifier: Apache-2.0
// wgmma (PTX 9.7.15.5.2): c (64 x n, fp32) += a (64 x 16) * b (16 x n), by the four warps of a warpgroup,
// asynchronously. Warp w has rows 16w to 16w + 15 of c, and of a where it comes from registers, as in mma m16n8k16
// (device/mma.cuh).
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

// add: a and b in shared memory, the summed index along the rows of both. add_transposed: a from registers, b with the
// summed index down its rows. add_both_transposed: a and b in shared memory, the summed index down the rows of both.
template <class Element, int n>
struct Wgmma;

#define MICA_C2(i)                                                                                                     \
  "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3]), "+f"(c[i + 1][0]), "+f"(c[i + 1][1]), "+f"(c[i + 1][2]), \
      "+f"(c[i + 1][3])
#define MICA_C8(i) MICA_C2(i), MICA_C2(i + 2), MICA_C2(i + 4), MICA_C2(i + 6)
#define MICA_R32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define MICA_R64 MICA_R32 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define MICA_R80 MICA_R64 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define MICA_R128                                                        \
  MICA_R80                                                               \
      ",%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55" \
      ",%56,%57,%58,%59,%60,%61,%62,%63"
#define MICA_R176                                                        \
  MICA_R128                                                              \
      ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79" \
      ",%80,%81,%82,%83,%84,%85,%86,%87"
#define MICA_R256                                                                        \
  MICA_R176                                                                              \
      ",%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103"             \
      ",%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119" \
      ",%120,%121,%122,%123,%124,%125,%126,%127"
#define MICA_ADD(type, n, a, b, accumulate, transposed)                                                                \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
  " {" MICA_R##n "}, " a ", " b ", p, 1, 1, " transposed ", " transposed ";\n}\n"
#define MICA_ADD_TRANSPOSED(type, n, a, b) \
  "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" MICA_R##n "}, {" a "}, " b ", 1, 1, 1, 1;\n"

template <>
struct Wgmma<Bf16, 32> {
  static MICA_DEVICE void add(float (&c)[4][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("bf16", 32, "%16", "%17", "%18", "0")
                 : MICA_C2(0), MICA_C2(2)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_both_transposed(float (&c)[4][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("bf16", 32, "%16", "%17", "%18", "1")
                 : MICA_C2(0), MICA_C2(2)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_transposed(float (&c)[4][4], const u32 (&a)[4], u64 b) {
    asm volatile(MICA_ADD_TRANSPOSED("bf16", 32, "%16,%17,%18,%19", "%20")
                 : MICA_C2(0), MICA_C2(2)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Wgmma<Fp16, 32> {
  static MICA_DEVICE void add(float (&c)[4][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("f16", 32, "%16", "%17", "%18", "0")
                 : MICA_C2(0), MICA_C2(2)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_both_transposed(float (&c)[4][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("f16", 32, "%16", "%17", "%18", "1")
                 : MICA_C2(0), MICA_C2(2)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_transposed(float (&c)[4][4], const u32 (&a)[4], u64 b) {
    asm volatile(MICA_ADD_TRANSPOSED("f16", 32, "%16,%17,%18,%19", "%20")
                 : MICA_C2(0), MICA_C2(2)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Wgmma<Bf16, 64> {
  static MICA_DEVICE void add(float (&c)[8][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("bf16", 64, "%32", "%33", "%34", "0") : MICA_C8(0) : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_both_transposed(float (&c)[8][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("bf16", 64, "%32", "%33", "%34", "1") : MICA_C8(0) : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_transposed(float (&c)[8][4], const u32 (&a)[4], u64 b) {
    asm volatile(MICA_ADD_TRANSPOSED("bf16", 64, "%32,%33,%34,%35", "%36")
                 : MICA_C8(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Wgmma<Fp16, 64> {
  static MICA_DEVICE void add(float (&c)[8][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("f16", 64, "%32", "%33", "%34", "0") : MICA_C8(0) : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_both_transposed(float (&c)[8][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("f16", 64, "%32", "%33", "%34", "1") : MICA_C8(0) : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_transposed(float (&c)[8][4], const u32 (&a)[4], u64 b) {
    asm volatile(MICA_ADD_TRANSPOSED("f16", 64, "%32,%33,%34,%35", "%36")
                 : MICA_C8(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Wgmma<Bf16, 80> {
  static MICA_DEVICE void add(float (&c)[10][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("bf16", 80, "%40", "%41", "%42", "0")
                 : MICA_C8(0), MICA_C2(8)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_both_transposed(float (&c)[10][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("bf16", 80, "%40", "%41", "%42", "1")
                 : MICA_C8(0), MICA_C2(8)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_transposed(float (&c)[10][4], const u32 (&a)[4], u64 b) {
    asm volatile(MICA_ADD_TRANSPOSED("bf16", 80, "%40,%41,%42,%43", "%44")
                 : MICA_C8(0), MICA_C2(8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Wgmma<Fp16, 80> {
  static MICA_DEVICE void add(float (&c)[10][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("f16", 80, "%40", "%41", "%42", "0")
                 : MICA_C8(0), MICA_C2(8)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_both_transposed(float (&c)[10][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("f16", 80, "%40", "%41", "%42", "1")
                 : MICA_C8(0), MICA_C2(8)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_transposed(float (&c)[10][4], const u32 (&a)[4], u64 b) {
    asm volatile(MICA_ADD_TRANSPOSED("f16", 80, "%40,%41,%42,%43", "%44")
                 : MICA_C8(0), MICA_C2(8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Wgmma<Bf16, 128> {
  static MICA_DEVICE void add(float (&c)[16][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("bf16", 128, "%64", "%65", "%66", "0")
                 : MICA_C8(0), MICA_C8(8)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_both_transposed(float (&c)[16][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("bf16", 128, "%64", "%65", "%66", "1")
                 : MICA_C8(0), MICA_C8(8)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_transposed(float (&c)[16][4], const u32 (&a)[4], u64 b) {
    asm volatile(MICA_ADD_TRANSPOSED("bf16", 128, "%64,%65,%66,%67", "%68")
                 : MICA_C8(0), MICA_C8(8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Wgmma<Fp16, 128> {
  static MICA_DEVICE void add(float (&c)[16][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("f16", 128, "%64", "%65", "%66", "0")
                 : MICA_C8(0), MICA_C8(8)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_both_transposed(float (&c)[16][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("f16", 128, "%64", "%65", "%66", "1")
                 : MICA_C8(0), MICA_C8(8)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_transposed(float (&c)[16][4], const u32 (&a)[4], u64 b) {
    asm volatile(MICA_ADD_TRANSPOSED("f16", 128, "%64,%65,%66,%67", "%68")
                 : MICA_C8(0), MICA_C8(8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Wgmma<Bf16, 176> {
  static MICA_DEVICE void add(float (&c)[22][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("bf16", 176, "%88", "%89", "%90", "0")
                 : MICA_C8(0), MICA_C8(8), MICA_C2(16), MICA_C2(18), MICA_C2(20)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_both_transposed(float (&c)[22][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("bf16", 176, "%88", "%89", "%90", "1")
                 : MICA_C8(0), MICA_C8(8), MICA_C2(16), MICA_C2(18), MICA_C2(20)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_transposed(float (&c)[22][4], const u32 (&a)[4], u64 b) {
    asm volatile(MICA_ADD_TRANSPOSED("bf16", 176, "%88,%89,%90,%91", "%92")
                 : MICA_C8(0), MICA_C8(8), MICA_C2(16), MICA_C2(18), MICA_C2(20)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Wgmma<Fp16, 176> {
  static MICA_DEVICE void add(float (&c)[22][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("f16", 176, "%88", "%89", "%90", "0")
                 : MICA_C8(0), MICA_C8(8), MICA_C2(16), MICA_C2(18), MICA_C2(20)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_both_transposed(float (&c)[22][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("f16", 176, "%88", "%89", "%90", "1")
                 : MICA_C8(0), MICA_C8(8), MICA_C2(16), MICA_C2(18), MICA_C2(20)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_transposed(float (&c)[22][4], const u32 (&a)[4], u64 b) {
    asm volatile(MICA_ADD_TRANSPOSED("f16", 176, "%88,%89,%90,%91", "%92")
                 : MICA_C8(0), MICA_C8(8), MICA_C2(16), MICA_C2(18), MICA_C2(20)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Wgmma<Bf16, 256> {
  static MICA_DEVICE void add(float (&c)[32][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("bf16", 256, "%128", "%129", "%130", "0")
                 : MICA_C8(0), MICA_C8(8), MICA_C8(16), MICA_C8(24)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_both_transposed(float (&c)[32][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("bf16", 256, "%128", "%129", "%130", "1")
                 : MICA_C8(0), MICA_C8(8), MICA_C8(16), MICA_C8(24)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_transposed(float (&c)[32][4], const u32 (&a)[4], u64 b) {
    asm volatile(MICA_ADD_TRANSPOSED("bf16", 256, "%128,%129,%130,%131", "%132")
                 : MICA_C8(0), MICA_C8(8), MICA_C8(16), MICA_C8(24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Wgmma<Fp16, 256> {
  static MICA_DEVICE void add(float (&c)[32][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("f16", 256, "%128", "%129", "%130", "0")
                 : MICA_C8(0), MICA_C8(8), MICA_C8(16), MICA_C8(24)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_both_transposed(float (&c)[32][4], u64 a, u64 b, i32 accumulate) {
    asm volatile(MICA_ADD("f16", 256, "%128", "%129", "%130", "1")
                 : MICA_C8(0), MICA_C8(8), MICA_C8(16), MICA_C8(24)
                 : "l"(a), "l"(b), "r"(accumulate));
  }
  static MICA_DEVICE void add_transposed(float (&c)[32][4], const u32 (&a)[4], u64 b) {
    asm volatile(MICA_ADD_TRANSPOSED("f16", 256, "%128,%129,%130,%131", "%132")
                 : MICA_C8(0), MICA_C8(8), MICA_C8(16), MICA_C8(24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};

#undef MICA_C2
#undef MICA_C8
#undef MICA_R32
#undef MICA_R64
#undef MICA_R80
#undef MICA_R128
#undef MICA_R176
#undef MICA_R256
#undef MICA_ADD
#undef MICA_ADD_TRANSPOSED

}  // namespace mica
