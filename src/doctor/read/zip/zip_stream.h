// SPDX-License-Identifier: Apache-2.0
// One entry of a zip archive, inflated as it is read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "support/bytes.h"

namespace doctor {

using namespace support;

struct ZipEntry {
  std::string name;
  uint16_t method = 0;  // 0 stored, 8 deflated
  uint16_t flags = 0;
  uint32_t crc = 0;
  uint64_t stored = 0, plain = 0;
  uint64_t header_offset = 0, data_offset = 0;
  uint32_t mode = 0;  // of Unix; 0 if not said
  bool readable = false;

  bool is_directory() const { return !name.empty() && name.back() == '/'; }
  bool is_link() const { return (mode & 0170000) == 0120000; }
};

// The plain bytes of one entry, from its beginning to its end.
class ZipStream {
 public:
  ZipStream(ByteSource& source, const ZipEntry& entry);
  ~ZipStream();
  ZipStream(ZipStream&&) noexcept;
  ZipStream& operator=(ZipStream&&) noexcept;

  // Fills `out` from its start; returns how many bytes, 0 at the end or after an error.
  std::size_t next(std::span<uint8_t> out);
  uint64_t position() const { return given_; }
  // What is wrong with the entry, in one line; empty if nothing (yet). The checksum is compared at the end.
  const std::string& error() const { return error_; }
  // A second stream that goes on from here. Its checksum is not compared.
  ZipStream fork() const;

 private:
  struct Inflater;
  ZipStream(const ZipStream& other, int);
  void fail(std::string text);
  std::size_t copy(std::span<uint8_t> out);
  std::size_t expand(std::span<uint8_t> out);

  ByteSource* source_;
  const ZipEntry* entry_;
  std::unique_ptr<Inflater> inflater_;
  uint64_t read_ = 0, given_ = 0;
  uint32_t crc_ = 0;
  bool check_ = true, ended_ = false;
  std::string error_;
};

}  // namespace doctor
