// SPDX-License-Identifier: Apache-2.0
// GPU architectures: how they are written.
#include "builder/plan/architectures.h"

#include <algorithm>
#include <stdexcept>

#include "support/text.h"

namespace builder {

using namespace support;

namespace {

Architecture parse_one(const std::string& word) {
  const auto bad = [&] {
    return std::runtime_error("--arch holds '" + support::printable(word) +
                              "', want auto or architectures such as 8.0,9.0a,12.0+PTX");
  };
  Architecture out;
  std::string rest = word;
  if (rest.ends_with("+PTX")) {
    out.ptx = true;
    rest.resize(rest.size() - 4);
  }
  if (rest.ends_with('a') || rest.ends_with('f')) {
    out.arch.suffix = rest.back();
    rest.pop_back();
  }
  const std::size_t dot = rest.find('.');
  if (dot == rest.npos || dot == 0 || dot > 2 || rest.size() != dot + 2) throw bad();
  for (std::size_t i = 0; i < rest.size(); ++i)
    if (i != dot && (rest[i] < '0' || rest[i] > '9')) throw bad();
  out.arch.sm = std::stoi(rest.substr(0, dot)) * 10 + (rest[dot + 1] - '0');
  return out;
}

}  // namespace

std::vector<Architecture> parse_architectures(const std::string& text) {
  std::string plain = text;
  for (char& c : plain)
    if (c == ';' || c == ' ') c = ',';
  std::vector<Architecture> out;
  for (const std::string& word : support::split(plain, ','))
    if (!word.empty()) out.push_back(parse_one(word));
  if (out.empty()) throw std::runtime_error("--arch is empty, want auto or architectures such as 8.0,9.0");
  return out;
}

FleetArchitectures smallest_set(std::vector<doctor::ComputeCapability> gpus) {
  std::sort(gpus.begin(), gpus.end());
  gpus.erase(std::unique(gpus.begin(), gpus.end()), gpus.end());
  const auto is_tegra = [](const doctor::ComputeCapability& gpu) {
    return std::pair(gpu.major, gpu.minor) == std::pair(7, 2) || std::pair(gpu.major, gpu.minor) == std::pair(8, 7) ||
           gpu.major == 11;
  };
  FleetArchitectures out;
  for (const doctor::ComputeCapability& gpu : gpus) {
    const auto serves = [&](const doctor::ComputeCapability& other) {
      return other.major == gpu.major && !is_tegra(other) && !is_tegra(gpu);
    };
    const auto found = std::find_if(out.exact.begin(), out.exact.end(), serves);  // sorted: the lowest of its major
    if (found != out.exact.end()) {
      out.compatible.emplace_back(gpu, *found);
      continue;
    }
    out.exact.push_back(gpu);
    out.needed.push_back({{gpu.major * 10 + gpu.minor, 0}, false});
  }
  return out;
}

std::string dotted(const doctor::GpuArch& arch) {
  return arch.capability().text() + (arch.suffix ? std::string(1, arch.suffix) : "");
}

}  // namespace builder
