// SPDX-License-Identifier: Apache-2.0
// Tensors as Hopper's copy engine wants them: encoded when a plan is made, their address replaced when it is bound.
#pragma once

#include "core/problem.h"
#include "cuda/kernels/params.h"
#include "mica/mica.h"

namespace mica {

// Rows of elements of 16 or 8 bits: sizes of the axes (dim, row, head, slot), and elements between two of each axis.
struct RowsShape {
  i32 dtype;
  i64 dim, rows, heads, slots;
  RowsArg strides;
};
RowsShape rows_shape(const Tensor& tensor);

// "" when the copy engine takes the tensor, else why not.
const char* why_no_map(const RowsShape& shape);

// What a box's row of 128 bytes brings into the second-level cache: itself, or the 128 bytes beside it, too.
enum class Lines { ONE, TWO };

// Boxes of box_rows rows and 128 bytes of columns, or of fewer columns: then the rest of a row of 128 bytes in shared
// memory stays as it is. An axis that repeats itself (stride 0) has one entry in the map, and its coordinate must be
// multiplied by the step that goes with it.
mica_status encode_map(const RowsShape& shape, i32 box_rows, MappedRows& mapped, Lines lines = Lines::TWO);
mica_status encode_map(const RowsShape& shape, i32 box_rows, i32 box_columns, bool swizzles, MappedRows& mapped);

// The same of packed sequences, in slots of slot_rows rows, or as many as there are (kernels/packed/packed_sm90.h).
mica_status encode_packed_map(const RowsShape& shape, i64 slot_rows, i32 box_rows, MappedRows& mapped, Lines lines);

// The same of rows of joined heads (Problem::joined_heads), in any order of memory.
const char* why_no_joined_map(const RowsShape& shape);
mica_status encode_joined_map(const RowsShape& shape, i32 joined_heads, i32 box_rows, MappedRows& mapped,
                              Lines lines = Lines::TWO);

// The same of pages whose rows come whole, `panels` of 64 columns of a row at once (kernels/parts/page_blocks_sm90.h).
const char* why_no_block_map(const RowsShape& shape);
mica_status encode_block_map(const RowsShape& shape, i32 box_rows, i32 panels, MappedRows& mapped, Lines lines);

mica_status bind_map(MappedRows& mapped, void* address);

}  // namespace mica
