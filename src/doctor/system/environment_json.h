// SPDX-License-Identifier: Apache-2.0
// A target in a file: written on the machine where something shall run, read on the one where it is built or judged.
#pragma once

#include <string>
#include <string_view>

#include "doctor/facts/environment.h"
#include "support/files.h"

namespace doctor {

using namespace support;

// The JSON text. `files` is where the target's paths lie: its libraries' exports go along, so that symbols can be
// judged.
std::string export_environment(const Environment& target, const Files& files = Files());

// Throws ReadError with one line: the file, the field, what it wants.
Environment read_environment(const std::string& path);
Environment parse_environment(std::string_view text, const std::string& name);

}  // namespace doctor
