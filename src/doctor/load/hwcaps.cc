// SPDX-License-Identifier: Apache-2.0
#include "doctor/load/hwcaps.h"

#include <algorithm>
#include <set>

#include "support/text.h"

namespace doctor {

using namespace support;

std::vector<std::string> hwcaps_of(const std::string& machine, std::string_view cpuinfo) {
  std::vector<std::string> out;
  if (machine != "x86_64") return out;
  const std::size_t line = cpuinfo.find("flags");
  const std::size_t colon = line == cpuinfo.npos ? line : cpuinfo.find(':', line);
  if (colon == cpuinfo.npos) return out;
  const std::string_view rest = cpuinfo.substr(colon + 1);
  const std::vector<std::string> words = split(rest.substr(0, rest.find('\n')), ' ');
  const std::set<std::string_view> flags(words.begin(), words.end());
  const std::pair<const char*, std::vector<std::string_view>> levels[] = {
      {"x86-64-v2", {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}},
      {"x86-64-v3", {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}},
      {"x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}}};
  for (const auto& [name, wanted] : levels) {
    if (!std::all_of(wanted.begin(), wanted.end(), [&](std::string_view flag) { return flags.count(flag) > 0; })) break;
    out.insert(out.begin(), name);
  }
  return out;
}

std::string hwcap_of_path(std::string_view path) {
  constexpr std::string_view kFolder = "/glibc-hwcaps/";
  const std::size_t at = path.rfind(kFolder);
  if (at == path.npos) return "";
  const std::string_view rest = path.substr(at + kFolder.size());
  return std::string(rest.substr(0, rest.find('/')));
}

}  // namespace doctor
