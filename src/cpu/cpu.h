// SPDX-License-Identifier: Apache-2.0
// The CPU backend's entry.
#pragma once

#include "base/backend.h"

namespace mica {

const Backend& cpu_backend();

}  // namespace mica
