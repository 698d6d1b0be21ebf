// SPDX-License-Identifier: Apache-2.0
// Packed sequences that backward takes from the longest on: what backward_prepare orders, and who may ask for it.
#pragma once

#include "core/types.h"

namespace mica {

// With more sequences their lengths even out, and the order takes too long to find.
constexpr i32 kMostOrderedSequences = 512;

}  // namespace mica
