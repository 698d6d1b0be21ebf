// SPDX-License-Identifier: Apache-2.0
// What a file shows of the CPython it was built for: its name, what it exports, what it imports.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "doctor/read/elf/elf.h"
#include "support/version.h"

namespace doctor {

using namespace support;

enum class ModuleNaming { kNone, kPlain, kAbi3, kCpython };  // x.so, x.abi3.so, x.cpython-312-x86_64-linux-gnu.so

struct ModuleName {
  ModuleNaming naming = ModuleNaming::kNone;
  std::string module;          // "flash_attn_2_cuda"
  std::string soabi;           // "cpython-312-x86_64-linux-gnu"
  Version python;              // 3.12, from the soabi
  bool free_threaded = false;  // of x.abi3t.so too, which Python 3.15 with the GIL takes as well
};
// Of a path that ends in .so; kNone for library names such as libfoo.so.1.
ModuleName parse_module_name(std::string_view path);

struct PythonAbiFacts {
  std::vector<std::string> init_functions;  // "PyInit_flash_attn_2_cuda"; from Python 3.15 on also "PyModExport_..."
  std::size_t imports = 0;                  // strong undefined Py* and _Py* symbols
  Version limited;                          // the lowest Python 3.x whose stable ABI has all of them; not known: none
  std::string limited_symbol;               // the one that sets it
  std::vector<std::string> beyond;          // imports that no stable ABI has

  bool is_module(const std::string& name) const;
};
PythonAbiFacts python_abi_of(const ElfFile& elf);

// Does CPython have a name like this? PyObject_Call, _Py_Dealloc; not PyArrow_Foo, which others call theirs.
bool is_cpython_name(std::string_view name);

}  // namespace doctor
