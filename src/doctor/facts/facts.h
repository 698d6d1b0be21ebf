// SPDX-License-Identifier: Apache-2.0
// What a binary shows of the world it was built for, drawn from its symbols and its GPU code.
#pragma once

#include <string>
#include <vector>

#include "doctor/facts/cpython_abi.h"
#include "doctor/facts/mangled.h"
#include "doctor/facts/torch_range.h"
#include "doctor/read/binary.h"

namespace doctor {

// The highest version of a family that is asked for, and who asks.
struct VersionFloor {
  Version version;                   // not known: none is asked for
  std::string library;               // "libc.so.6"
  std::vector<std::string> symbols;  // that set it; empty if the file names none
  bool known() const { return version.known(); }
  std::string text(std::string_view family) const;  // "GLIBC_2.32 (__libc_single_threaded)"
};

// Containers with the same entries, apart from sizes.
struct GpuGroup {
  std::size_t containers = 0;
  std::vector<FatbinEntry> entries;
};

struct GpuFacts {
  std::size_t containers = 0, empty_containers = 0;
  std::vector<GpuGroup> groups;
  Version lowest_driver;  // that loads everything; not known: no GPU code
  std::string served;     // GPUs that all containers serve: "8.0, 8.6"
  std::string served_partly;
};

struct BinaryFacts {
  VersionFloor glibc, glibcxx, cxxabi;
  CxxAbiFacts cxx_abi;  // towards torch; of a file that does not use it, of its strings
  PythonAbiFacts python;
  ModuleName module;
  bool uses_torch = false, torch_stable = false;
  TorchRange torch;
  StableNeed torch_stable_need;
  int cuda_major = 0;         // 0: none asked for
  std::string cuda_evidence;  // "libcudart.so.12"
  GpuFacts gpu;
};

BinaryFacts facts_of(const Binary& binary);
VersionFloor version_floor(const ElfFile& elf, std::string_view family);  // family: "GLIBC_"
GpuFacts gpu_facts(const std::vector<FatbinContainer>& containers);
// The CUDA major version that a library's name stands for: "libcudart.so.12" is 12; 0 if it stands for none.
int cuda_major_of(std::string_view library);
// "sm_90a", "compute_80 (PTX 8.4)", with compression.
std::string entry_text(const FatbinEntry& entry);
const char* compression_name(Compression compression);

}  // namespace doctor
