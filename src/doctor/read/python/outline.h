// SPDX-License-Identifier: Apache-2.0
// What of a Python file bears on whether it can be imported: its imports, the libraries that it opens, what it calls
// and raises, and the blocks that these stand in. Read from the text; nothing is executed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace doctor {

enum class StepKind : uint8_t {
  kImport,      // name: the module; names: what is taken from it
  kImportCall,  // importlib.import_module("name")
  // A shared library, by ctypes or torch.ops. name: the word that names it, may be empty; names: its file, where it is
  // opened by that name alone, or what cffi asks find_library for ("pulse"); variable: its argument, where that is one.
  kOpen,
  // name = ctypes.util.find_library(...): a library of the system. names: the words it is asked by, none where they are
  // not in the text; variable: as above.
  kFind,
  // name = "word" or ("word", "word"): names. Or name = a question for the system that this is: variable. Neither: it
  // holds something else from here on.
  kAssign,
  kOperator,  // torch.library.register_fake("name"): an operator of torch that must be there
  kCall,      // name: of a function or class of this file, or one that it imported; names, variable: its first argument
  kRaise,     // name: the variable that is raised, if it is one
  kHold,      // in a handler: name = what was caught (names[0]), to be raised later
  kReturn,
  kTry,     // blocks, from here on: what follows up to `end` stands in them
  kExcept,  // names: the exceptions (none: all); name: the variable
  kElse,    // of try, if, for, while
  kFinally,
  kIf,  // name: the condition
  kElif,
  kDef,  // variable: its first parameter
  kClass,
  kWith,  // name: the expression
  kLoop,  // name: what stands between `for` and the colon
  kCase,
};

struct Step {
  StepKind kind;
  uint32_t end = 0;  // of a block: index behind its last step; else its own plus one
  std::string name;
  std::vector<std::string> names;
  std::string variable;
};

struct Outline {
  std::string package;  // that relative names refer to: "pkg.ops" for pkg/ops/__init__.py and for pkg/ops/a.py
  std::vector<Step> steps;
  std::map<std::string, uint32_t> functions;       // "load", "Library.__init__": index of the def
  std::map<std::string, std::string> from_others;  // "load" of `from .a import load`: "pkg.a.load"
};

// `path` is the file's below site-packages: "pkg/ops/__init__.py".
Outline outline_of(std::string_view path, std::string_view source);

// "pkg.ops._C" of "pkg/ops/_C.cpython-312-x86_64-linux-gnu.so"; "pkg.ops" of "pkg/ops/__init__.py".
std::string module_of_path(std::string_view path);
// "a" and "b" of `"a"`, `("a", "b")` and `["a", "b"]`; none of anything else.
std::vector<std::string> literal_words(std::string_view expression);
// "pkg.ops" of "pkg.ops.nn"; empty for "pkg".
std::string parent_module(std::string_view module);

}  // namespace doctor
