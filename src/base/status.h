// SPDX-License-Identifier: Apache-2.0
// The thread's last error message. Fixed storage: reporting an error allocates nothing.
#pragma once

#include "mica/mica.h"

namespace mica {

// Records the message (printf style) and returns the status, so that a caller can `return fail(...)`.
mica_status fail(mica_status status, const char* format, ...) __attribute__((cold, format(printf, 2, 3)));

const char* last_error();

}  // namespace mica
