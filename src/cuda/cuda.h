// SPDX-License-Identifier: Apache-2.0
// The CUDA backend's entry.
#pragma once

#include "base/backend.h"

namespace mica {

const Backend& cuda_backend();

}  // namespace mica
