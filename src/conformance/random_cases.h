// SPDX-License-Identifier: Apache-2.0
// Cases that draw their options at random, always the same ones.
#pragma once

#include <vector>

#include "conformance/options.h"

namespace mica::conformance {

std::vector<Options> random_options(int count);

}  // namespace mica::conformance
