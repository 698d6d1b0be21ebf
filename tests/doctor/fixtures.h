// SPDX-License-Identifier: Apache-2.0
// Files for the doctor's tests, made on the spot: compiled ones, archives with faults, GPU code by hand.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fixtures {

// A folder that is gone at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string write_file(const std::string& path, const std::string& bytes);  // makes folders; returns the path
std::string read_file(const std::string& path);

// Compiles C (or C++ with "-x c++") to `output` with the system's compiler; throws with its message if that fails.
void compile(const std::string& output, const std::string& source,
             const std::string& flags = "-shared -fPIC -nostdlib");
// Runs a command; returns its standard output, without the last line break.
std::string output_of(const std::string& command);

struct ZipFile {
  std::string name, bytes;
  bool deflate = true;
  // Faults.
  std::string local_name;  // other than the name in the directory
  uint16_t flags = 0;      // 1: encrypted, 8: sizes follow the data
  int method = -1;         // other than it is
  uint32_t mode = 0100644;
  int64_t declared_bytes = -1;  // plain size that both headers give
  int64_t crc = -1;             // checksum that they give
  int64_t offset = -1;          // where the directory says it is
  bool wide = false;            // sizes in the 64-bit extra field
};
std::string make_zip(const std::vector<ZipFile>& files, const std::string& comment = "", int entries_announced = -1);

// A wheel in good order: the files, METADATA, WHEEL and RECORD. `change` may spoil the list before it is packed.
struct WheelParts {
  std::string name = "pkg", version = "1.0", tag = "cp311-cp311-linux_x86_64";
  std::vector<std::pair<std::string, std::string>> files;
  std::string more_metadata, more_wheel;
  std::string metadata_version, metadata_name, wheel_tag;  // other than the above
  std::string file_name() const { return name + "-" + version + "-" + tag + ".whl"; }
};
std::vector<ZipFile> wheel_files(const WheelParts& parts);

struct GpuEntry {
  int kind = 2;  // 1 PTX, 2 cubin
  int sm = 80;
  uint64_t flags = 0x11;     // 0x2000 LZ4, 0x8000 zstd, 0x100000 a, 0x200000 f
  int major = 1, minor = 7;  // PTX ISA, or 1 and the cubin's ABI
  std::string payload;
  uint64_t plain_bytes = 0;
  uint32_t header_bytes = 64;
};
std::string make_container(const std::vector<GpuEntry>& entries);

struct CubinParts {
  int abi = 7, sm = 80;
  char suffix = 0;
  int toolkit = 124;
  std::vector<std::string> kernels = {"attend"};
};
std::string make_cubin(const CubinParts& parts);

// A container with one cubin of each architecture ("80", "90a", "120f") and one PTX ("ptx80").
std::string make_gpu_code(const std::vector<std::string>& archs, uint64_t compression = 0, int abi = 7);

}  // namespace fixtures
