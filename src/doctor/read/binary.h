// SPDX-License-Identifier: Apache-2.0
// Compiled files: shared libraries with the GPU code in them, cubins, fatbins; on disk or inside an archive.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "doctor/read/cubin.h"
#include "doctor/read/elf/elf.h"
#include "doctor/read/fatbin.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

// What the texts in a file show of the NumPy that it was compiled with.
struct NumpyUse {
  bool old_only = false;      // headers of 1.x, which know only its C interface: since 2.0 they try numpy._core first
  bool raises = false;        // an interface that does not fit becomes an ImportError
  bool by_pybind11 = false;   // the module's code is called by pybind11
  bool checks_types = false;  // Cython's: it compares the sizes of NumPy's types before all else
  Version least;              // of NumPy, that its headers were told to serve; not known: they do not say
};

// An ELF file with the GPU code it carries: in a wheel, in a folder or alone.
struct Binary {
  std::string path;  // in the wheel or on disk
  uint64_t size = 0;
  ElfFile elf;
  std::vector<FatbinContainer> fatbins;
  std::optional<Cubin> cubin;  // if it is one
  bool bare_fatbin = false;    // a .fatbin file: no ELF file around it
  NumpyUse numpy;
  Version pybind11_python;  // that a module of pybind11 was compiled for, and asks for; not known: it does not ask
};

// Looks for the texts that NumPy's headers, Cython and pybind11 leave in a module.
class NumpyProbe {
 public:
  void feed(std::span<const uint8_t> piece);
  NumpyUse use() const;
  Version python() const;

 private:
  void look(std::string_view text);
  std::string tail_;
  bool has_old_ = false, has_new_ = false, has_old_words_ = false, has_types_ = false;
  NumpyUse found_;
  bool asks_for_python_ = false;
  std::set<int> minors_;  // of texts such as "3.9"
};

// Is fed a file from its beginning to its end and finds out whether it is compiled code, GPU code included.
class BinaryProbe {
 public:
  BinaryProbe(std::string path, uint64_t size) : path_(std::move(path)), size_(size) {}
  void feed(std::span<const uint8_t> piece);
  // After the last piece. What is damaged becomes a verdict; nothing if it is no compiled file.
  std::optional<Binary> finish(ByteSource& source, std::vector<Verdict>& problems);

 private:
  enum class Kind { kUnknown, kElf, kFatbin, kOther };
  std::string path_;
  uint64_t size_;
  Kind kind_ = Kind::kUnknown;
  std::vector<uint8_t> head_;
  FatbinScanner scanner_;
  NumpyProbe numpy_;
};

// "_C.cpython-312-x86_64-linux-gnu.so", "_C.abi3.so": only Python's own extensions are called so.
bool is_extension_name(std::string_view path);
// What the loader says of such a file that is no ELF file: one that is empty, cut off at once, or something else.
Verdict no_library(const std::string& path, uint64_t size);

// A file on disk; nothing if it is no compiled file. Throws ReadError if it cannot be read.
std::optional<Binary> read_binary(const std::string& path, std::vector<Verdict>& problems);
std::optional<Binary> read_binary(ByteSource& source, const std::string& path, std::vector<Verdict>& problems);

}  // namespace doctor
