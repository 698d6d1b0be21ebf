// SPDX-License-Identifier: Apache-2.0
// GPU code as nvcc packs it: fatbin containers, and the cubins (ELF files for the GPU) inside or alone.
// Only entry headers are read: architecture, suffix, compression and toolkit generation all stand there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "doctor/bytes.h"
#include "doctor/version.h"

namespace doctor {

struct ComputeCapability {
  int major = 0, minor = 0;
  auto operator<=>(const ComputeCapability&) const = default;
  std::string text() const { return std::to_string(major) + "." + std::to_string(minor); }
};

// 90 with suffix 'a': sm_90a or compute_90a. Suffix 0: runs on later minors too; 'f': within its family.
struct GpuArch {
  int sm = 0;
  char suffix = 0;
  auto operator<=>(const GpuArch&) const = default;
  std::string text(const char* prefix = "sm_") const;
  ComputeCapability capability() const { return {sm / 10, sm % 10}; }
};

enum class GpuCode { kPtx, kCubin, kLtoIr, kOther };
enum class Compression { kNone, kLz4, kZstd, kOther };

struct FatbinEntry {
  GpuCode code = GpuCode::kOther;
  uint16_t kind = 0;  // as it stands there
  GpuArch arch;
  Compression compression = Compression::kNone;
  Version ptx_isa;     // of PTX
  int cubin_abi = 0;   // 7: CUDA 12 and before; 8: CUDA 13, and sm_100 and later before it
  Version toolkit;     // where it can be told (a cubin that could be opened, a PTX version)
  bool empty = false;  // a cubin without any kernel or device function, as nvcc's link step adds
  bool debug = false;
  uint64_t stored_bytes = 0, plain_bytes = 0;
};

struct FatbinContainer {
  uint64_t offset = 0;  // in the file
  std::vector<FatbinEntry> entries;
  // True for the container without kernels that nvcc's link step adds: it says nothing about which GPUs are served.
  bool empty() const;
};

struct Cubin {
  GpuArch arch;
  GpuArch virtual_arch;  // compute_XY it was compiled through; sm 0 if not said
  int abi = 0;
  Version toolkit;
  std::string command_line;          // of ptxas, if noted
  std::vector<std::string> kernels;  // names of .text.* sections
};

// Throws ReadError if it is no cubin.
Cubin read_cubin(ByteSource& source);
// A .fatbin file or the bytes of .nv_fatbin: containers one after another with zeros between.
std::vector<FatbinContainer> read_fatbin(ByteSource& source, std::vector<std::string>* problems);

// Which GPUs an entry runs on, as a set of rules.
bool runs_on(const FatbinEntry& entry, ComputeCapability gpu);
// PTX that the driver must compile first.
bool is_jit(const FatbinEntry& entry);

}  // namespace doctor
