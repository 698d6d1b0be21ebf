// SPDX-License-Identifier: Apache-2.0
// `import` of a package's top modules, with what is known of its compiled files and of the packages beside it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "doctor/facts/environment.h"
#include "doctor/judge/imports/installed_modules.h"
#include "doctor/read/python/imports.h"

namespace doctor {

// What became of a compiled module of the package.
enum class Part { kLoads, kStops, kCaught, kUnreached };

class PackageImports {
 public:
  // `compiled`: the package's own compiled modules, in dotted names, and whether each can be loaded.
  // `lost`: the stems of its libraries ("libpkg"), if none of all its files can be loaded; else nothing.
  // `own_files`: the names of all its libraries. `has_all`: is installed what it requires? Else what is not there may
  // come with that.
  PackageImports(const PythonWords& words, std::map<std::string, ImportFailure> compiled, std::set<std::string> lost,
                 const std::set<std::string>& own_files, bool has_all, const Environment& target);

  // False where the package has no Python file and no module of its own: nothing is known of its import then.
  bool is_known() const { return !tops_.empty(); }
  Part part(const std::string& module) const;
  bool reaches(const std::string& module) const { return reached_.count(module) > 0; }
  // Modules of other packages that stop the import, each with its verdict.
  const std::map<std::string, Verdict>& others() const { return others_; }
  // Is a library that ctypes or torch.ops opens opened where a failure stops the import? `stem`: "libpkg" of libpkg.so.
  bool opens_for_certain(const std::string& stem) const;
  // Does the import stop where it finds none of its libraries?
  bool stops_at_library() const { return stops_at_library_; }
  // Libraries of the system that it looks for and that are not there: those without which the import stops, and those
  // of which it cannot be told.
  const std::set<std::string>& lacking() const { return lacking_; }
  const std::set<std::string>& perhaps_lacking() const { return perhaps_lacking_; }
  // The first operator of torch that the import asks for and that is not there unless a library of the package made it
  // ("pkg::nms"); empty: none.
  const std::string& asked_operator() const { return asked_operator_; }
  // Where a library of another package lies that is loaded on the way; empty: none of this name.
  std::string library(const std::string& name) const;

 private:
  bool is_own_namespace(const std::string& name) const;

  std::vector<std::string> tops_;
  std::map<std::string, ImportFailure> compiled_;
  std::shared_ptr<InstalledModules> modules_;
  std::set<std::string> stopping_, reached_;
  std::set<std::string> opened_;
  std::set<std::string> lacking_, perhaps_lacking_;
  std::string asked_operator_;
  bool stops_at_library_ = false;
  std::map<std::string, Verdict> others_;
};

// "pkg", "mod" of what lies at the top: what its users import. Private ones only where there are no others.
std::vector<std::string> top_modules(const PythonWords& words, const std::map<std::string, ImportFailure>& compiled);

}  // namespace doctor
