// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "doctor/system/host.h"

namespace doctor {

// Limits of this process's control group, version 1 or 2, and of all groups around it.
void read_cgroup(const Files& files, HostFacts& host);

}  // namespace doctor
