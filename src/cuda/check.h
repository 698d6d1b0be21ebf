// SPDX-License-Identifier: Apache-2.0
// MICA_CHECK=1: what a GPU otherwise takes on trust (addresses, values of the int32 vectors), at the price of one
// synchronisation per call.
#pragma once

#include "base/backend.h"
#include "cuda/driver.h"

namespace mica {

bool checks_device_memory();

// The plan's device is current. Looks at no vector while the stream is captured: that would end the capture.
mica_status check_device_memory(const Driver& driver, const Plan& plan, const mica_bindings& bindings);

}  // namespace mica
