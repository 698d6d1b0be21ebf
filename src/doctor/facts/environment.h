// SPDX-License-Identifier: Apache-2.0
// What the doctor must know of a target to judge a file for it: this machine, or one described in a file that
// `mica doctor --export` wrote there. Plain data; empty means not known.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "doctor/facts/mangled.h"
#include "doctor/tables/gpu_arch.h"
#include "support/version.h"

namespace doctor {

using namespace support;

class LibraryStore;      // doctor/load/library_store.h
class InstalledModules;  // doctor/judge/imports/installed_modules.h

struct LoaderFacts {
  std::vector<std::string> library_path;                   // LD_LIBRARY_PATH; an empty entry is the current folder
  std::vector<std::string> preload;                        // LD_PRELOAD: names or paths
  std::string tunables;                                    // GLIBC_TUNABLES
  std::vector<std::pair<std::string, std::string>> cache;  // ld.so.cache of this machine type: soname, path
  std::vector<std::string> hwcaps;                         // glibc-hwcaps that the CPU has, best first: "x86-64-v3"
  std::vector<std::string> default_folders;                // "/lib/x86_64-linux-gnu", ..., "/lib", "/usr/lib"
};

struct PythonFacts {
  std::string executable;  // path, links followed; its exports count as loaded
  Version version;         // 3.12.4
  std::string implementation = "cpython";
  std::string soabi;  // "cpython-312-x86_64-linux-gnu"
  bool free_threaded = false, debug = false;
  std::vector<std::string> site_packages;
  Version numpy;  // not known: none is installed
};

struct TorchFacts {
  std::string version;                 // "2.8.0+cu128", as it says of itself
  std::string folder;                  // site-packages/torch
  std::string cuda_version;            // "12.8"; empty: a build for the CPU
  CxxAbi cxx_abi = CxxAbi::kUnknown;   // from the exports of libc10.so
  std::vector<std::string> libraries;  // paths that `import torch` loads, in load order; the closure follows by itself
  // CUDA's libraries from pip that torch's Python opens by their paths: after the first of the above, so that a copy on
  // LD_LIBRARY_PATH does not come first (since 2.6), and all of them where that first one lacks a library of CUDA.
  std::vector<std::string> preloaded, preloaded_if_missing;
};

struct Gpu {
  std::string name;
  ComputeCapability capability;
};

struct Environment {
  std::string name;         // for messages: "this machine", "target.json"
  std::string machine;      // "x86_64", as machine_name() spells it
  uint64_t page_bytes = 0;  // of memory; 0: not known
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
  mutable std::shared_ptr<InstalledModules> modules;  // of its Python, as far as judging has read them
};

}  // namespace doctor
