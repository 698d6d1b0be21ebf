// SPDX-License-Identifier: Apache-2.0
// Tiles of 16-bit keys or values in shared memory as wgmma reads them with its 128-byte swizzle, as they come: by
// panels, or by blocks of whole rows (kernels/parts/page_blocks_sm90.h).
#pragma once

#include "device/ptx.cuh"

namespace mica {

// A (rows, dim) tile: panels of 64 columns, one after the other or beside each other in every 8 rows; rows of 128
// bytes, swizzled in chunks of 16.
template <int dim, int rows, bool in_blocks>
struct KeyTile {
  static_assert(dim % 64 == 0 && rows % 8 == 0);
  static constexpr int kPanels = dim / 64;
  static constexpr int kBytes = rows * dim * 2;
  // From a panel, or a block of 8 rows, to the next.
  static constexpr int kPanelBytes = (in_blocks ? 8 : rows) * 128;
  static constexpr int kBlockBytes = (in_blocks ? kPanels : 1) * 8 * 128;
  static MICA_DEVICE u32 offset(int row, int chunk) {
    return chunk / 8 * kPanelBytes + row / 8 * kBlockBytes + row % 8 * 128 + ((chunk % 8 ^ row % 8) << 4);
  }
};

}  // namespace mica
