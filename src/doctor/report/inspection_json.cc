// SPDX-License-Identifier: Apache-2.0
#include "doctor/report/inspection_json.h"

#include <nlohmann/json.hpp>

#include "doctor/facts/facts.h"
#include "doctor/facts/gpu_rules.h"
#include "doctor/facts/mangled.h"
#include "doctor/read/wheel_name.h"
#include "doctor/verdict/verdict_json.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

using nlohmann::json;

template <class Names>
json strings(const Names& names) {
  json out = json::array();
  for (const auto& name : names) out.push_back(std::string(name));
  return out;
}

json version_or_null(const Version& version) { return version.known() ? json(version.text()) : json(); }

json floor_json(const VersionFloor& floor) {
  if (!floor.known()) return {};
  return {{"version", floor.version.text()}, {"library", floor.library}, {"symbols", floor.symbols}};
}

const char* code_name(GpuCode code) {
  switch (code) {
    case GpuCode::kPtx: return "ptx";
    case GpuCode::kCubin: return "cubin";
    case GpuCode::kLtoIr: return "lto-ir";
    case GpuCode::kOther: return "other";
  }
  return "other";
}

json entry_json(const FatbinEntry& entry) {
  return {{"kind", code_name(entry.code)},
          {"arch", entry.arch.text(entry.code == GpuCode::kPtx ? "compute_" : "sm_")},
          {"ptx_isa", version_or_null(entry.ptx_isa)},
          {"cubin_abi", entry.cubin_abi == 0 ? json() : json(entry.cubin_abi)},
          {"toolkit", version_or_null(entry.toolkit)},
          {"lowest_toolkit", version_or_null(lowest_toolkit(entry))},
          {"lowest_driver", version_or_null(lowest_driver(entry))},
          {"compression", compression_name(entry.compression)},
          {"empty", entry.empty}};
}

json gpu_json(const GpuFacts& gpu) {
  json groups = json::array();
  for (const GpuGroup& group : gpu.groups) {
    json entries = json::array();
    for (const FatbinEntry& entry : group.entries) entries.push_back(entry_json(entry));
    groups.push_back({{"containers", group.containers}, {"entries", entries}});
  }
  return {{"containers", gpu.containers},
          {"empty_containers", gpu.empty_containers},
          {"groups", groups},
          {"lowest_driver", version_or_null(gpu.lowest_driver)},
          {"gpus", gpu.served},
          {"gpus_in_part", gpu.served_partly}};
}

json binary_json(const Binary& binary) {
  json out = {{"path", binary.path}, {"size", binary.size}};
  if (binary.cubin) {
    out["cubin"] = {{"arch", binary.cubin->arch.text()},
                    {"abi", binary.cubin->abi},
                    {"toolkit", version_or_null(binary.cubin->toolkit)},
                    {"command_line", binary.cubin->command_line},
                    {"kernels", binary.cubin->kernels}};
    return out;
  }
  const BinaryFacts facts = facts_of(binary);
  out["gpu_code"] = gpu_json(facts.gpu);
  if (binary.bare_fatbin) return out;
  out["machine"] = machine_name(binary.elf);
  out["soname"] = std::string(binary.elf.soname);
  out["needed"] = strings(binary.elf.needed);
  out["rpath"] = std::string(binary.elf.rpath);
  out["runpath"] = std::string(binary.elf.runpath);
  out["build_id"] = binary.elf.build_id;
  out["glibc"] = floor_json(facts.glibc);
  out["glibcxx"] = floor_json(facts.glibcxx);
  out["cxxabi"] = floor_json(facts.cxxabi);
  out["cxx_abi"] = {
      {"abi", cxx_abi_name(facts.cxx_abi.abi)}, {"old", facts.cxx_abi.old_symbols}, {"new", facts.cxx_abi.new_symbols}};
  out["python"] = {{"soabi", facts.module.soabi},
                   {"init_functions", facts.python.init_functions},
                   {"symbols", facts.python.imports},
                   {"stable_abi", version_or_null(facts.python.limited)},
                   {"outside_stable_abi", facts.python.beyond}};
  out["torch"] = {{"used", facts.uses_torch},
                  {"stable_abi_only", facts.torch_stable},
                  {"symbols", facts.cxx_abi.torch_symbols},
                  {"first", version_or_null(facts.torch_stable ? facts.torch_stable_need.torch : facts.torch.first)},
                  {"last", version_or_null(facts.torch.last)}};
  out["cuda_major"] = facts.cuda_major == 0 ? json() : json(facts.cuda_major);
  return out;
}

}  // namespace

json as_json(const Inspection& inspection) {
  const char* kinds[] = {"wheel", "elf", "cubin", "fatbin", "folder", "package"};
  json out = {{"path", inspection.path}, {"kind", kinds[int(inspection.kind)]}, {"binaries", json::array()}};
  if (inspection.wheel) {
    const Wheel& wheel = *inspection.wheel;
    json tags = json::array();
    if (wheel.name)
      for (const WheelTag& tag : wheel.name->tags) tags.push_back(tag.text());
    out[inspection.kind == FileKind::kPackage ? "package" : "wheel"] = {
        {"file_name", wheel.file_name},
        {"name", wheel.metadata.first("Name")},
        {"version", wheel.metadata.first("Version")},
        {"tags", tags},
        {"requires_python", wheel.metadata.first("Requires-Python")},
        {"requires_dist", wheel.metadata.all("Requires-Dist")},
        {"files", wheel.entries.size()},
        {"size", wheel.size}};
  }
  for (const Binary& binary : binaries_of(inspection)) out["binaries"].push_back(binary_json(binary));
  return out;
}

}  // namespace doctor
