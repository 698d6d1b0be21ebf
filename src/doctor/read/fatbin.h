// SPDX-License-Identifier: Apache-2.0
// GPU code as nvcc packs it: fatbin containers, and the cubins (ELF files for the GPU) inside or alone.
// Only entry headers are read: architecture, suffix, compression and toolkit generation all stand there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "doctor/tables/gpu_arch.h"
#include "support/bytes.h"
#include "support/version.h"

namespace doctor {

using namespace support;

// How a container begins: magic, version 1, 16 bytes of header. A number, compared as one: as bytes among this
// program's data the doctor would find a container in itself.
inline constexpr uint64_t kFatbinMagic = 0x00100001ba55ed50;

enum class GpuCode { kPtx, kCubin, kLtoIr, kOther };
enum class Compression { kNone, kLz4, kZstd, kOther };

struct FatbinEntry {
  GpuCode code = GpuCode::kOther;
  uint16_t kind = 0;  // as it stands there
  GpuArch arch;
  Compression compression = Compression::kNone;
  Version ptx_isa;     // of PTX
  int cubin_abi = 0;   // 7: CUDA 12 and before; 8: CUDA 13, and sm_100 and later before it
  Version toolkit;     // where it or its neighbours tell; of PTX: see ptx_isa
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

// Finds containers in bytes that are fed to it one after another; payloads pass by unread, small cubins excepted.
class FatbinScanner {
 public:
  // The first byte that will be fed stands at `offset` of its file; containers are aligned to 8 bytes there.
  explicit FatbinScanner(uint64_t offset = 0) : position_(offset) {}
  void feed(std::span<const uint8_t> bytes);
  // How many of the next bytes need not be fed; skip() says that they were left out.
  uint64_t skippable() const { return pending_.empty() ? skip_ : 0; }
  void skip(uint64_t bytes);
  // No more bytes. What was cut off becomes a problem.
  std::vector<FatbinContainer> finish(std::vector<std::string>* problems);

 private:
  enum class Step { kSearch, kEntryHeader, kPayload };
  bool advance();
  void open_container();
  void read_entry();
  void close_entry();
  void damaged(const std::string& what);

  Step step_ = Step::kSearch;
  std::vector<uint8_t> pending_;  // bytes [position_ - pending_.size(), position_)
  std::size_t used_ = 0;          // of pending_
  uint64_t position_ = 0, skip_ = 0;
  uint64_t container_end_ = 0;
  uint64_t payload_ = 0, opened_ = 0;  // of the entry at hand: all of it, and how much of its beginning is looked at
  std::size_t total_entries_ = 0;
  std::vector<FatbinContainer> containers_;
  std::vector<std::string> problems_;
};

// Containers in a part of a source: a .fatbin file, or the section .nv_fatbin.
std::vector<FatbinContainer> read_fatbins(ByteSource& source, ByteRange range, std::vector<std::string>* problems);

}  // namespace doctor
