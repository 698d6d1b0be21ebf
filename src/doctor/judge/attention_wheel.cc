// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge/attention_wheel.h"

#include "doctor/judge/pick.h"
#include "doctor/system/python_env.h"
#include "doctor/tables/published_wheels.h"
#include "support/package_name.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr const char* kDownload = "https://github.com/Dao-AILab/flash-attention/releases/download/v";

// What follows `key` in the local version, up to the first character that is no digit and no dot.
std::string field(const std::string& local, const char* key) {
  const std::size_t at = local.find(key);
  if (at == local.npos) return "";
  std::size_t begin = at + std::string_view(key).size();
  if (begin < local.size() && local[begin] == '.') ++begin;  // cu.12.8.torch.2.11
  const std::size_t end = local.find_first_not_of("0123456789.", begin);
  std::string out = local.substr(begin, end == local.npos ? end : end - begin);
  while (!out.empty() && out.back() == '.') out.pop_back();
  return out;
}

// "28" is 2.8, "270" is 2.7.0, "210" and "2100" are 2.10: no release is called 2.1.0 so.
Version torch_of_digits(const std::string& digits) {
  if (digits.size() < 2 || digits.find('.') != digits.npos) return parse_version(digits);
  const bool is_two_digit_minor = digits.size() >= 3 && digits[1] == '1';
  const std::size_t minor = is_two_digit_minor ? 2 : 1;
  return parse_version(digits.substr(0, 1) + "." + digits.substr(1, minor));
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
  std::optional<WheelName> parts = parse_wheel_name(name);
  // A variant's label follows the platform: flash_attn-2.8.3-cp312-cp312-linux_x86_64-LABEL.whl.
  if (const std::size_t dash = name.rfind('-');
      !parts && dash != name.npos && name.ends_with(".whl") && name.find('_', name.rfind('-', dash - 1)) < dash)
    parts = parse_wheel_name(name.substr(0, dash) + ".whl");
  if (!parts) return false;
  out.package = normalised_package(parts->distribution);
  out.platform = parts->platform;
  out.tags = parts->tags;
  out.python = parts->python;
  const std::size_t plus = parts->version.find('+');
  out.version = parts->version.substr(0, plus);
  const std::string local = plus == parts->version.npos ? "" : lower(parts->version.substr(plus + 1));
  const bool is_short = local.rfind("pt", 0) == 0 && local.size() > 2 && local[2] >= '0' && local[2] <= '9';
  out.cuda = cuda_of(field(local, "cu"));  // before torch's or after it: torch2.8cu128
  out.torch = is_short ? torch_of_digits(field(local, "pt")) : parse_version(field(local, "torch"));
  if (local.find("cxx11abitrue") != local.npos) out.cxx_abi = CxxAbi::kNew;
  if (local.find("cxx11abifalse") != local.npos) out.cxx_abi = CxxAbi::kOld;
  out.pretender = out.package == "flash-attn" && out.platform == "any" && !local.starts_with("mica");
  return !out.version.empty() && !out.python.empty() && !out.platform.empty();
}

std::vector<AttentionWheel> published_wheels(std::string_view package) {
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
  for (const CommunityWheels& row : community_wheels())
    for (const std::string& python : split(row.pythons, ' ')) {
      const bool is_abi3 = std::string_view(row.name).starts_with("flash_attn_3");
      const std::string version = python.ends_with("t") ? python.substr(0, python.size() - 1) : python;
      const std::string file =
          std::string(row.name) + "-" + version + "-" + (is_abi3 ? "abi3" : python) + "-" + row.platform + ".whl";
      AttentionWheel wheel;
      if (!parse_attention_wheel(file, wheel)) continue;
      wheel.url = kCommunityDownload + std::string(row.release) + "/" + file;
      for (std::size_t at; (at = wheel.url.find('+')) != std::string::npos;) wheel.url.replace(at, 1, "%2B");
      // Built with pip's torch of that release, and so with its C++ ABI; where that had both, the name does not tell.
      const std::string machine = wheel.platform.find("aarch64") == std::string::npos ? "x86_64" : "aarch64";
      std::string cuda = wheel.cuda.text();
      std::erase(cuda, '.');
      wheel.cxx_abi = usual_cxx_abi(wheel.torch.text() + "+cu" + cuda, machine);
      if (wheel.cxx_abi != CxxAbi::kUnknown) wheels.push_back(std::move(wheel));
    }
  std::erase_if(wheels, [&](const AttentionWheel& wheel) { return wheel.package != package; });
  return wheels;
}

}  // namespace doctor
