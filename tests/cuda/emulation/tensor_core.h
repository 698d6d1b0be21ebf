// SPDX-License-Identifier: Apache-2.0
// What the tensor cores, ldmatrix, stmatrix and movmatrix do, for the 32 lanes of a warp at once.
#pragma once

#include "core/types.h"

namespace mica::emulation {

// Fragments as PTX lays them out; sums are exact up to one rounding towards zero at the end.
void mma_m16n8k16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, bool is_bf16);
void mma_m16n8k8_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);
void ldmatrix_x4(u32 (&r)[4], u32 address, bool transposed);
void stmatrix_x4(u32 address, const u32 (&r)[4], bool transposed);
u32 movmatrix_trans(u32 pair);

}  // namespace mica::emulation
