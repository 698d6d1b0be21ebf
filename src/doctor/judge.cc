// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge.h"

#include <elf.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "doctor/text.h"
#include "doctor/torch_claim.h"

namespace doctor {
namespace {

const std::vector<Binary>& binaries_of(const Inspection& inspection) {
  return inspection.wheel ? inspection.wheel->binaries : inspection.binaries;
}

// Where a wheel's files will lie. Scripts and data folders move; what they hold is not imported.
std::string placed_path(const Inspection& inspection, const Binary& binary, const Environment& target) {
  if (!inspection.wheel) {
    std::error_code error;
    const auto absolute = std::filesystem::absolute(binary.path, error);
    return error ? binary.path : absolute.lexically_normal().string();
  }
  const std::string folder =
      target.python && !target.python->site_packages.empty() ? target.python->site_packages[0] : "/site-packages";
  const std::string data =
      inspection.wheel->dist_info.empty()
          ? ""
          : inspection.wheel->dist_info.substr(0, inspection.wheel->dist_info.size() - 10) + ".data/";
  for (const char* scheme : {"platlib/", "purelib/"})
    if (!data.empty() && binary.path.starts_with(data + scheme))
      return folder + "/" + binary.path.substr(data.size() + std::string(scheme).size());
  return folder + "/" + binary.path;
}

bool is_library(const Binary& binary) {
  return !binary.cubin && !binary.bare_fatbin && binary.elf.type == ET_DYN && binary.elf.has_dynamic &&
         binary.elf.interpreter.empty();
}

// What Python opens by itself. Libraries that only others need are met through those.
bool is_module(const Binary& binary, const BinaryFacts& facts) {
  return is_library(binary) && (!facts.python.init_functions.empty() || facts.module.naming == ModuleNaming::kCpython ||
                                facts.module.naming == ModuleNaming::kAbi3 || facts.uses_torch);
}

// The binaries that are opened: modules; where there are none, what no other one needs (ctypes opens such).
std::vector<std::size_t> opened(const Inspection& inspection, const std::vector<BinaryFacts>& facts) {
  const std::vector<Binary>& binaries = binaries_of(inspection);
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < binaries.size(); ++i)
    if (is_module(binaries[i], facts[i]) || inspection.kind == FileKind::kElf) out.push_back(i);
  if (!out.empty()) return out;
  std::set<std::string_view> needed;
  for (const Binary& binary : binaries) needed.insert(binary.elf.needed.begin(), binary.elf.needed.end());
  for (std::size_t i = 0; i < binaries.size(); ++i)
    if (is_library(binaries[i]) && !needed.count(binaries[i].elf.soname) && !needed.count(base_name(binaries[i].path)))
      out.push_back(i);
  return out;
}

bool has_code(const std::vector<Verdict>& verdicts, std::size_t from, std::string_view code) {
  return std::any_of(verdicts.begin() + std::ptrdiff_t(from), verdicts.end(),
                     [&](const Verdict& verdict) { return verdict.code == code; });
}

}  // namespace

std::vector<Verdict> judge(const Inspection& inspection) {
  std::vector<Verdict> out = inspection.problems;
  if (inspection.wheel) {
    const Wheel& wheel = *inspection.wheel;
    out.insert(out.end(), wheel.problems.begin(), wheel.problems.end());
    // Of an archive that could not be opened, nothing else is known.
    if (!wheel.entries.empty()) judge_wheel(wheel, out);
  }
  for (const Binary& binary : binaries_of(inspection)) judge_binary(binary, facts_of(binary), out);
  return out;
}

std::vector<Verdict> judge(const Inspection& inspection, const Environment& target) {
  std::vector<Verdict> out = judge(inspection);
  const std::size_t before = out.size();
  if (inspection.wheel) judge_wheel(*inspection.wheel, target, out);
  // What pip refuses is never loaded.
  if (has_code(out, before, "WHEEL_TAG_PYTHON") || has_code(out, before, "WHEEL_TAG_PLATFORM")) return out;
  const std::vector<Binary>& binaries = binaries_of(inspection);
  std::vector<BinaryFacts> facts;
  for (const Binary& binary : binaries) facts.push_back(facts_of(binary));
  LoadRequest request;
  // Files of a folder lie on the disk already.
  if (inspection.wheel)
    for (const Binary& binary : binaries)
      if (is_library(binary)) request.beside.push_back({placed_path(inspection, binary, target), &binary.elf});
  TorchClaim claim;
  if (inspection.wheel)
    claim = claimed_torch(inspection.wheel->metadata, inspection.wheel->name ? inspection.wheel->name->version : "");
  for (const std::size_t i : opened(inspection, facts)) {
    request.file = {placed_path(inspection, binaries[i], target), &binaries[i].elf};
    judge_load(binaries[i], facts[i], request, target, out);
    if (facts[i].uses_torch && !facts[i].torch_stable && !out.empty()) doubt(claim, target, out.back());
  }
  for (std::size_t i = 0; i < binaries.size(); ++i) judge_gpu(binaries[i], facts[i], target, out);
  return out;
}

}  // namespace doctor
