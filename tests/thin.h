// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

// Whether a few of the problems of every kind are enough: under a sanitizer or in an emulator, where all of them are
// for a full run (mica_thin_test in tests/CMakeLists.txt).
inline bool is_thin() { return std::getenv("MICA_TEST_THIN") != nullptr; }
