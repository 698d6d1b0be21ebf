// SPDX-License-Identifier: Apache-2.0
// A cluster node and files for it, in words: what the judge's tests are made of.
#pragma once

#include <elf.h>

#include <functional>
#include <map>
#include <memory>

#include "doctor/facts/mangled.h"
#include "doctor/load/library_store.h"
#include "doctor/read/inspect.h"
#include "tests/doctor/fixtures.h"

namespace judged {

using doctor::Binary;
using doctor::CxxAbi;
using doctor::ElfFile;
using doctor::Environment;
using doctor::Inspection;
using doctor::Severity;
using doctor::Verdict;
using support::parse_version;

inline constexpr const char* kOldError = "_ZN3c105ErrorC1ENS_14SourceLocationESs";
inline constexpr const char* kNewError =
    "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";

// An ELF file in words. Imports are name or name@version; all of them are relocated, in order.
struct Words {
  std::vector<const char*> needed, imports, exports, versions;
  const char* soname = "";
};

inline ElfFile elf_of(const Words& words, const char* machine = "x86_64") {
  ElfFile elf;
  elf.type = ET_DYN;
  elf.machine = machine == std::string("aarch64") ? EM_AARCH64 : EM_X86_64;
  elf.has_dynamic = true;
  elf.soname = words.soname;
  for (const char* name : words.needed) elf.needed.push_back(name);
  for (const char* name : words.versions) elf.version_definitions.push_back(name);
  const auto add = [&](std::string_view text, bool defined) {
    doctor::ElfSymbol symbol;
    const std::size_t at = text.find('@'), second = text.find('@', at == text.npos ? at : at + 1);
    symbol.name = text.substr(0, at);
    if (at != text.npos) symbol.version = text.substr(at + 1, second == text.npos ? second : second - at - 1);
    // "symbol@VERSION@library": the library that the version is asked of.
    if (second != text.npos) {
      symbol.version_library = text.substr(second + 1);
      elf.version_needs.push_back({symbol.version_library, symbol.version, false});
    }
    symbol.binding = STB_GLOBAL;
    symbol.defined = defined;
    if (!defined) elf.relocated.push_back(uint32_t(elf.symbols.size()));
    elf.symbols.push_back(symbol);
  };
  for (const char* name : words.exports) add(name, true);
  for (const char* name : words.imports) add(name, false);
  return elf;
}

class FakeLibraries : public doctor::LibraryStore {
 public:
  std::map<std::string, ElfFile> files;
  const ElfFile* find(const std::string& path) override {
    const auto found = files.find(path);
    return found == files.end() ? nullptr : &found->second;
  }
};

// A cluster node: Python 3.12, torch 2.8 for CUDA 12 with the new ABI, an A100 and a driver of 535.
struct Node {
  std::shared_ptr<FakeLibraries> libraries = std::make_shared<FakeLibraries>();
  Environment target;

  Node() {
    auto& files = libraries->files;
    files["/usr/bin/python3.12"] = elf_of({{"libc.so.6"}, {}, {"PyLong_FromLong", "PyModule_Create2"}, {}});
    files["/lib/libc.so.6"] = elf_of({{}, {}, {"malloc@GLIBC_2.17"}, {"GLIBC_2.17", "GLIBC_2.31"}, "libc.so.6"});
    files["/lib/libstdc++.so.6"] =
        elf_of({{}, {}, {"_Znwm@GLIBCXX_3.4"}, {"GLIBCXX_3.4", "GLIBCXX_3.4.28"}, "libstdc++.so.6"});
    files["/lib/libodd.so.1"] = elf_of({{}, {}, {"odd@ODD_1"}, {"ODD_1"}, "libodd.so.1"});
    files["/site/torch/lib/libc10.so"] =
        elf_of({{},
                {},
                {kNewError, "_ZN3c104cuda9SetDeviceEab", "torch_call_dispatcher", "aoti_torch_delete"},
                {},
                "libc10.so"});
    files["/site/nvidia/libcudart.so.12"] =
        elf_of({{}, {}, {"cudaMalloc@libcudart.so.12"}, {"libcudart.so.12"}, "libcudart.so.12"});
    target.name = "the node";
    target.machine = "x86_64";
    target.libc_version = parse_version("2.31");
    target.loader.default_folders = {"/lib"};
    target.python.emplace();
    target.python->executable = "/usr/bin/python3.12";
    target.python->version = parse_version("3.12.4");
    target.python->soabi = "cpython-312-x86_64-linux-gnu";
    target.python->site_packages = {"/site"};
    target.torch.emplace();
    target.torch->version = "2.8.0+cu128";
    target.torch->cuda_version = "12.8";
    target.torch->cxx_abi = CxxAbi::kNew;
    target.torch->libraries = {"/site/torch/lib/libc10.so", "/site/nvidia/libcudart.so.12"};
    target.driver = parse_version("535.129.03");
    target.gpus_known = true;
    target.gpus = {{"NVIDIA A100", {8, 0}}};
    target.libraries = libraries;
  }
};

inline Inspection module(const Words& words, const std::string& name = "m.cpython-312-x86_64-linux-gnu.so",
                         const char* machine = "x86_64") {
  Inspection out;
  out.path = "/site/" + name;
  Words complete = words;
  complete.exports.push_back("PyInit_m");
  Binary binary;
  binary.path = out.path;
  binary.elf = elf_of(complete, machine);
  out.binaries.push_back(std::move(binary));
  return out;
}

inline Inspection gpu_module(const std::string& code) {
  Inspection out = module({});
  support::MemorySource source(code);
  out.binaries[0].fatbins = doctor::read_fatbins(source, {0, code.size()}, nullptr);
  return out;
}

inline Inspection wheel(const fixtures::WheelParts& parts,
                        const std::function<void(std::vector<fixtures::ZipFile>&)>& change = {}) {
  std::vector<fixtures::ZipFile> files = fixtures::wheel_files(parts);
  if (change) change(files);
  const std::string bytes = fixtures::make_zip(files);
  support::MemorySource source(bytes);
  Inspection out;
  out.kind = doctor::FileKind::kWheel;
  out.path = parts.file_name();
  out.wheel = doctor::read_wheel(source, out.path);
  return out;
}

// A wheel with one module in it, as if compiled.
inline Inspection wheel_with(const fixtures::WheelParts& parts, const Words& words,
                             const std::string& name = "m.cpython-311-x86_64-linux-gnu.so",
                             const char* machine = "x86_64") {
  Inspection out = wheel(parts);
  Inspection inner = module(words, name, machine);
  inner.binaries[0].path = name;
  out.wheel->binaries = std::move(inner.binaries);
  return out;
}

}  // namespace judged
