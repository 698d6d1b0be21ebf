// SPDX-License-Identifier: Apache-2.0
// Which modules `import PACKAGE` is certain to import, by the text of its Python files: nothing is executed. What
// stands below `try`, in a function, or below a question for a GPU is guarded, and counts only if it is reached
// otherwise.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace doctor {

class ImportGraph {
 public:
  // A Python file at a path below site-packages: "pkg/ops/__init__.py".
  void add(std::string_view path, std::string_view source);
  // All that the imports of the top packages lead to, by dotted names: "pkg", "pkg.ops", "pkg._C", "torch".
  std::set<std::string> reached() const;
  bool empty() const { return imports_.empty(); }

 private:
  std::map<std::string, std::vector<std::string>> imports_;  // module: names that it imports for certain
};

// "pkg.ops._C" of "pkg/ops/_C.cpython-312-x86_64-linux-gnu.so"; "pkg.ops" of "pkg/ops/__init__.py".
std::string module_of_path(std::string_view path);

}  // namespace doctor
