// SPDX-License-Identifier: Apache-2.0
// Operands of wgmma that lie without a swizzle: 8 rows of 16 bytes (8 columns) follow one another.
#pragma once

#include "device/wgmma.cuh"

namespace mica {

// leading_bytes: from columns 0 to 7 to columns 8 to 15; stride_bytes: from 8 rows to the next 8. Either may be 0: the
// same once more.
MICA_DEVICE u64 plain_descriptor(u32 address, u32 leading_bytes, u32 stride_bytes) {
  return u64(stride_bytes >> 4) << 32 | u64(leading_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

}  // namespace mica
