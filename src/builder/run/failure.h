// SPDX-License-Identifier: Apache-2.0
// The one line of a failed build's log that matters.
#pragma once

#include <string>
#include <string_view>

namespace builder {

// The log without this program's own lines and the refusals that it gave to setup.py on purpose.
std::string without_own_lines(std::string_view log);

// The first complaint of a compiler, linker or ninja; else what looks most like an error. Empty if nothing does.
std::string error_line(std::string_view log);

}  // namespace builder
