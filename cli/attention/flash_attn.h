// SPDX-License-Identifier: Apache-2.0
// Which `flash_attn` and `flash_attn_interface` a program of the active Python would import: upstream's, Mica's
// drop-ins, or none.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace doctor {
struct Outlook;
}

namespace cli {

// The Python of the environment that holds `library`, else the one of VIRTUAL_ENV, else the first on PATH. Its files
// are read, it is not started. {"python": {...} or null, "flash_attn" and "flash_attn_3":
// {"version", "is_mica", "site"} or null, "transformers": version or null}
nlohmann::json find_flash_attn(const doctor::Outlook& outlook, const std::string& library, const std::string& machine);

// The lines of `mica info` for it.
std::string flash_attn_text(const nlohmann::json& found);

}  // namespace cli
