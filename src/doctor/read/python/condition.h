// SPDX-License-Identifier: Apache-2.0
// The condition of an `if`, as far as the target decides it.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

namespace doctor {

// kGuard: a question for a GPU, or for something that may be absent: what stands below it may not run.
enum class Truth : uint8_t { kFalse, kTrue, kUnknown, kGuard };

// On Linux, in this Python (major, minor).
Truth truth_of(std::string_view condition, std::pair<int, int> python);

}  // namespace doctor
