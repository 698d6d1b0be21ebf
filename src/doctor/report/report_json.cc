// SPDX-License-Identifier: Apache-2.0
#include "doctor/report/report_json.h"

#include <nlohmann/json.hpp>

#include "doctor/facts/mangled.h"
#include "doctor/tables/tables.h"
#include "doctor/verdict/verdict_json.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

using nlohmann::json;

json version_json(const Version& version) { return version.known() ? json(version.text()) : json(); }
json text_json(const std::string& text) { return text.empty() ? json() : json(printable(text, 4096)); }

json abi_json(CxxAbi abi) {
  switch (abi) {
    case CxxAbi::kNew: return "new";
    case CxxAbi::kOld: return "old";
    case CxxAbi::kMixed: return "mixed";
    case CxxAbi::kNeutral: return "neutral";
    default: return {};
  }
}

json host_json(const HostFacts& host) {
  json disks = json::array();
  for (const DiskSpace& disk : host.disks)
    disks.push_back(
        {{"folder", printable(disk.folder)}, {"free_bytes", disk.free_bytes}, {"total_bytes", disk.total_bytes}});
  return {{"machine", text_json(host.machine)},
          {"system", text_json(host.system)},
          {"kernel", text_json(host.kernel)},
          {"libc", text_json(host.libc)},
          {"libc_version", version_json(host.libc_version)},
          {"glibcxx", version_json(host.glibcxx)},
          {"cxxabi", version_json(host.cxxabi)},
          {"cores", host.cores},
          {"cores_allowed", host.cores_allowed},
          {"memory_bytes", host.memory_bytes},
          {"memory_available_bytes", host.memory_available_bytes},
          {"memory_limit_bytes", host.memory_limit_bytes ? json(*host.memory_limit_bytes) : json()},
          {"memory_used_bytes", host.memory_used_bytes},
          {"cgroup_version", host.cgroup_version},
          {"disks", disks},
          {"problems", host.problems}};
}

json python_json(const PythonInstall& python) {
  json torch, packages = json::object();
  if (python.torch)
    torch = {{"version", text_json(python.torch->version)},
             {"cuda", text_json(python.torch->cuda_version)},
             {"cxx_abi", abi_json(python.torch->cxx_abi)},
             {"folder", text_json(python.torch->folder)}};
  for (const InstalledPackage& package : python.packages)
    packages[printable(package.name)] = printable(package.version);
  return {{"program", text_json(python.program)},
          {"executable", text_json(python.facts.executable)},
          {"prefix", text_json(python.prefix)},
          {"version", version_json(python.facts.version)},
          {"soabi", text_json(python.facts.soabi)},
          {"free_threaded", python.facts.free_threaded},
          {"kind", text_json(python.kind)},
          {"found_by", python.found_by},
          {"active", python.is_active},
          {"site_packages", python.facts.site_packages},
          {"torch", torch},
          {"packages", packages}};
}

}  // namespace

json as_json(const Survey& survey) {
  json out = {{"host", host_json(survey.host)},
              {"driver",
               {{"version", version_json(survey.driver.version)},
                {"cuda", version_json(survey.driver.cuda)},
                {"found_in", text_json(survey.driver.found_in)},
                {"library", text_json(survey.driver.library)}}},
              {"gpus", json::array()},
              {"toolkits", json::array()},
              {"compilers", json::array()},
              {"pythons", json::array()},
              {"ninja", text_json(survey.ninja)},
              {"seconds", survey.seconds}};
  for (const FoundGpu& gpu : survey.gpus)
    out["gpus"].push_back({{"name", text_json(gpu.name)},
                           {"place", text_json(gpu.place)},
                           {"device_id", gpu.device_id},
                           {"compute_capability", gpu.capability ? json(gpu.capability->text()) : json()}});
  for (const Toolkit& toolkit : survey.toolkits)
    out["toolkits"].push_back({{"folder", text_json(toolkit.folder)},
                               {"version", version_json(toolkit.version)},
                               {"nvcc", text_json(toolkit.nvcc)},
                               {"found_by", toolkit.found_by},
                               {"first", toolkit.is_first},
                               {"cuda_home", toolkit.is_cuda_home}});
  for (const Compiler& compiler : survey.compilers)
    out["compilers"].push_back({{"name", text_json(compiler.name)},
                                {"path", text_json(compiler.path)},
                                {"kind", text_json(compiler.kind)},
                                {"version", version_json(compiler.version)},
                                {"cxx_abi", abi_json(compiler.cxx_abi)},
                                {"first", compiler.is_first}});
  for (const PythonInstall& python : survey.pythons) out["pythons"].push_back(python_json(python));
  return out;
}

json tables_json() {
  json out = json::array();
  for (const AgingTable& table : aging_tables())
    out.push_back({{"file", table.file},
                   {"as_of", table.as_of},
                   {"what", table.what},
                   {"source", table.source},
                   {"refresh", table.refresh}});
  return out;
}

json as_json(const std::vector<Judged>& judged) {
  json out = json::array();
  for (const Judged& item : judged)
    out.push_back({{"subject", printable(item.subject, 4096)},
                   {"target", printable(item.target, 4096)},
                   {"verdicts", as_json(std::span<const Verdict>(item.verdicts))}});
  return out;
}

}  // namespace doctor
