// SPDX-License-Identifier: Apache-2.0
#include "doctor/system/survey.h"

#include <chrono>

#include "doctor/load/library_store.h"

namespace doctor {

Survey survey(const Outlook& outlook) {
  const auto begin = std::chrono::steady_clock::now();
  Survey out;
  out.outlook = outlook;
  out.host = read_host(outlook);
  out.driver = read_driver(outlook, out.host.loader);
  out.gpus = read_gpus(outlook);
  out.compilers = read_compilers(outlook);
  out.pythons = read_pythons(outlook, out.host.machine);
  std::vector<std::string> prefixes, sites;
  for (const PythonInstall& python : out.pythons) {
    if (python.kind == "conda") prefixes.push_back(python.prefix);
    sites.insert(sites.end(), python.facts.site_packages.begin(), python.facts.site_packages.end());
  }
  out.toolkits = read_toolkits(outlook, prefixes, sites);
  if (const auto ninja = outlook.on_path("ninja"); !ninja.empty()) out.ninja = ninja[0];
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return out;
}

const PythonInstall* find_python(Survey& survey, const std::string& given) {
  std::string path = given;
  if (path.find('/') == path.npos) {
    const auto found = survey.outlook.on_path(path);
    if (!found.empty()) path = found[0];
  }
  path = join_path(survey.outlook.folder, path);
  const Files& files = survey.outlook.files;
  if (files.is_folder(path))
    for (const char* name : {"/bin/python", "/bin/python3"})
      if (files.is_executable(path + name)) {
        path += name;
        break;
      }
  auto python = read_python(survey.outlook, path, survey.host.machine);
  if (!python) return nullptr;
  for (const PythonInstall& known : survey.pythons)
    if (known.prefix == python->prefix && known.facts.version == python->facts.version) return &known;
  python->found_by.push_back("--python");
  survey.pythons.push_back(std::move(*python));
  return &survey.pythons.back();
}

const PythonInstall* default_python(const Survey& survey) {
  if (survey.pythons.empty()) return nullptr;
  const PythonInstall& active = survey.pythons[0];
  if (active.torch) return &active;
  for (const PythonInstall& python : survey.pythons)
    if (python.torch) return &python;
  return &active;
}

Environment environment_of(const Survey& survey, const PythonInstall* python) {
  const HostFacts& host = survey.host;
  Environment out;
  out.name = survey.outlook.files.root().empty() ? "this machine" : survey.outlook.files.root();
  out.machine = host.machine;
  out.page_bytes = host.page_bytes;
  out.libc = host.libc;
  out.libc_version = host.libc_version;
  out.libc_path = host.libc_path;
  out.libstdcxx_path = host.libstdcxx_path;
  out.glibcxx = host.glibcxx;
  out.cxxabi = host.cxxabi;
  out.loader = host.loader;
  if (python) {
    out.python = python->facts;
    if (const InstalledPackage* numpy = python->package("numpy")) out.python->numpy = parse_version(numpy->version);
    out.torch = python->torch;
  }
  out.driver = survey.driver.version;
  out.driver_cuda = survey.driver.cuda;
  // Without a driver nothing can be said about GPUs that a job may get elsewhere.
  out.gpus_known = survey.driver.version.known();
  for (const FoundGpu& gpu : survey.gpus) {
    if (gpu.capability) out.gpus.push_back({gpu.name, *gpu.capability});
    out.gpus_known &= gpu.capability.has_value();
  }
  out.libraries = disk_libraries(survey.outlook.files.root());
  return out;
}

}  // namespace doctor
