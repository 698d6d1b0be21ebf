// SPDX-License-Identifier: Apache-2.0
// Folders of libraries for newer CPUs (glibc-hwcaps), which the loader of glibc from 2.33 on looks into first.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace doctor {

// Of what Linux says of a CPU (/proc/cpuinfo), best first: "x86-64-v3", "x86-64-v2". Empty for machines without any.
std::vector<std::string> hwcaps_of(const std::string& machine, std::string_view cpuinfo);

// "x86-64-v3" of "/usr/lib/glibc-hwcaps/x86-64-v3/libz.so.1"; empty: the path leads through no such folder.
std::string hwcap_of_path(std::string_view path);

}  // namespace doctor
