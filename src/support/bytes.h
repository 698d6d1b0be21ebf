// SPDX-License-Identifier: Apache-2.0
// Where the readers take their bytes from: a file, memory, or an entry of a wheel that is still compressed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace support {

// What could not be read, in one line.
struct ReadError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct ByteRange {
  uint64_t offset = 0, size = 0;
  uint64_t end() const { return offset + size; }
};

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  // Copies bytes [offset, offset + out.size()); false if they do not all lie inside.
  virtual bool read(uint64_t offset, std::span<uint8_t> out) = 0;
};

class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  explicit MemorySource(std::string_view bytes)
      : bytes_(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()) {}
  uint64_t size() const override { return bytes_.size(); }
  bool read(uint64_t offset, std::span<uint8_t> out) override;

 private:
  std::span<const uint8_t> bytes_;
};

// A regular file, read by pread. Throws ReadError if it cannot be opened or is no regular file.
class FileSource : public ByteSource {
 public:
  explicit FileSource(const std::string& path);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  uint64_t size() const override { return size_; }
  bool read(uint64_t offset, std::span<uint8_t> out) override;

 private:
  int descriptor_;
  uint64_t size_;
};

// Of a text file that is expected to be small; throws ReadError, also when it is larger than `most` bytes.
std::string read_text_file(const std::string& path, uint64_t most = 4 << 20);
// The same; "" where that throws.
std::string text_or_nothing(const std::string& path, uint64_t most = 4 << 20);

}  // namespace support
