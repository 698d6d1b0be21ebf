// SPDX-License-Identifier: Apache-2.0
// What wheel tags promise (PEP 425, 600, 656), and whether a target accepts them.
#pragma once

#include <string>
#include <string_view>

#include "doctor/facts/environment.h"
#include "doctor/read/wheel.h"
#include "doctor/read/wheel_name.h"

namespace doctor {

enum class PlatformKind { kAny, kLinux, kManylinux, kMusllinux, kOther };

struct PlatformTag {
  PlatformKind kind = PlatformKind::kOther;
  Version libc;         // of glibc or musl that it asks for; not known for linux_*
  std::string machine;  // "x86_64"
};
PlatformTag parse_platform(std::string_view tag);

bool python_accepts(const WheelTag& tag, const PythonFacts& python);
bool platform_accepts(const WheelTag& tag, const Environment& target);

// "Flash-Attn" and "flash_attn" are one name, as a wheel's file has it: "flash_attn"; "2.8.3+CU12" and "2.8.3+cu12" one
// version.
std::string normal_name(std::string_view name);
std::string normal_version(std::string_view version);

}  // namespace doctor
