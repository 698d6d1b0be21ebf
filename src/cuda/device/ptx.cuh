// SPDX-License-Identifier: Apache-2.0
// One function per PTX instruction; the section of the PTX manual stands above each.
#pragma once

#include "core/types.h"

#define MICA_DEVICE __device__ __forceinline__

namespace mica {

// 9.7.9.25 cvta: a generic address of shared memory as the 32-bit address that ldmatrix and cp.async take.
MICA_DEVICE u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }

// 9.7.9.25.3 cp.async: 16 bytes; those past source_bytes arrive as zeros.
MICA_DEVICE void cp_async_16(u32 destination, const void* source, i32 source_bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(destination), "l"(source),
               "r"(source_bytes)
               : "memory");
}
MICA_DEVICE void cp_async_16(u32 destination, const void* source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n" ::"r"(destination), "l"(source) : "memory");
}
MICA_DEVICE void cp_async_4(u32 destination, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(destination), "l"(source) : "memory");
}
// 9.7.9.25.3.2 cp.async.commit_group
MICA_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// 9.7.9.25.3.3 cp.async.wait_group: until at most `pending` groups of this thread are in flight.
template <int pending>
MICA_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}

// 9.7.14.5.15 ldmatrix: four 8 x 8 matrices of 16-bit elements; lane l gives the row address l % 8 of matrix l / 8.
MICA_DEVICE void ldmatrix_x4(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
MICA_DEVICE void ldmatrix_x4_trans(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// 9.7.14.5.17 movmatrix: an 8 x 8 matrix of 16-bit elements, of which lane l has two of row l / 4, transposed.
MICA_DEVICE u32 transpose_matrix(u32 pair) {
  u32 x;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(x) : "r"(pair));
  return x;
}

// 9.7.13.13 griddepcontrol: where kernels may overlap (steps.h), the earlier one says from when on the next one's
// blocks may be dealt out, and the next one waits until the earlier one is done and all it wrote is to be seen.
MICA_DEVICE void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n");
#endif
}
MICA_DEVICE void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// 9.7.9.15 prefetch: the 32 bytes at an address are on their way into L2.
MICA_DEVICE void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(address) : "memory");
}

// 9.7.9.8 ld.relaxed: four floats as reductions left them, which pass the first-level cache by.
MICA_DEVICE void load_4_from_l2(float (&x)[4], const float* address) {
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];\n"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "l"(address)
               : "memory");
}
// 9.7.13.7 red: adds four floats to global memory, in one access where the GPU can.
MICA_DEVICE void reduce_add_4(float* address, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"l"(address), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
#else
#pragma unroll
  for (int e = 0; e < 4; ++e) asm volatile("red.global.add.f32 [%0], %1;\n" ::"l"(address + e), "f"(x[e]) : "memory");
#endif
}

// 9.7.9.8 ld.acquire, 9.7.13.7 red.release: a semaphore between blocks.
MICA_DEVICE i32 load_acquire(const i32* address) {
  i32 x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(x) : "l"(address) : "memory");
  return x;
}
// 9.7.13.5 atom, 9.7.9.8 ld.relaxed, 9.7.9.11 st.relaxed: a counter that blocks share.
MICA_DEVICE u64 atomic_add(u64* address, u64 x) {
  u64 before;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;\n" : "=l"(before) : "l"(address), "l"(x) : "memory");
  return before;
}
MICA_DEVICE u32 atomic_add(u32* address, u32 x) {
  u32 before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;\n" : "=r"(before) : "l"(address), "r"(x) : "memory");
  return before;
}
MICA_DEVICE void atomic_max(i32* address, i32 x) {
  asm volatile("red.relaxed.gpu.global.max.s32 [%0], %1;\n" ::"l"(address), "r"(x) : "memory");
}
// Returns what was there: `expected` when x was written.
MICA_DEVICE u64 compare_and_swap(u64* address, u64 expected, u64 x) {
  u64 before;
  asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;\n"
               : "=l"(before)
               : "l"(address), "l"(expected), "l"(x)
               : "memory");
  return before;
}
MICA_DEVICE u64 load_relaxed(const u64* address) {
  u64 x;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];\n" : "=l"(x) : "l"(address) : "memory");
  return x;
}
MICA_DEVICE i32 load_relaxed(const i32* address) {
  i32 x;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];\n" : "=r"(x) : "l"(address) : "memory");
  return x;
}
MICA_DEVICE void store_relaxed(u64* address, u64 x) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;\n" ::"l"(address), "l"(x) : "memory");
}
MICA_DEVICE void add_release(i32* address, i32 x) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;\n" ::"l"(address), "r"(x) : "memory");
}

// 9.7.13.1 barrier.cta: a named barrier (1 to 15) of some of the block's warps; the second also tells whether
// `predicate` held in all of their threads.
MICA_DEVICE void barrier_sync(i32 id, i32 threads) {
  asm volatile("barrier.cta.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
MICA_DEVICE bool barrier_all(i32 id, i32 threads, bool predicate) {
  i32 all;
  asm volatile("{.reg .pred p, q; setp.ne.s32 p, %3, 0; barrier.cta.red.and.pred q, %1, %2, p; selp.s32 %0, 1, 0, q;}\n"
               : "=r"(all)
               : "r"(id), "r"(threads), "r"(i32(predicate))
               : "memory");
  return all;
}

// 9.7.9.8 ld: 4 bytes.
MICA_DEVICE u32 load_shared_4(u32 address) {
  u32 word;
  asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(word) : "r"(address));
  return word;
}
// 9.7.9.8 ld: 16 bytes.
MICA_DEVICE void load_shared_16(u32 (&words)[4], u32 address) {
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address));
}
// 9.7.9.11 st: 4 bytes.
MICA_DEVICE void store_shared_4(u32 address, u32 word) {
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(address), "r"(word) : "memory");
}
// 9.7.9.11 st: 16 bytes.
MICA_DEVICE void store_shared_16(u32 address, const u32 (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"r"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}

// 9.7.9.21 cvt: the nearest number, ties to even; what has no room becomes the largest or least, NaN 0.
MICA_DEVICE i32 round_to_integer(float x) {
  i32 y;
  asm("cvt.rni.s32.f32 %0, %1;\n" : "=r"(y) : "f"(x));
  return y;
}
// 9.7.3.21 ex2
MICA_DEVICE float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}
// 9.7.3.20 lg2
MICA_DEVICE float lg2_approx(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}
// 9.7.9.22 cvt: two floats to a packed pair, `low` in the lower half.
struct Bf16 {
  static constexpr i32 kDtype = MICA_BF16;
};
struct Fp16 {
  static constexpr i32 kDtype = MICA_FP16;
};
struct E4m3 {
  static constexpr i32 kDtype = MICA_FP8_E4M3;
};
template <class T>
MICA_DEVICE u32 pack(float low, float high);
template <>
MICA_DEVICE u32 pack<Bf16>(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <>
MICA_DEVICE u32 pack<Fp16>(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// The other way.
template <class T>
MICA_DEVICE float2 unpack(u32 pair);
template <>
MICA_DEVICE float2 unpack<Bf16>(u32 pair) {
  return make_float2(float_of(pair << 16), float_of(pair & 0xffff0000u));
}
template <>
MICA_DEVICE float2 unpack<Fp16>(u32 pair) {
  float2 r;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}\n"
      : "=f"(r.x), "=f"(r.y)
      : "r"(pair));
  return r;
}

// 9.7.9.7 prmt: byte i of the result is byte (selector >> 4 i) % 8 of the eight of low and high.
MICA_DEVICE u32 byte_perm(u32 low, u32 high, u32 selector) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(r) : "r"(low), "r"(high), "r"(selector));
  return r;
}

// Four e4m3 as two pairs, the lowest byte first; exact.
template <class T>
MICA_DEVICE void expand_e4m3(u32 (&pairs)[2], u32 four);
#if __CUDA_ARCH__ >= 890
// 9.7.9.22 cvt
template <>
MICA_DEVICE void expand_e4m3<Fp16>(u32 (&pairs)[2], u32 four) {
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}\n"
      : "=r"(pairs[0]), "=r"(pairs[1])
      : "r"(four));
}
template <>
MICA_DEVICE void expand_e4m3<Bf16>(u32 (&pairs)[2], u32 four) {
  u32 halves[2];
  expand_e4m3<Fp16>(halves, four);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 x = unpack<Fp16>(halves[i]);
    pairs[i] = pack<Bf16>(x.x, x.y);
  }
}
#else
// 9.7.4.4 fma of pairs. In both types sign, exponent and mantissa of e4m3 in their places are the number times a power
// of two, subnormal ones too; and a NaN, whose other bits are all set, gets the exponent of one.
template <class T>
MICA_DEVICE void expand_e4m3(u32 (&pairs)[2], u32 four) {
  constexpr bool kIsBf16 = T::kDtype == MICA_BF16;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const u32 high = byte_perm(four, 0, i == 0 ? 0x1404 : 0x3424);  // each element the upper half of 16 bits
    const u32 bits = (high & 0x80008000u) | ((high & 0x7f007f00u) >> (kIsBf16 ? 4 : 1));
    const u32 nan = ((high & 0x7f007f00u) + 0x01000100u) & 0x80008000u;
    u32 x;
    if constexpr (kIsBf16)
      asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(x) : "r"(bits), "r"(0x7b807b80u), "r"(0x80008000u));  // 2^120, -0
    else
      asm("fma.rn.f16x2 %0, %1, %2, %3;\n" : "=r"(x) : "r"(bits), "r"(0x5c005c00u), "r"(0x80008000u));  // 2^8
    pairs[i] = x | (nan - (nan >> (kIsBf16 ? 9 : 6)));
  }
}
#endif

// 9.7.14.5.8 mma m16n8k16: c (16 x 8, fp32) += a (16 x 16) * b (16 x 8).
template <class T>
MICA_DEVICE void mma_m16n8k16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);
template <>
MICA_DEVICE void mma_m16n8k16<Bf16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
MICA_DEVICE void mma_m16n8k16<Fp16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 9.7.14.5.8 mma m16n8k8: c (16 x 8, fp32) += a (16 x 8) * b (8 x 8) of fp32 of which the tensor cores see 19 bits.
MICA_DEVICE void mma_m16n8k8_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace mica
