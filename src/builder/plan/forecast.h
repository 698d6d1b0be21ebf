// SPDX-License-Identifier: Apache-2.0
// How long a build will take, in how much memory, and how large its wheel will be: from builds that were recorded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "builder/plan/plan.h"

namespace builder {

// One that ended well.
struct RecordedBuild {
  std::string package, version, origin;  // origin: where it was recorded
  double seconds = 0;
  int jobs = 1, architectures = 1;
  uint64_t peak_bytes = 0, wheel_bytes = 0;
};

struct Forecast {
  double seconds = 0;
  uint64_t peak_bytes = 0, wheel_bytes = 0;
  std::string from;  // "1 build of 2.8.3 in ~/.cache/mica/build"; empty: nothing was recorded, and nothing is foretold
};

// Time and size grow with the architectures, time shrinks with the jobs, memory grows with them.
Forecast forecast(const Plan& plan, const std::string& package, const std::vector<RecordedBuild>& recorded);

}  // namespace builder
