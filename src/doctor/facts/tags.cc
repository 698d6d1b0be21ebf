// SPDX-License-Identifier: Apache-2.0
#include "doctor/facts/tags.h"

#include <algorithm>

#include "doctor/read/wheel.h"
#include "doctor/read/wheel_name.h"
#include "support/package_name.h"
#include "support/text.h"

namespace doctor {

using namespace support;

PlatformTag parse_platform(std::string_view tag) {
  PlatformTag out;
  const auto rest_after = [&](std::string_view prefix) { return tag.substr(prefix.size()); };
  const auto with_version = [&](std::string_view rest) {
    // "2_17_x86_64"
    const std::size_t first = rest.find('_'), second = first == rest.npos ? first : rest.find('_', first + 1);
    if (second == rest.npos) return;
    out.libc = {{parse_version(rest).major_part(), parse_version(rest.substr(first + 1)).major_part()}};
    out.machine = rest.substr(second + 1);
  };
  struct Legacy {
    const char* prefix;
    Version glibc;
  };
  if (tag == "any") {
    out.kind = PlatformKind::kAny;
  } else if (tag.starts_with("linux_")) {
    out.kind = PlatformKind::kLinux;
    out.machine = rest_after("linux_");
  } else if (tag.starts_with("manylinux_")) {
    out.kind = PlatformKind::kManylinux;
    with_version(rest_after("manylinux_"));
  } else if (tag.starts_with("musllinux_")) {
    out.kind = PlatformKind::kMusllinux;
    with_version(rest_after("musllinux_"));
  } else {
    for (const Legacy& legacy :
         {Legacy{"manylinux1_", {{2, 5}}}, Legacy{"manylinux2010_", {{2, 12}}}, Legacy{"manylinux2014_", {{2, 17}}}})
      if (tag.starts_with(legacy.prefix)) {
        out.kind = PlatformKind::kManylinux;
        out.libc = legacy.glibc;
        out.machine = rest_after(legacy.prefix);
      }
  }
  return out;
}

bool python_accepts(const WheelTag& tag, const PythonFacts& python) {
  const int minor = python.version.minor_part();
  const std::string cpython = "cp3" + std::to_string(minor);
  const std::string own_abi = cpython + (python.free_threaded ? "t" : minor < 8 ? "m" : "");
  if (tag.abi == "none") {
    if (tag.python == "py3" || tag.python == cpython) return true;
    if (!tag.python.starts_with("py3")) return false;
    const Version wanted = parse_version(tag.python.substr(3));
    return wanted.known() && wanted.major_part() <= minor;
  }
  // Free-threaded builds have a stable ABI of their own (PEP 803).
  if (tag.abi == "abi3" || tag.abi == "abi3t")
    return python.free_threaded == (tag.abi == "abi3t") && tag.python.starts_with("cp3") && tag.python.size() > 3 &&
           parse_version(tag.python.substr(3)).major_part() <= minor;
  return tag.python == cpython && tag.abi == own_abi;
}

bool platform_accepts(const WheelTag& tag, const Environment& target) {
  const PlatformTag platform = parse_platform(tag.platform);
  if (platform.kind == PlatformKind::kAny) return tag.abi == "none";  // pip knows no cp312-cp312-any
  if (platform.kind == PlatformKind::kOther || platform.machine != target.machine) return false;
  if (platform.kind == PlatformKind::kLinux) return true;
  const bool musl = platform.kind == PlatformKind::kMusllinux;
  if (musl != (target.libc == "musl")) return false;
  // Of other machines than these, manylinux begins with glibc 2.17: pip knows no manylinux1_aarch64.
  const bool is_x86 = target.machine == "x86_64" || target.machine == "i686";
  if (!musl && platform.libc < (is_x86 ? Version{{2, 5}} : Version{{2, 17}})) return false;
  return !target.libc_version.known() || platform.libc <= target.libc_version;
}

std::string normal_name(std::string_view name) {
  std::string out = normalised_package(name);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

std::string normal_version(std::string_view version) {
  std::string out = lower(version);
  const std::size_t plus = out.find('+');
  for (std::size_t i = 0; i < out.size(); ++i)
    if (out[i] == '_' || (plus != out.npos && i > plus && out[i] == '-'))
      out[i] = plus != out.npos && i > plus ? '.' : '+';
  return out;
}

}  // namespace doctor
