// SPDX-License-Identifier: Apache-2.0
// What a bulk copy moves: which bytes of shared memory belong to which of global memory.
#pragma once

#include "core/types.h"
#include "tests/cuda/fake_tensor_map.h"

namespace mica::emulation {

// What becomes of the bytes in global memory.
enum class Adds : i32 { NOTHING, FLOATS, INTEGERS };

// A row of bytes, or a box of a tensor.
struct BulkCopy {
  u32 shared;
  char* global;  // of a row of bytes; null: a box
  u32 bytes;
  Adds adds;
  test::FakeTensorMap map;  // of a box, which begins at (column, row, head, slot), or as a map of five axes has them
  i32 begin[test::FakeTensorMap::kRank];
};

// 16 bytes in shared memory. Bytes [first, end) of them belong to `global` + first and so on; the others lie outside
// the tensor.
struct BulkChunk {
  u32 shared;
  char* global;
  u32 first, end;
};
u32 num_chunks(const BulkCopy& copy);
BulkChunk chunk_of(const BulkCopy& copy, u32 index);

// "" or which rule of the instruction it breaks.
const char* broken_rule(const BulkCopy& copy);

}  // namespace mica::emulation
