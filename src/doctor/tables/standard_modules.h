// SPDX-License-Identifier: Apache-2.0
// The modules that every Python brings.
#pragma once

#include <string_view>

namespace doctor {

// "ctypes", "_socket": the first part of a dotted name.
bool is_standard_module(std::string_view name);

}  // namespace doctor
