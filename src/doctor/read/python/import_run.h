// SPDX-License-Identifier: Apache-2.0
// What `import PACKAGE` leads to, step by step through the outlines of its Python files: which modules are imported,
// which of those that cannot be loaded stop it, and which are caught on the way. Nothing is executed. Where a condition
// is not known, its branches are taken to run.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/read/python/outline.h"

namespace doctor {

// Why a module cannot be imported, as far as handlers tell failures apart.
enum class ImportFailure : uint8_t {
  kNone,
  kImportError,
  kModuleNotFound,
  kValueError,
  kOsError,
  kRuntimeError,
  kProcessEnds
};

// The modules that an import may meet.
class ModuleFinder {
 public:
  virtual ~ModuleFinder() = default;
  // Its Python file; nullptr if it has none.
  virtual const Outline* python(const std::string& module) = 0;
  // Its compiled file: nothing if it has none, else whether it can be loaded.
  virtual std::optional<ImportFailure> compiled(const std::string& module) = 0;
  // The whole name of a compiled module that is found by this one, since its package added the folder to the path
  // (ScaNN's scann_pybind); empty: there is none.
  virtual std::string own_module(const std::string& /*name*/) { return ""; }
  // Is there no such package (first part of a name), neither in this Python nor among what the judged one brings? False
  // where that is not known.
  virtual bool is_absent(const std::string& /*package*/) { return false; }
  // Is a library that the Python code of this package opens by `word` (empty: not in the text) known to fail?
  virtual bool library_fails(const std::string& /*package*/, const std::string& /*word*/) { return false; }
  // Does this package, which is installed, bring libraries? Then one that it opens by a name that is not in the text is
  // taken to be one of these.
  virtual bool brings_libraries(const std::string& /*package*/) { return false; }
  // Does ctypes.util.find_library find this library of the system ("portaudio")? True where that is not known.
  virtual bool has_system_library(const std::string& /*name*/) { return true; }
  // Does dlopen find this file ("libpulse.so.0") by its name alone? True where that is not known.
  virtual bool opens_by_name(const std::string& /*file*/) { return true; }
};

struct ImportOutcome {
  std::set<std::string> reached;  // modules, in dotted names: "pkg", "pkg._C", "torch"
  // Modules that could not be imported and stopped `import` of a top module.
  std::set<std::string> stopping;
  // Libraries that are opened by ctypes or torch.ops where a failure is not caught; "" where the name is not in the
  // text.
  std::set<std::string> opened;
  bool stops_at_library = false;  // one of these is known to fail, and stopped it
  // Libraries of the system that find_library does not find ("portaudio"), or dlopen ("libpulse.so.0"), where that
  // stops it, and where it may ("": one whose name is not in the text).
  std::set<std::string> lacking, perhaps_lacking;
  // Operators of torch ("pkg::nms") without which the import stops, since Python code registers something for them.
  std::set<std::string> operators;
};

// Imports these one after the other. `python` is the target's version (major, minor), by which conditions are decided.
ImportOutcome run_imports(const std::vector<std::string>& top_modules, ModuleFinder& finder,
                          std::pair<int, int> python = {3, 12});

}  // namespace doctor
