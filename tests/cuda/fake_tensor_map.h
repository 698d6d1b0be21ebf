// SPDX-License-Identifier: Apache-2.0
// What the fake driver keeps in the opaque bytes of a tensor map, and the driver's rules about what may stand there.
// The emulator's copy engine reads it.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/driver_api.h"

namespace mica::test {

// CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion
enum : int { kMapByte = 0, kMapFp16 = 6, kMapFp32 = 7, kMapBf16 = 9 };
enum : int { kMapNoSwizzle = 0, kMapSwizzle128 = 3, kMapMostL2Promotion = 3 };

struct FakeTensorMap {
  static constexpr int kRank = 5;  // of maps with fewer axes the rest have one entry
  static constexpr std::uint64_t kMagic = 0x70616d2065646163;
  std::uint64_t magic, address;
  std::uint64_t strides[kRank - 1];  // bytes between neighbours of the axes from 1 on
  std::uint32_t dims[kRank];
  std::uint16_t box[kRank];
  std::uint32_t rank, element_bytes, swizzle;

  // Whether the driver made it.
  bool is_valid() const { return magic == kMagic; }
  std::uint32_t box_bytes() const {
    std::uint32_t bytes = element_bytes;
    for (const std::uint16_t size : box) bytes *= size;
    return bytes;
  }
};
static_assert(sizeof(FakeTensorMap) <= sizeof(TensorMap));

inline FakeTensorMap decode_tensor_map(const TensorMap& map) {
  FakeTensorMap fake;
  std::memcpy(&fake, map.opaque, sizeof fake);
  return fake;
}

inline cu::Result encode_tensor_map(TensorMap* map, int type, std::uint32_t rank, void* address,
                                    const std::uint64_t* dims, const std::uint64_t* strides, const std::uint32_t* box,
                                    const std::uint32_t* element_strides, int interleave, int swizzle, int l2_promotion,
                                    int fill) {
  constexpr std::uint64_t kMostDim = std::uint64_t{1} << 32, kMostStride = std::uint64_t{1} << 40;
  constexpr std::uint32_t kMostBox = 256, kSwizzledBytes = 128;
  FakeTensorMap fake = {};
  fake.rank = rank;
  for (int axis = 0; axis < FakeTensorMap::kRank; ++axis) fake.dims[axis] = fake.box[axis] = 1;
  fake.magic = FakeTensorMap::kMagic;
  fake.address = reinterpret_cast<std::uintptr_t>(address);
  fake.element_bytes = type == kMapFp32 ? 4 : type == kMapByte ? 1 : 2;
  fake.swizzle = std::uint32_t(swizzle);
  bool right = reinterpret_cast<std::uintptr_t>(map) % alignof(TensorMap) == 0 && (rank == 4 || rank == 5) &&
               (type == kMapByte || type == kMapFp16 || type == kMapFp32 || type == kMapBf16) &&
               fake.address % 16 == 0 && interleave == 0 && (swizzle == kMapNoSwizzle || swizzle == kMapSwizzle128) &&
               l2_promotion >= 0 && l2_promotion <= kMapMostL2Promotion && fill == 0;
  for (int axis = 0; right && axis < int(rank); ++axis) {
    right =
        dims[axis] > 0 && dims[axis] < kMostDim && box[axis] > 0 && box[axis] <= kMostBox && element_strides[axis] == 1;
    fake.dims[axis] = std::uint32_t(dims[axis]);
    fake.box[axis] = std::uint16_t(box[axis]);
  }
  // An axis of one element has no neighbours: its stride may be 0.
  for (int axis = 1; right && axis < int(rank); ++axis) {
    const std::uint64_t stride = fake.strides[axis - 1] = strides[axis - 1];
    right = stride % 16 == 0 && stride < kMostStride && (stride > 0 || dims[axis] == 1);
  }
  const std::uint32_t row_bytes = fake.box[0] * fake.element_bytes;
  right = right && row_bytes % 16 == 0 && (swizzle == kMapNoSwizzle || row_bytes <= kSwizzledBytes);
  if (!right) return cu::kInvalidValue;
  std::memset(map->opaque, 0, sizeof map->opaque);
  std::memcpy(map->opaque, &fake, sizeof fake);
  return cu::kSuccess;
}

inline cu::Result replace_tensor_map_address(TensorMap* map, void* address) {
  FakeTensorMap fake = decode_tensor_map(*map);
  fake.address = reinterpret_cast<std::uintptr_t>(address);
  if (!fake.is_valid() || fake.address % 16 != 0) return cu::kInvalidValue;
  std::memcpy(map->opaque, &fake, sizeof fake);
  return cu::kSuccess;
}

}  // namespace mica::test
