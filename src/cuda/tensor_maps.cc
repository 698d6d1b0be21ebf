// SPDX-License-Identifier: Apache-2.0
#include "cuda/tensor_maps.h"

#include <cstdint>

#include "base/status.h"
#include "cuda/argument_parts.h"
#include "cuda/driver.h"
#include "cuda/kernels/parts/page_blocks_sm90.h"

namespace mica {
namespace {

// CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion
enum : int { kTypeByte = 0, kTypeFp16 = 6, kTypeBf16 = 9 };
enum : int {
  kNotInterleaved = 0,
  kNotSwizzled = 0,
  kSwizzle128Bytes = 3,
  kPromoteTo128Bytes = 2,
  kPromoteTo256Bytes = 3,
  kFillWithZeros = 0
};
constexpr i64 kBoxBytes = 128, kStrideBytes = 16, kMostStrideBytes = i64(1) << 40, kMostSize = i64(1) << 32;

bool is_stride(i64 bytes) { return bytes >= 0 && bytes % kStrideBytes == 0 && bytes < kMostStrideBytes; }
int type_of(i32 dtype) { return dtype == MICA_FP16 ? kTypeFp16 : dtype == MICA_BF16 ? kTypeBf16 : kTypeByte; }
i64 size_of(i64 size, i64 stride) { return stride == 0 ? 1 : size; }
int promotion_of(Lines lines) { return lines == Lines::ONE ? kPromoteTo128Bytes : kPromoteTo256Bytes; }

// Heads and slots as one axis: elements between two entries, and how many entries further the next head and slot are.
struct HeadsOfSlots {
  i64 stride, head_step, slot_step, size;
};
// A stride of 0: the two do not fit into one axis.
HeadsOfSlots heads_of_slots(const RowsShape& s) {
  const i64 head = s.heads > 1 ? s.strides.stride_head : 0, slot = s.slots > 1 ? s.strides.stride_batch : 0;
  const i64 stride = head == 0 ? slot : slot == 0 ? head : head < slot ? head : slot;
  if (stride == 0) return {1, 0, 0, 1};
  if (head % stride != 0 || slot % stride != 0) return {};
  const i64 head_step = head / stride, slot_step = slot / stride;
  return {stride, head_step, slot_step, (s.heads - 1) * head_step + (s.slots - 1) * slot_step + 1};
}

}  // namespace

RowsShape rows_shape(const Tensor& t) {
  return RowsShape{.dtype = t.dtype,
                   .dim = t.shape[3],
                   .rows = t.shape[1],
                   .heads = t.shape[2],
                   .slots = t.shape[0],
                   .strides = {nullptr, t.stride[0], t.stride[1], t.stride[2]}};
}

const char* why_no_map(const RowsShape& s) {
  if (s.dtype != MICA_FP16 && s.dtype != MICA_BF16 && s.dtype != MICA_FP8_E4M3)
    return "its elements are not of 16 or 8 bits";
  if (s.rows > 1 && s.strides.stride_row == 0) return "its rows repeat themselves";
  const i64 element = dtype_bytes(s.dtype);
  if (!is_stride(s.strides.stride_row * element) || !is_stride(s.strides.stride_head * element) ||
      !is_stride(s.strides.stride_batch * element))
    return "a stride is negative, no multiple of 16 bytes, or 2^40 bytes and more";
  if (s.rows >= kMostSize || s.heads >= kMostSize || s.slots >= kMostSize) return "an axis has 2^32 entries and more";
  return "";
}

namespace {
mica_status encode(const RowsShape& s, i64 box_columns, i32 box_rows, i32 box_heads, bool swizzles, MappedRows& mapped,
                   Lines lines) {
  const Driver& driver = Driver::instance();
  // Any address will do until the tensor is bound.
  void* const address = reinterpret_cast<void*>(std::uintptr_t(1) << 20);
  const std::uint64_t sizes[] = {u64(max_of<i64>(s.dim, 1)), u64(max_of<i64>(s.rows, 1)),
                                 u64(max_of<i64>(size_of(s.heads, s.strides.stride_head), 1)),
                                 u64(max_of<i64>(size_of(s.slots, s.strides.stride_batch), 1))};
  // The step of an axis with one entry is never taken, but must be one that the driver accepts.
  const i64 element = element_bytes(s.dtype);
  const auto bytes = [element](i64 stride) { return u64(max_of<i64>(stride * element, kStrideBytes)); };
  const std::uint64_t strides[] = {bytes(s.strides.stride_row), bytes(s.strides.stride_head),
                                   bytes(s.strides.stride_batch)};
  const std::uint32_t box[] = {u32(box_columns), u32(box_rows), u32(box_heads), 1}, element_strides[] = {1, 1, 1, 1};
  mapped.head_step = s.strides.stride_head != 0;
  mapped.slot_step = s.strides.stride_batch != 0;
  mapped.box_rows = box_rows;
  mapped.rows = i64(sizes[1]);
  return driver.check(
      driver.api().cuTensorMapEncodeTiled(&mapped.map, type_of(s.dtype), 4, address, sizes, strides, box,
                                          element_strides, kNotInterleaved, swizzles ? kSwizzle128Bytes : kNotSwizzled,
                                          promotion_of(lines), kFillWithZeros),
      "cuTensorMapEncodeTiled");
}
}  // namespace

mica_status encode_map(const RowsShape& s, i32 box_rows, MappedRows& mapped, Lines lines) {
  return encode(s, kBoxBytes / element_bytes(s.dtype), box_rows, 1, true, mapped, lines);
}
mica_status encode_map(const RowsShape& s, i32 box_rows, i32 box_columns, bool swizzles, MappedRows& mapped) {
  return encode(s, box_columns, box_rows, 1, swizzles, mapped, Lines::TWO);
}

mica_status encode_packed_map(const RowsShape& s, i64 slot_rows, i32 box_rows, MappedRows& mapped, Lines lines) {
  RowsShape slots = s;
  slots.rows = min_of(slot_rows, s.rows);
  slots.slots = s.rows - slots.rows + 1;
  slots.strides.stride_batch = s.strides.stride_row;
  return encode_map(slots, box_rows, mapped, lines);
}

const char* why_no_joined_map(const RowsShape& s) {
  if (s.heads > 1 && s.strides.stride_head == 0) return "its heads repeat themselves";
  return why_no_map(s);
}

mica_status encode_joined_map(const RowsShape& s, i32 joined_heads, i32 box_rows, MappedRows& mapped, Lines lines) {
  const RowsShape heads_first = {
      .dtype = s.dtype,
      .dim = s.dim,
      .rows = s.heads,
      .heads = s.rows,
      .slots = s.slots,
      .strides = {nullptr, s.strides.stride_batch, s.strides.stride_head, s.strides.stride_row}};
  const i32 box_heads = min_of(joined_heads, box_rows);
  const mica_status status =
      encode(heads_first, kBoxBytes / element_bytes(s.dtype), box_heads, box_rows / box_heads, true, mapped, lines);
  mapped.box_rows = box_rows;
  return status;
}

const char* why_no_block_map(const RowsShape& s) {
  const char* why = why_no_map(s);
  if (why[0]) return why;
  if (s.dim % kPanelColumns != 0) return "its rows are no whole multiples of 128 bytes";
  if (s.rows % kBlockRows != 0) return "its pages are no whole multiples of 8 rows";
  const HeadsOfSlots merged = heads_of_slots(s);
  if (merged.stride == 0) return "of the strides of heads and pages neither is a multiple of the other";
  return merged.size > kMostSize / 2 ? "its heads and pages are too many for one axis" : "";  // an i32 in the kernel
}

mica_status encode_block_map(const RowsShape& s, i32 box_rows, i32 panels, MappedRows& mapped, Lines lines) {
  const Driver& driver = Driver::instance();
  void* const address = reinterpret_cast<void*>(std::uintptr_t(1) << 20);
  const HeadsOfSlots merged = heads_of_slots(s);
  const i64 element = element_bytes(s.dtype);
  const std::uint64_t sizes[] = {u64(kPanelColumns), u64(kBlockRows), u64(max_of<i64>(s.dim / kPanelColumns, 1)),
                                 u64(max_of<i64>(s.rows / kBlockRows, 1)), u64(max_of<i64>(merged.size, 1))};
  const auto bytes = [element](i64 stride) { return u64(max_of<i64>(stride * element, kStrideBytes)); };
  const std::uint64_t strides[] = {bytes(s.strides.stride_row), bytes(kPanelColumns),
                                   bytes(kBlockRows * s.strides.stride_row), bytes(merged.stride)};
  const std::uint32_t box[] = {u32(kPanelColumns), u32(kBlockRows), u32(panels), u32(box_rows / kBlockRows), 1};
  const std::uint32_t element_strides[] = {1, 1, 1, 1, 1};
  mapped.head_step = i32(merged.head_step);
  mapped.slot_step = i32(merged.slot_step);
  mapped.box_rows = box_rows;
  mapped.rows = max_of<i64>(s.rows, 1);
  return driver.check(driver.api().cuTensorMapEncodeTiled(&mapped.map, type_of(s.dtype), 5, address, sizes, strides,
                                                          box, element_strides, kNotInterleaved, kSwizzle128Bytes,
                                                          promotion_of(lines), kFillWithZeros),
                      "cuTensorMapEncodeTiled");
}

mica_status bind_map(MappedRows& mapped, void* address) {
  if (!address) return MICA_OK;  // a tensor without elements, which no kernel reads
  const Driver& driver = Driver::instance();
  return driver.check(driver.api().cuTensorMapReplaceAddress(&mapped.map, address), "cuTensorMapReplaceAddress");
}

}  // namespace mica
