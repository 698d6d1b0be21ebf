// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/emulation/warpgroup.h"

#include <cstring>
#include <utility>

#include "core/fp8.h"
#include "tests/cuda/emulation/block.h"

namespace mica::emulation {
namespace {

constexpr u32 kGroup = 128;

WgmmaQueue& queue(u32 thread) { return block().thread(thread).products; }

float number(u16 bits, i32 dtype) {
  if (dtype == MICA_FP8_E4M3) return e4m3_to_float(u8(bits));
  return dtype == MICA_BF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

// Element (row, column) of rows of 128 bytes in panels of 64 columns, swizzled by the address bits 7 to 9, or, where
// the descriptor says so, of rows of 16 bytes.
struct Matrix {
  u32 address, leading_bytes, stride_bytes;
  bool is_plain;
  explicit Matrix(u64 descriptor)
      : address(u32(descriptor & 0x3fff) << 4),
        leading_bytes(u32(descriptor >> 16 & 0x3fff) << 4),
        stride_bytes(u32(descriptor >> 32 & 0x3fff) << 4),
        is_plain(descriptor >> 62 == 0) {}
  u16 at(u32 offset, u32 bytes = 2) const {
    const u32 plain = address + offset;
    const u32 swizzled = is_plain ? plain : plain ^ (plain >> 7 & 7) << 4;
    u16 bits = 0;
    std::memcpy(&bits, shared_pointer(swizzled, bytes), bytes);
    note_access(swizzled, bytes, Access::kReadByWgmma);
    return bits;
  }
  // The summed index k runs along the rows: (row, k < 16; e4m3: k < 32).
  u16 along(u32 row, u32 k, u32 bytes) const {
    const u32 column = k * bytes;
    if (is_plain) return at(row / 8 * stride_bytes + column / 16 * leading_bytes + row % 8 * 16 + column % 16, bytes);
    return at(row / 8 * stride_bytes + row % 8 * 128 + column, bytes);
  }
  // It goes down the rows: (k < 16, column).
  u16 down(u32 k, u32 column) const {
    return at(column / 64 * leading_bytes + k / 8 * stride_bytes + k % 8 * 128 + column % 64 * 2);
  }
};

void multiply(const WgmmaPart* const (&parts)[kGroup]) {
  const WgmmaPart& one = *parts[0];
  const u32 bytes = u32(dtype_bytes(one.dtype)), depth = 32 / bytes;
  float a[64][32];
  for (u32 row = 0; row < 64; ++row)
    for (u32 k = 0; k < depth; ++k) {
      u16 bits;
      if (one.a_is_shared) {
        const Matrix matrix(one.a_descriptor);
        bits = one.a_down ? matrix.down(k, row) : matrix.along(row, k, bytes);
      } else {
        // A word has 4 bytes of a row.
        const u32 per_word = 4 / bytes, half = depth / 2;
        const u32 thread = row / 16 * 32 + row % 8 * 4 + k % half / per_word;
        bits = u16(parts[thread]->a[row % 16 / 8 + k / half * 2] >> (k % per_word * 8 * bytes));
      }
      a[row][k] = number(bits, one.dtype);
    }
  const Matrix b(one.b_descriptor);
  for (u32 column = 0; column < u32(one.n); ++column) {
    float of_column[32];
    for (u32 k = 0; k < depth; ++k)
      of_column[k] = number(one.b_down ? b.down(k, column) : b.along(column, k, bytes), one.dtype);
    for (u32 row = 0; row < 64; ++row) {
      const WgmmaPart& part = *parts[row / 16 * 32 + row % 8 * 4 + column % 8 / 2];
      float& c = part.c[column / 8 * 4 + row % 16 / 8 * 2 + column % 2];
      float sum = part.accumulate ? c : 0.0f;
      for (u32 k = 0; k < depth; ++k) sum += a[row][k] * of_column[k];
      c = sum;
    }
  }
}

void perform(u32 first_thread, void* context) {
  const size_t pending = size_t(*static_cast<int*>(context));
  while (queue(first_thread).groups.size() > pending) {
    for (size_t i = 0; i < queue(first_thread).groups[0].size(); ++i) {
      const WgmmaPart* parts[kGroup];
      for (u32 t = 0; t < kGroup; ++t) parts[t] = &queue(first_thread + t).groups[0][i];
      multiply(parts);
    }
    for (u32 t = 0; t < kGroup; ++t) queue(first_thread + t).groups.erase(queue(first_thread + t).groups.begin());
  }
}

}  // namespace

void wgmma(const WgmmaPart& part) { queue(thread_number()).open.push_back(part); }

void wgmma_commit() {
  WgmmaQueue& q = queue(thread_number());
  q.groups.push_back(std::move(q.open));
  q.open.clear();
}

void wgmma_wait(int pending) { warpgroup_together(perform, &pending); }

}  // namespace mica::emulation
