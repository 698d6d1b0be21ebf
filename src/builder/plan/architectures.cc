// SPDX-License-Identifier: Apache-2.0
// GPU architectures: how they are written, and which nvcc knows them.
#include "builder/plan/architectures.h"

#include <stdexcept>

#include "support/text.h"

namespace builder {

using namespace support;

namespace {

struct Known {
  int sm;
  const char* first;    // nvcc that brought it
  const char* dropped;  // nvcc that no longer has it; "": still there
};
constexpr Known kKnown[] = {
    {50, "6.0", "13.0"},   {52, "6.5", "13.0"}, {53, "7.0", "13.0"}, {60, "8.0", "13.0"}, {61, "8.0", "13.0"},
    {62, "8.0", "13.0"},   {70, "9.0", "13.0"}, {72, "9.2", "13.0"}, {75, "10.0", ""},    {80, "11.0", ""},
    {86, "11.1", ""},      {87, "11.4", ""},    {89, "11.8", ""},    {90, "11.8", ""},    {100, "12.8", ""},
    {101, "12.8", "13.0"}, {103, "12.9", ""},   {110, "13.0", ""},   {120, "12.8", ""},   {121, "12.9", ""},
};

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

std::string dotted(const doctor::GpuArch& arch) {
  return arch.capability().text() + (arch.suffix ? std::string(1, arch.suffix) : "");
}

std::string why_nvcc_cannot(const support::Version& nvcc, const doctor::GpuArch& arch) {
  for (const Known& known : kKnown) {
    if (known.sm != arch.sm) continue;
    const std::string name = arch.capability().text();
    if (nvcc < support::parse_version(known.first))
      return "nvcc " + nvcc.text() + " does not know " + name + " yet: " + known.first + " or later does";
    if (*known.dropped && nvcc >= support::parse_version(known.dropped))
      return "nvcc " + nvcc.text() + " no longer knows " + name + ": those before " + known.dropped + " do";
    if (arch.suffix == 'f' && nvcc < support::parse_version("12.9"))
      return "nvcc " + nvcc.text() + " does not know the suffix f: 12.9 or later does";
    return "";
  }
  return "no nvcc is known that has " + arch.capability().text();
}

}  // namespace builder
