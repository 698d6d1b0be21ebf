// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/read/python/outline.h"

namespace doctor {

// Modules that a Python file imports and that, by their names, are compiled: flash_attn_2_cuda, fused_dense_lib,
// pkg._C. The text is only looked at, line by line; strings and comments that look like imports count too.
std::vector<std::string> compiled_imports(std::string_view python_source);

// What a package's Python files say about its compiled ones.
struct PythonWords {
  // Imported whenever the file is: by a line that begins at the left margin, so in no function, `if` or `try`. Last
  // parts of the names: `from pkg.lib import _C, other` gives lib, _C and other.
  std::set<std::string> certain_imports;
  // Words that name a library, as in load_library("libpkg"); of f"libpkg{number}" the part before the brace.
  std::set<std::string> libraries;
  std::map<std::string, Outline> outlines;  // by module
  bool opens_cuda_of_pip = false;           // libraries in site-packages/nvidia, by ctypes
};
// `path` is the file's below site-packages.
void collect_words(std::string_view path, std::string_view python_source, PythonWords& out);

}  // namespace doctor
