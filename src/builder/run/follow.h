// SPDX-License-Identifier: Apache-2.0
// A build that another process runs, watched.
#pragma once

#include <string>

#include "builder/run/prepare.h"
#include "builder/run/state.h"

namespace builder {

// Follows a build that another process runs, until it ends or stop_requested().
BuildState follow(const std::string& folder, const Listener& listener);

}  // namespace builder
