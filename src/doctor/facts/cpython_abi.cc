// SPDX-License-Identifier: Apache-2.0
#include "doctor/facts/cpython_abi.h"

#include <algorithm>

#include "doctor/tables/stable_abi.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

bool is_python_name(std::string_view name) {
  return (name.starts_with("Py") && name.size() > 2 && (name[2] == '_' || (name[2] >= 'A' && name[2] <= 'Z'))) ||
         name.starts_with("_Py_") || (name.starts_with("_Py") && name.size() > 3 && name[3] >= 'A' && name[3] <= 'Z');
}

}  // namespace

ModuleName parse_module_name(std::string_view path) {
  ModuleName out;
  const std::string file = base_name(path);
  if (!file.ends_with(".so")) return out;
  const std::string stem = file.substr(0, file.size() - 3);
  const std::size_t dot = stem.find('.');
  const std::string suffix = dot == stem.npos ? "" : stem.substr(dot + 1);
  out.module = stem.substr(0, dot);
  // A package's own file, compiled (apsw): it is the module of its folder's name.
  if (const std::string folder = base_name(folder_name(path)); out.module == "__init__" && !folder.empty())
    out.module = folder;
  if (suffix.empty()) {
    out.naming = ModuleNaming::kPlain;
  } else if (suffix == "abi3" || suffix == "abi3t") {
    out.naming = ModuleNaming::kAbi3;
    out.free_threaded = suffix == "abi3t";
  } else if (suffix.starts_with("cpython-")) {
    out.naming = ModuleNaming::kCpython;
    out.soabi = suffix;
    // "cpython-312-x86_64-linux-gnu": 3, then the minor version; "t" for free-threaded, "d" for a debug build.
    const std::string digits = suffix.substr(8, suffix.find('-', 8) - 8);
    const std::size_t letters = digits.find_first_not_of("0123456789");
    const std::string number = digits.substr(0, letters);
    out.free_threaded = letters != digits.npos && digits.find('t', letters) != digits.npos;
    if (number.size() >= 2 && number.size() <= 4) out.python = {{number[0] - '0', std::stoi(number.substr(1))}};
  } else {
    out.module.clear();
  }
  return out;
}

bool is_cpython_name(std::string_view name) {
  if (!is_python_name(name)) return false;
  // A family of functions that the stable ABI has members of (PyObject_, PyLong_), or one of CPython's own beyond it.
  const std::string_view plain = name.starts_with("_") ? name.substr(1) : name;
  const std::string_view family = plain.substr(0, plain.find('_'));
  if (is_stable_abi_family(family)) return true;
  for (const char* own : {"Py",
                          "PyCode",
                          "PyConfig",
                          "PyContext",
                          "PyContextVar",
                          "PyCoro",
                          "PyDateTime",
                          "PyDictItems",
                          "PyFloat",
                          "PyFunction",
                          "PyGen",
                          "PyHash",
                          "PyInterpreterConfig",
                          "PyInstanceMethod",
                          "PyMethod",
                          "PyMutex",
                          "PyOS",
                          "PyPreConfig",
                          "PyRun",
                          "PyRuntime",
                          "PyTime",
                          "PyTraceMalloc",
                          "PyUnicodeWriter",
                          "PyWeakref",
                          "PyWideStringList",
                          "PyThread",
                          "PyThreadState",
                          "PyCell",
                          "PyCriticalSection",
                          "PyAnySet",
                          "PyFrozenSet",
                          "PyLongWriter",
                          "PyPickleBuffer",
                          "PyStatus",
                          "PySymtable",
                          "PyParser",
                          "PyNode",
                          "PyCompile",
                          "PyAST",
                          "PyArena",
                          "PyToken"})
    if (family == own) return true;
  return false;
}

bool PythonAbiFacts::is_module(const std::string& name) const {
  return std::any_of(init_functions.begin(), init_functions.end(), [&](const std::string& function) {
    return function == "PyInit_" + name || function == "PyModExport_" + name;
  });
}

PythonAbiFacts python_abi_of(const ElfFile& elf) {
  PythonAbiFacts out;
  bool limited = true;
  for (const ElfSymbol& symbol : elf.symbols) {
    if (symbol.defined) {
      const bool is_init = symbol.name.starts_with("PyInit_") || symbol.name.starts_with("PyModExport_");
      if (is_init && symbol.binding != 0) out.init_functions.emplace_back(symbol.name);
      continue;
    }
    if (symbol.weak() || !is_cpython_name(symbol.name)) continue;
    ++out.imports;
    const Version release = stable_abi_release(symbol.name);
    if (!release.known()) {
      limited = false;
      out.beyond.emplace_back(symbol.name);
    } else if (!out.limited.known() || out.limited < release) {
      out.limited = release;
      out.limited_symbol = symbol.name;
    }
  }
  if (!limited) out.limited = {};
  return out;
}

}  // namespace doctor
