// SPDX-License-Identifier: Apache-2.0
// A limit on how long hostile input is read.
#pragma once

#include <chrono>

#include "support/bytes.h"

namespace support {

// Reading took longer than the limit.
class TimeError : public ReadError {
 public:
  explicit TimeError(double seconds);
};

// Throws TimeError once the time is over.
class Stopwatch {
 public:
  explicit Stopwatch(double seconds);
  void check() const;

 private:
  std::chrono::steady_clock::time_point end_;
  double seconds_;
};

}  // namespace support
