// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace doctor {

// Modules that a Python file imports and that, by their names, are compiled: flash_attn_2_cuda, fused_dense_lib,
// pkg._C. The text is only looked at, line by line; strings and comments that look like imports count too.
std::vector<std::string> compiled_imports(std::string_view python_source);

}  // namespace doctor
