// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge/attention_wheel.h"

#include "doctor/system/python_env.h"
#include "doctor/tables/published_wheels.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr const char* kDownload = "https://github.com/Dao-AILab/flash-attention/releases/download/v";

// What follows `key` in the local version, up to the first character that is no digit and no dot.
std::string field(const std::string& local, const char* key) {
  const std::size_t at = local.find(key);
  if (at == local.npos) return "";
  const std::size_t begin = at + std::string_view(key).size();
  const std::size_t end = local.find_first_not_of("0123456789.", begin);
  return local.substr(begin, end == local.npos ? end : end - begin);
}

// "12" is 12, "122" is 12.2, "128" is 12.8, "12.8" is itself.
Version cuda_of(const std::string& digits) {
  if (digits.size() == 3 && digits.find('.') == digits.npos)
    return parse_version(digits.substr(0, 2) + "." + digits.substr(2));
  return parse_version(digits);
}

}  // namespace

bool parse_attention_wheel(std::string_view file_name, AttentionWheel& out) {
  out = {};
  out.file = file_name;
  std::string name(file_name);
  for (std::size_t at; (at = name.find("%2B")) != name.npos;) name.replace(at, 3, "+");  // copied from a URL
  const std::optional<WheelName> parts = parse_wheel_name(name);
  if (!parts) return false;
  out.package = normalized_package(parts->distribution);
  out.platform = parts->platform;
  out.tags = parts->tags;
  out.python = parts->python;
  const std::size_t plus = parts->version.find('+');
  out.version = parts->version.substr(0, plus);
  const std::string local = plus == parts->version.npos ? "" : lower(parts->version.substr(plus + 1));
  if (local.rfind("cu", 0) == 0 || local.find(".cu") != local.npos) out.cuda = cuda_of(field(local, "cu"));
  out.torch = parse_version(field(local, "torch"));
  if (local.find("cxx11abitrue") != local.npos) out.cxx_abi = CxxAbi::kNew;
  if (local.find("cxx11abifalse") != local.npos) out.cxx_abi = CxxAbi::kOld;
  out.pretender = out.package == "flash-attn" && out.platform == "any" && !local.starts_with("mica");
  return !out.version.empty() && !out.python.empty() && !out.platform.empty();
}

std::vector<AttentionWheel> published_wheels() {
  std::vector<AttentionWheel> wheels;
  const auto add = [&](const Release& release, const std::string& file) {
    AttentionWheel wheel;
    if (!parse_attention_wheel(file, wheel)) return;
    wheel.url = kDownload + std::string(release.version) + "/" + file;
    for (std::size_t at; (at = wheel.url.find('+')) != std::string::npos;) wheel.url.replace(at, 1, "%2B");
    wheels.push_back(std::move(wheel));
  };
  for (const Release& r : attention_releases()) {
    for (const std::string machine : r.machines)
      for (const std::string python : r.pythons)
        for (const std::string torch : r.torches)
          for (const std::string cuda : r.cudas)
            for (const bool abi : r.abis) {
              bool is_left_out = false;
              for (const auto& [t, p] : r.without) is_left_out |= torch == t && python == p;
              if (is_left_out) continue;
              const std::string tag = "cp3" + python.substr(2);
              add(r, "flash_attn-" + std::string(r.version) + "+cu" + cuda + "torch" + torch + "cxx11abi" +
                         (abi ? "TRUE" : "FALSE") + "-" + tag + "-" + tag + "-linux_" + machine + ".whl");
            }
    for (const char* file : r.also) add(r, file);
  }
  return wheels;
}

}  // namespace doctor
