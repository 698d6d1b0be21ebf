// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge.h"

#include <elf.h>

#include <algorithm>
#include <filesystem>
#include <map>

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

// What Python or ctypes opens by itself. Libraries that only others need are met through those.
bool is_opened(const Binary& binary, const BinaryFacts& facts, bool is_only) {
  if (binary.cubin || binary.bare_fatbin) return false;
  if (binary.elf.type != ET_DYN || !binary.elf.has_dynamic || !binary.elf.interpreter.empty()) return is_only;
  return is_only || !facts.python.init_functions.empty() || facts.module.naming == ModuleNaming::kCpython ||
         facts.module.naming == ModuleNaming::kAbi3 || facts.uses_torch;
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
  if (inspection.wheel) judge_wheel(*inspection.wheel, target, out);
  const std::vector<Binary>& binaries = binaries_of(inspection);
  LoadRequest request;
  std::map<std::string, std::size_t> needed_by_others;
  for (const Binary& binary : binaries) {
    if (binary.cubin || binary.bare_fatbin) continue;
    request.beside.push_back({placed_path(inspection, binary, target), &binary.elf});
    for (const std::string_view name : binary.elf.needed) ++needed_by_others[std::string(name)];
  }
  const bool is_wheel = inspection.wheel.has_value();
  if (!is_wheel) request.beside.clear();  // they lie on the disk already
  TorchClaim claim;
  if (is_wheel)
    claim = claimed_torch(inspection.wheel->metadata, inspection.wheel->name ? inspection.wheel->name->version : "");
  bool opened_any = false;
  for (const int round : {0, 1}) {
    // Where nothing is a module, the libraries that no other one needs are what is opened.
    if (round == 1 && opened_any) break;
    for (const Binary& binary : binaries) {
      const BinaryFacts facts = facts_of(binary);
      const bool loose = round == 1 && !needed_by_others.count(std::string(binary.elf.soname)) &&
                         !needed_by_others.count(base_name(binary.path)) && binary.elf.type == ET_DYN &&
                         binary.elf.has_dynamic;
      if (!is_opened(binary, facts, loose || inspection.kind == FileKind::kElf)) continue;
      opened_any = true;
      request.file = {placed_path(inspection, binary, target), &binary.elf};
      judge_load(binary, facts, request, target, out);
      if (facts.uses_torch && !facts.torch_stable && !out.empty()) doubt(claim, target, out.back());
    }
  }
  for (const Binary& binary : binaries) judge_gpu(binary, facts_of(binary), target, out);
  return out;
}

}  // namespace doctor
