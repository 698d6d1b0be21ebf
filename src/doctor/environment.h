// SPDX-License-Identifier: Apache-2.0
// What the doctor must know of a target to judge a file for it: this machine, or one described in a file that
// `mica doctor --export` wrote there. Plain data; empty means not known.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "doctor/elf.h"
#include "doctor/fatbin.h"
#include "doctor/version.h"

namespace doctor {

// The shared libraries of a target, by their path there.
class LibraryStore {
 public:
  virtual ~LibraryStore() = default;
  // The ELF file at this path, links followed; nullptr if there is none that could be read. Stays valid.
  virtual const ElfFile* find(const std::string& path) = 0;
  // The path without links and "..", so that one file under two names is one library; the path itself if not known.
  virtual std::string canonical(const std::string& path) { return path; }
};

// Of this machine, or of the tree below `root`; files are read when first asked for, links stay inside the root.
std::unique_ptr<LibraryStore> disk_libraries(const std::string& root = "");

enum class CxxAbi { kUnknown, kNeutral, kOld, kNew, kMixed };  // old: _GLIBCXX_USE_CXX11_ABI=0
const char* cxx_abi_name(CxxAbi abi);

struct LoaderFacts {
  std::vector<std::string> library_path;                   // LD_LIBRARY_PATH
  std::vector<std::pair<std::string, std::string>> cache;  // ld.so.cache of this machine type: soname, path
  std::vector<std::string> default_folders;                // "/lib/x86_64-linux-gnu", ..., "/lib", "/usr/lib"
};

struct PythonFacts {
  std::string executable;  // path, links followed; its exports count as loaded
  Version version;         // 3.12.4
  std::string implementation = "cpython";
  std::string soabi;  // "cpython-312-x86_64-linux-gnu"
  bool free_threaded = false, debug = false;
  std::vector<std::string> site_packages;
};

struct TorchFacts {
  std::string version;                 // "2.8.0+cu128", as it says of itself
  std::string folder;                  // site-packages/torch
  std::string cuda_version;            // "12.8"; empty: a build for the CPU
  CxxAbi cxx_abi = CxxAbi::kUnknown;   // from the exports of libc10.so
  std::vector<std::string> libraries;  // paths that `import torch` loads, in load order; the closure follows by itself
};

struct Gpu {
  std::string name;
  ComputeCapability capability;
};

struct Environment {
  std::string name;     // for messages: "this machine", "target.json"
  std::string machine;  // "x86_64", as machine_name() spells it
  std::string libc = "glibc";
  Version libc_version;  // 2.36
  std::string libc_path, libstdcxx_path;
  Version glibcxx, cxxabi;  // highest that libstdc++ defines: 3.4.30, 1.3.13
  LoaderFacts loader;
  std::optional<PythonFacts> python;
  std::optional<TorchFacts> torch;
  Version driver;           // 580.95.05; not known: no driver found
  Version driver_cuda;      // highest CUDA it speaks, 13.0
  bool gpus_known = false;  // true with an empty list: there are none
  std::vector<Gpu> gpus;
  std::shared_ptr<LibraryStore> libraries;
};

// Entries of this machine's type in an ld.so.cache file; empty, with a problem, if it cannot be read.
std::vector<std::pair<std::string, std::string>> read_loader_cache(ByteSource& source, const std::string& machine,
                                                                   std::vector<std::string>* problems);

}  // namespace doctor
