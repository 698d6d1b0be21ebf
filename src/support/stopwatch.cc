// SPDX-License-Identifier: Apache-2.0
#include "support/stopwatch.h"

namespace support {

TimeError::TimeError(double seconds)
    : ReadError("not read to its end within " + std::to_string(int64_t(seconds)) + " s") {}

Stopwatch::Stopwatch(double seconds)
    : end_(std::chrono::steady_clock::now() +
           std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds))),
      seconds_(seconds) {}

void Stopwatch::check() const {
  if (std::chrono::steady_clock::now() > end_) throw TimeError(seconds_);
}

}  // namespace support
