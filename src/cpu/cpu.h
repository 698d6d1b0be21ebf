// SPDX-License-Identifier: Apache-2.0
// The CPU backend's entry.
#pragma once

#include "base/backend.h"

namespace mica {

const Backend& cpu_backend();

// 0: as many as the process may use. Holds for plans made afterwards.
void cpu_set_num_threads(i32 num_threads);
i32 cpu_num_threads();

}  // namespace mica
