// SPDX-License-Identifier: Apache-2.0
// The modules that a target's Python finds in its folders of packages, beside the package that is judged: what that
// one imports, and whether it can be loaded. Read when first asked for, and kept for the next package.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "doctor/facts/environment.h"
#include "doctor/load/resolve.h"
#include "doctor/read/binary.h"
#include "doctor/read/python/import_run.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

class InstalledModules : public ModuleFinder {
 public:
  explicit InstalledModules(const Environment& target);
  ~InstalledModules() override;

  const Outline* python(const std::string& module) override;
  std::optional<ImportFailure> compiled(const std::string& module) override;
  bool is_absent(const std::string& package) override;
  bool has_system_library(const std::string& name) override;
  bool opens_by_name(const std::string& file) override;

  // Is something of this name in the folders of packages?
  bool is_there(const std::string& package);
  // Are there libraries in its folder, or where wheels put them?
  bool brings_libraries(const std::string& package);
  // Of a module that cannot be loaded.
  const Verdict* verdict(const std::string& module) const;
  // Where the libraries lie that compiled modules asked for so far, by the name they asked for.
  const std::map<std::string, std::string>& libraries() const { return libraries_; }
  // Where this library lies in one of these packages that is there to open it for others, or in one that such a package
  // imports (libraft.load_library(), rapids_logger); empty: in none.
  std::string library_for_others(const std::set<std::string>& packages, const std::string& library);

 private:
  struct Compiled {
    std::optional<Binary> binary;
    std::optional<ImportFailure> failure;
    std::optional<Verdict> verdict;
  };
  const std::set<std::string>& names_in(const std::string& folder);
  // The first of site-packages that has a file of this name there; empty if none has.
  std::string find_file(const std::string& module, const std::vector<std::string>& endings);
  void judge(const std::string& path, Compiled& out);
  NumpyUse numpy_use(const Binary& module, const Resolution& said);

  const Environment target_;  // a copy: it outlives the one it was made for
  std::unique_ptr<LoadSession> session_;
  std::map<std::string, std::set<std::string>> folders_;
  std::map<std::string, std::unique_ptr<Outline>> outlines_;
  std::map<std::string, Compiled> compiled_;
  std::map<std::string, std::string> libraries_;
  std::map<std::string, std::optional<Binary>> beside_;  // libraries in the folder of a module, by path
};

}  // namespace doctor
