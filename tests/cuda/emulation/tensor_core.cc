// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/emulation/tensor_core.h"

#include <cstring>

#include "tests/cuda/emulation/emulator.h"

namespace mica::emulation {
namespace {

struct Operands {
  float* c;
  const u32* a;
  u32 b[2];
};

// Towards zero, as the tensor cores' adders do.
float truncated(double x) {
  u64 bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits &= ~u64(0x1fffffff);
  std::memcpy(&x, &bits, sizeof x);
  return float(x);
}

float low_half(u32 pair, bool is_bf16) { return is_bf16 ? bf16_to_float(u16(pair)) : fp16_to_float(u16(pair)); }

// c(16 x 8) += a(16 x depth) b(depth x 8)
template <int depth>
void multiply(void* const (&lanes)[32], const double (&a)[16][depth], const double (&b)[depth][8]) {
  double c[16][8];
  for (int lane = 0; lane < 32; ++lane)
    for (int e = 0; e < 4; ++e)
      c[lane / 4 + e / 2 * 8][lane % 4 * 2 + e % 2] = static_cast<const Operands*>(lanes[lane])->c[e];
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < depth; ++k)
      for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < 32; ++lane)
    for (int e = 0; e < 4; ++e)
      static_cast<Operands*>(lanes[lane])->c[e] = truncated(c[lane / 4 + e / 2 * 8][lane % 4 * 2 + e % 2]);
}

template <bool is_bf16>
void perform_k16(void* const (&lanes)[32]) {
  double a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& own = *static_cast<const Operands*>(lanes[lane]);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i)
        a[group + i % 2 * 8][pair + i / 2 * 8 + half] = low_half(own.a[i] >> (16 * half), is_bf16);
      for (int i = 0; i < 2; ++i) b[pair + i * 8 + half][group] = low_half(own.b[i] >> (16 * half), is_bf16);
    }
  }
  multiply<16>(lanes, a, b);
}

void perform_tf32(void* const (&lanes)[32]) {
  constexpr u32 kSeen = ~u32(0x1fff);  // sign, exponent and 10 bits of the mantissa
  double a[16][8], b[8][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& own = *static_cast<const Operands*>(lanes[lane]);
    for (int i = 0; i < 4; ++i) a[lane / 4 + i % 2 * 8][lane % 4 + i / 2 * 4] = float_of(own.a[i] & kSeen);
    for (int i = 0; i < 2; ++i) b[lane % 4 + i * 4][lane / 4] = float_of(own.b[i] & kSeen);
  }
  multiply<8>(lanes, a, b);
}

struct MatrixRow {
  u32* r;
  const u16* row;
};

void perform_ldmatrix(void* const (&lanes)[32]) {
  for (int lane = 0; lane < 32; ++lane)
    for (int matrix = 0; matrix < 4; ++matrix) {
      const u16* row = static_cast<const MatrixRow*>(lanes[8 * matrix + lane / 4])->row;
      static_cast<MatrixRow*>(lanes[lane])->r[matrix] = row[lane % 4 * 2] | u32(row[lane % 4 * 2 + 1]) << 16;
    }
}
void perform_ldmatrix_trans(void* const (&lanes)[32]) {
  for (int lane = 0; lane < 32; ++lane)
    for (int matrix = 0; matrix < 4; ++matrix) {
      const int first = 8 * matrix + lane % 4 * 2;
      static_cast<MatrixRow*>(lanes[lane])->r[matrix] =
          static_cast<const MatrixRow*>(lanes[first])->row[lane / 4] |
          u32(static_cast<const MatrixRow*>(lanes[first + 1])->row[lane / 4]) << 16;
    }
}

struct StoredRow {
  const u32* r;
  u16* row;
};

// Element (i, j) of a matrix, as lane i * 4 + j / 2 holds it; the other way round: (j, i).
template <bool transposed>
void perform_stmatrix(void* const (&lanes)[32]) {
  for (int matrix = 0; matrix < 4; ++matrix)
    for (int row = 0; row < 8; ++row)
      for (int column = 0; column < 8; ++column) {
        const int i = transposed ? column : row, j = transposed ? row : column;
        const u32 pair = static_cast<const StoredRow*>(lanes[i * 4 + j / 2])->r[matrix];
        static_cast<const StoredRow*>(lanes[8 * matrix + row])->row[column] = u16(pair >> (j % 2 * 16));
      }
}

struct Transposed {
  u32 pair, result;
};
void perform_movmatrix(void* const (&lanes)[32]) {
  const auto element = [&](int row, int column) {
    return u16(static_cast<const Transposed*>(lanes[row * 4 + column / 2])->pair >> (column % 2 * 16));
  };
  for (int lane = 0; lane < 32; ++lane)
    static_cast<Transposed*>(lanes[lane])->result =
        element(lane % 4 * 2, lane / 4) | u32(element(lane % 4 * 2 + 1, lane / 4)) << 16;
}

}  // namespace

void mma_m16n8k16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, bool is_bf16) {
  Operands own = {c, a, {b0, b1}};
  together("mma.m16n8k16", &own, is_bf16 ? perform_k16<true> : perform_k16<false>);
}

void mma_m16n8k8_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  Operands own = {c, a, {b0, b1}};
  together("mma.m16n8k8", &own, perform_tf32);
}

void ldmatrix_x4(u32 (&r)[4], u32 address, bool transposed) {
  MatrixRow own = {r, static_cast<const u16*>(shared_pointer(address, 16))};
  note_access(address, 16, Access::kRead);
  if (transposed)
    together("ldmatrix.trans", &own, perform_ldmatrix_trans);
  else
    together("ldmatrix", &own, perform_ldmatrix);
}

void stmatrix_x4(u32 address, const u32 (&r)[4], bool transposed) {
  StoredRow own = {r, static_cast<u16*>(shared_pointer(address, 16))};
  note_access(address, 16, Access::kWrite);
  if (transposed)
    together("stmatrix.trans", &own, perform_stmatrix<true>);
  else
    together("stmatrix", &own, perform_stmatrix<false>);
}

u32 movmatrix_trans(u32 pair) {
  Transposed own = {pair, 0};
  together("movmatrix.trans", &own, perform_movmatrix);
  return own.result;
}

}  // namespace mica::emulation
