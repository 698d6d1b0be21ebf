// SPDX-License-Identifier: Apache-2.0
// A tensor as Hopper's copy engine knows it. The host encodes it, a kernel takes it as a grid constant.
#pragma once

#include "core/types.h"

namespace mica {

// CUtensorMap. Axes (dim, row, head, slot), boxes of 128 bytes x some rows x 1 x 1, swizzled as
// PanelTile has them.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

}  // namespace mica
