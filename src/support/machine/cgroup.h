// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/files.h"
#include "support/machine/machine.h"

namespace support {

// Limits of this process's control group, version 1 or 2, and of all groups around it.
void read_cgroup(const Files& files, Machine& machine);

}  // namespace support
