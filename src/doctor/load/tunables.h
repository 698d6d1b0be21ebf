// SPDX-License-Identifier: Apache-2.0
// GLIBC_TUNABLES: "glibc.rtld.execstack=2:glibc.rtld.optional_static_tls=4096".
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace doctor {

// The number that a variable of this contents gives to a name; the last one counts.
std::optional<uint64_t> tunable(std::string_view variable, std::string_view name);

}  // namespace doctor
