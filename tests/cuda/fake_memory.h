// SPDX-License-Identifier: Apache-2.0
// The part of the fake driver that only test programs use.
#pragma once

#include "tests/cuda/fake_driver.h"

namespace mica::test {

// A driver function by its name; null: none of these.
void* find_memory_function(const char* symbol);

// Whether the stream, one that cuStreamCreate gave, is being captured; then the launch is kept.
bool capture_launch(void* stream, const void* function, const FakeLaunch& launch, const void* params);

}  // namespace mica::test
