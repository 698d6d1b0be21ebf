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

// Is a release within specifiers such as ">=3.9,<3.13,!=3.10.*"? Clauses that cannot be read count as true. Of PEP
// 440's order, pre-releases of a release come before it: "2.9.0.dev20250801" is not within ">=2.9", nor within "<2.9".
bool satisfies(std::string_view release, std::string_view specifiers);
// "2.9.0.dev20250801+cu128", "2.9.0a0", "3.15.0rc1".
bool is_prerelease(std::string_view release);

// "Flash-Attn" and "flash_attn" are one name, as a wheel's file has it: "flash_attn"; "2.8.3+CU12" and "2.8.3+cu12" one
// version.
std::string normal_name(std::string_view name);
std::string normal_version(std::string_view version);

}  // namespace doctor
