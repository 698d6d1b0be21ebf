// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge/imports/package_imports.h"

#include <algorithm>
#include <utility>

#include "doctor/tables/standard_modules.h"

namespace doctor {
namespace {

// Is `stem` ("libpkg_cpu") a library that Python code opens by `word` ("pkg/libpkg_*.so")? An empty word may be any.
bool is_opened_by(const std::string& word, const std::string& stem) {
  const std::size_t slash = word.rfind('/');
  const std::string name = slash == word.npos ? word : word.substr(slash + 1);
  const std::string plain = name.substr(0, std::min(name.find_first_of(".{*"), name.size()));
  return plain.empty() || stem.starts_with(plain) || ("lib" + plain) == stem;
}

// The package's own modules first, then those of others.
class Finder : public ModuleFinder {
 public:
  Finder(const std::map<std::string, Outline>& outlines, const std::map<std::string, ImportFailure>& compiled,
         const std::set<std::string>& lost, const std::set<std::string>& own_files, bool has_all,
         InstalledModules& others)
      : outlines_(outlines),
        compiled_(compiled),
        lost_(lost),
        own_files_(own_files),
        has_all_(has_all),
        others_(others) {
    for (const auto& [module, outline] : outlines) tops_.insert(module.substr(0, module.find('.')));
    for (const auto& [module, failure] : compiled) tops_.insert(module.substr(0, module.find('.')));
  }

  const Outline* python(const std::string& module) override {
    const auto own = outlines_.find(module);
    if (own != outlines_.end()) return &own->second;
    return is_own(module) ? nullptr : others_.python(module);
  }

  std::optional<ImportFailure> compiled(const std::string& module) override {
    const auto own = compiled_.find(module);
    if (own != compiled_.end()) return own->second;
    return is_own(module) || outlines_.count(module) ? std::nullopt : others_.compiled(module);
  }

  std::string own_module(const std::string& name) override {
    if (is_standard_module(name) || tops_.count(name) || others_.is_there(name)) return "";
    std::string out;
    for (const auto& [module, failure] : compiled_)
      if (module.ends_with("." + name)) {
        if (!out.empty()) return "";
        out = module;
      }
    return out;
  }

  bool is_absent(const std::string& package) override {
    return has_all_ && !tops_.count(package) && others_.is_absent(package);
  }

  bool library_fails(const std::string& package, const std::string& word) override {
    return tops_.count(package.substr(0, package.find('.'))) &&
           std::any_of(lost_.begin(), lost_.end(), [&](const std::string& stem) { return is_opened_by(word, stem); });
  }

  bool brings_libraries(const std::string& package) override {
    return !tops_.count(package) && others_.brings_libraries(package);
  }
  bool has_system_library(const std::string& name) override { return others_.has_system_library(name); }
  // The package's own may be loaded by then.
  bool opens_by_name(const std::string& file) override { return own_files_.count(file) || others_.opens_by_name(file); }

 private:
  // A folder that several packages share (nvidia, google) has no file of its own at the top.
  bool is_own(const std::string& module) const {
    const std::string top = module.substr(0, module.find('.'));
    return tops_.count(top) && (outlines_.count(top) || compiled_.count(top));
  }

  const std::map<std::string, Outline>& outlines_;
  const std::map<std::string, ImportFailure>& compiled_;
  const std::set<std::string>& lost_;
  const std::set<std::string>& own_files_;
  const bool has_all_;
  InstalledModules& others_;
  std::set<std::string> tops_;
};

bool is_for_users(const std::string& module) {
  for (const char* name : {"setup", "conftest", "tests", "test", "docs", "examples", "benchmarks", "benchmark"})
    if (module == name) return false;
  return !module.starts_with("_") && !module.starts_with("test_");
}

}  // namespace

std::vector<std::string> top_modules(const PythonWords& words, const std::map<std::string, ImportFailure>& compiled) {
  std::set<std::string> shown, hidden, lowest;
  std::size_t least_dots = 100;
  const auto look = [&](const std::string& module) {
    const std::size_t dots = std::size_t(std::count(module.begin(), module.end(), '.'));
    if (dots == 0) (is_for_users(module) ? shown : hidden).insert(module);
    // Below folders without a file of their own, the highest packages.
    if (dots < least_dots) least_dots = dots, lowest.clear();
    if (dots == least_dots) lowest.insert(module);
  };
  for (const auto& [module, outline] : words.outlines) look(module);
  for (const auto& [module, failure] : compiled) look(module);
  const std::set<std::string>& out = !shown.empty() ? shown : !hidden.empty() ? hidden : lowest;
  return {out.begin(), out.end()};
}

// An operator that Python code of another package asks for is that package's matter.
bool PackageImports::is_own_namespace(const std::string& name) const {
  const std::string space = name.substr(0, name.find("::"));
  return std::any_of(tops_.begin(), tops_.end(), [&](const std::string& top) { return top == space; });
}

PackageImports::PackageImports(const PythonWords& words, std::map<std::string, ImportFailure> compiled,
                               std::set<std::string> lost, const std::set<std::string>& own_files, bool has_all,
                               const Environment& target)
    : compiled_(std::move(compiled)) {
  if (!target.modules) target.modules = std::make_shared<InstalledModules>(target);
  modules_ = target.modules;
  tops_ = top_modules(words, compiled_);
  const std::pair<int, int> python =
      target.python && target.python->version.known()
          ? std::pair(target.python->version.major_part(), target.python->version.minor_part())
          : std::pair(3, 12);
  // What stops the import hides what lies behind it: that is looked for as if the first had been mended.
  constexpr int kMostRounds = 20;
  std::map<std::string, ImportFailure> as_if = compiled_;
  for (int round = 0; round < kMostRounds; ++round) {
    Finder finder(words.outlines, as_if, lost, own_files, has_all, *modules_);
    ImportOutcome outcome = run_imports(tops_, finder, python);
    opened_.merge(outcome.opened);
    lacking_.merge(outcome.lacking);
    perhaps_lacking_.merge(outcome.perhaps_lacking);
    for (const std::string& name : outcome.operators)
      if (asked_operator_.empty() && is_own_namespace(name)) asked_operator_ = name;
    reached_.merge(outcome.reached);
    bool is_new = std::exchange(stops_at_library_, stops_at_library_ || outcome.stops_at_library) != stops_at_library_;
    if (is_new) lost.clear();
    for (const std::string& module : outcome.stopping) {
      const auto own = as_if.find(module);
      if (own != as_if.end()) {
        own->second = ImportFailure::kNone;
        is_new = stopping_.insert(module).second || is_new;
      } else if (const Verdict* verdict = modules_->verdict(module)) {
        others_.emplace(module, *verdict);
        as_if.emplace(module, ImportFailure::kNone);
        is_new = true;
      } else if (modules_->is_absent(module)) {
        as_if.emplace(module, ImportFailure::kNone);  // the import asks for it and says so
        is_new = true;
      }
    }
    if (!is_new) break;
  }
}

Part PackageImports::part(const std::string& module) const {
  const auto own = compiled_.find(module);
  if (own != compiled_.end() && own->second == ImportFailure::kNone) return Part::kLoads;
  if (stopping_.count(module)) return Part::kStops;
  return reached_.count(module) ? Part::kCaught : Part::kUnreached;
}

std::string PackageImports::library(const std::string& name) const {
  const auto loaded = modules_->libraries().find(name);
  return loaded != modules_->libraries().end() ? loaded->second : modules_->library_for_others(reached_, name);
}

bool PackageImports::opens_for_certain(const std::string& stem) const {
  return std::any_of(opened_.begin(), opened_.end(), [&](const std::string& word) { return is_opened_by(word, stem); });
}

}  // namespace doctor
