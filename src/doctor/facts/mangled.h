// SPDX-License-Identifier: Apache-2.0
// The C++ ABI that mangled names show: which std::string (and list) they were compiled with.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "doctor/read/elf/elf.h"

namespace doctor {

enum class CxxAbi { kUnknown, kNeutral, kOld, kNew, kMixed };  // old: _GLIBCXX_USE_CXX11_ABI=0
const char* cxx_abi_name(CxxAbi abi);

enum class StringAbi { kNeutral, kOld, kNew };

// Of one mangled name, found by walking its parts: "Ss" inside an identifier does not count.
StringAbi string_abi_of(std::string_view mangled);

// Does the name belong to torch: something in c10, at, torch or caffe2, or their type information?
bool is_torch_name(std::string_view mangled);
// C functions of torch's stable ABI: aoti_torch_*, torch_*.
bool is_torch_stable_name(std::string_view name);

struct CxxAbiFacts {
  CxxAbi abi = CxxAbi::kNeutral;
  std::vector<std::string> old_symbols, new_symbols;  // a few that show it
  std::size_t torch_symbols = 0;                      // imported from torch
};

// Of an extension: from the torch symbols it imports.
CxxAbiFacts cxx_abi_of_imports(const ElfFile& elf);
// Of any other file: from the strings of libstdc++ that it imports.
CxxAbiFacts cxx_abi_of_strings(const ElfFile& elf);
// Of torch: from the symbols that libc10.so (or another of its libraries) exports.
CxxAbiFacts cxx_abi_of_exports(const ElfFile& elf);

// "c10::Error::Error(c10::SourceLocation, std::string)"; the name itself if it is not mangled.
std::string demangled(std::string_view name);

}  // namespace doctor
