// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge/imports/installed_modules.h"

#include <algorithm>

#include "doctor/judge/imports/numpy_interface.h"
#include "doctor/judge/judge_load.h"
#include "doctor/judge/own_check.h"
#include "doctor/load/library_store.h"
#include "doctor/tables/standard_modules.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr uint64_t kMostSourceBytes = 2 << 20;
constexpr std::size_t kMostModules = 20'000;

// torch is loaded before all others, and is judged by itself.
bool is_followed(const std::string& module) { return module != "torch" && !module.starts_with("torch."); }

}  // namespace

InstalledModules::InstalledModules(const Environment& target) : target_(target) {}
InstalledModules::~InstalledModules() = default;

const std::set<std::string>& InstalledModules::names_in(const std::string& folder) {
  const auto [it, is_new] = folders_.try_emplace(folder);
  if (is_new && target_.libraries) {
    const std::vector<std::string> names = target_.libraries->names(folder);
    it->second.insert(names.begin(), names.end());
  }
  return it->second;
}

std::string InstalledModules::find_file(const std::string& module, const std::vector<std::string>& endings) {
  if (!target_.python || !is_followed(module)) return "";
  std::string inside = module;
  std::replace(inside.begin(), inside.end(), '.', '/');
  for (const std::string& site : target_.python->site_packages) {
    const std::string whole = site + "/" + inside;
    for (const std::string& ending : endings) {
      const std::string path = whole + ending;
      // Only in folders that are there: a name below another is mostly a function.
      const std::string folder = folder_name(path);
      const std::string above = folder_name(folder);
      if (folder != site && above.starts_with(site) && !names_in(above).count(base_name(folder))) continue;
      if (names_in(folder).count(base_name(path))) return path;
    }
  }
  return "";
}

bool InstalledModules::is_there(const std::string& package) {
  if (!target_.python) return false;
  return std::any_of(target_.python->site_packages.begin(), target_.python->site_packages.end(),
                     [&](const std::string& site) {
                       const std::set<std::string>& names = names_in(site);
                       const auto dotted = names.lower_bound(package + ".");
                       return names.count(package) || (dotted != names.end() && dotted->starts_with(package + "."));
                     });
}

bool InstalledModules::brings_libraries(const std::string& package) {
  if (!target_.python) return false;
  for (const std::string& site : target_.python->site_packages)
    for (const char* folder : {"", "/lib", "/lib64", "/libs", ".libs"})
      for (const std::string& name : names_in(site + "/" + package + folder))
        if (name.find(".so") != name.npos) return true;
  return false;
}

bool InstalledModules::is_absent(const std::string& package) {
  if (!target_.python || is_standard_module(package) || !is_followed(package) || is_there(package)) return false;
  bool is_listed = false;
  for (const std::string& site : target_.python->site_packages)
    for (const std::string& name : names_in(site)) {
      is_listed |= name.ends_with(".dist-info");
      if (name.starts_with("__editable__")) return false;  // what it finds by code is not in the folder
    }
  return is_listed;
}

// ctypes asks ldconfig for its list, and then a linker for the folders that it looks into.
bool InstalledModules::has_system_library(const std::string& name) {
  if (target_.loader.cache.empty() || !target_.libraries) return true;
  const std::string begin = "lib" + name + ".";
  for (const auto& [soname, path] : target_.loader.cache)
    if (soname.starts_with(begin)) return true;
  for (const auto* folders : {&target_.loader.library_path, &target_.loader.default_folders})
    for (const std::string& folder : *folders)
      if (const auto& names = names_in(folder);
          names.lower_bound(begin) != names.end() && names.lower_bound(begin)->starts_with(begin))
        return true;
  return false;
}

// What dlopen does with a bare name, from a Python that may look into its own prefix (conda's does).
bool InstalledModules::opens_by_name(const std::string& file) {
  if (target_.loader.cache.empty() || !target_.libraries || libraries_.count(file)) return true;
  for (const auto& [soname, path] : target_.loader.cache)
    if (soname == file) return true;
  std::vector<std::string> folders = target_.loader.library_path;
  folders.insert(folders.end(), target_.loader.default_folders.begin(), target_.loader.default_folders.end());
  if (target_.python)
    for (const std::string& site : target_.python->site_packages) folders.push_back(folder_name(folder_name(site)));
  return std::any_of(folders.begin(), folders.end(),
                     [&](const std::string& folder) { return names_in(folder).count(file) > 0; });
}

const Outline* InstalledModules::python(const std::string& module) {
  const auto [it, is_new] = outlines_.try_emplace(module);
  if (!is_new || outlines_.size() > kMostModules) return it->second.get();
  const std::string path = find_file(module, {"/__init__.py", ".py"});
  if (path.empty()) return nullptr;
  std::string below = module;
  std::replace(below.begin(), below.end(), '.', '/');
  below += path.ends_with("/__init__.py") ? "/__init__.py" : ".py";
  if (const auto text = target_.libraries->text(path, kMostSourceBytes))
    it->second = std::make_unique<Outline>(outline_of(below, *text));
  return it->second.get();
}

void InstalledModules::judge(const std::string& path, Compiled& out) {
  out.binary = target_.libraries->binary(path);
  out.failure = ImportFailure::kNone;
  if (!out.binary) return;
  out.binary->path = path;
  if (!session_) session_ = std::make_unique<LoadSession>(target_, std::vector<PlacedFile>{});
  const BinaryFacts facts = facts_of(*out.binary);
  std::vector<Verdict> verdicts;
  const auto said = judge_load(*out.binary, facts, *session_, {path, &out.binary->elf}, {}, target_, verdicts);
  if (!said) return;
  for (const auto& [name, where] : said->loaded) libraries_.emplace(name, where);
  if (said->failure != LoadFailure::kNone) {
    out.failure = import_failure(*said);
    out.verdict = verdicts.back();
  } else if (auto other = judge_pybind11(*out.binary, facts, target_)) {
    out.failure = ImportFailure::kImportError;
    out.verdict = std::move(other);
  } else if (auto numpy = judge_numpy(*out.binary, facts, numpy_use(*out.binary, *said), target_)) {
    out.failure = numpy->failure;
    out.verdict = std::move(numpy->verdict);
  }
}

std::string InstalledModules::library_for_others(const std::set<std::string>& packages, const std::string& library) {
  if (!target_.python) return "";
  std::set<std::string> openers;
  for (const std::string& package : packages) {
    if (package.find('.') != package.npos || is_standard_module(package)) continue;
    for (const std::string& module : {package + ".load", package}) {
      const Outline* outline = python(module);
      if (!outline || std::none_of(outline->steps.begin(), outline->steps.end(),
                                   [](const Step& step) { return step.kind == StepKind::kOpen; }))
        continue;
      openers.insert(package);
      for (const Step& step : outline->steps)
        if (step.kind == StepKind::kImport) openers.insert(step.name.substr(0, step.name.find('.')));
    }
  }
  for (const std::string& site : target_.python->site_packages)
    for (const std::string& package : openers)
      for (const char* folder : {"/lib64", "/lib", ""})
        if (names_in(site + "/" + package + folder).count(library))
          return site + "/" + package + folder + "/" + library;
  return "";
}

NumpyUse InstalledModules::numpy_use(const Binary& module, const Resolution& said) {
  if (!target_.python || !target_.python->numpy.known()) return {};
  return numpy_use_of(module, [&](const std::string& needed) -> const Binary* {
    const auto found = std::find_if(said.loaded.begin(), said.loaded.end(),
                                    [&](const auto& library) { return library.first == needed; });
    if (found == said.loaded.end() || folder_name(found->second) != folder_name(module.path)) return nullptr;
    const auto [it, is_new] = beside_.try_emplace(found->second);
    if (is_new) it->second = target_.libraries->binary(found->second);
    return it->second ? &*it->second : nullptr;
  });
}

std::optional<ImportFailure> InstalledModules::compiled(const std::string& module) {
  const auto [it, is_new] = compiled_.try_emplace(module);
  if (!is_new || compiled_.size() > kMostModules) return it->second.failure;
  const std::string soabi = target_.python ? target_.python->soabi : "";
  const std::string path =
      find_file(module, {"/__init__." + soabi + ".so", "." + soabi + ".so", ".abi3.so", ".abi3t.so", ".so"});
  if (!path.empty()) judge(path, it->second);
  return it->second.failure;
}

const Verdict* InstalledModules::verdict(const std::string& module) const {
  const auto found = compiled_.find(module);
  return found != compiled_.end() && found->second.verdict ? &*found->second.verdict : nullptr;
}

}  // namespace doctor
