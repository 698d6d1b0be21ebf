// SPDX-License-Identifier: Apache-2.0
// A bounded reader of zip archives over zlib's inflate. It trusts nothing: both headers of an entry are compared,
// entries may not overlap, and no entry gives more than it declares.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "doctor/bytes.h"

namespace doctor {

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

struct ZipLimits {
  uint64_t entries = 200'000;
  uint64_t plain_bytes = uint64_t(16) << 30;
  uint64_t ratio = 200;
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

class ZipArchive {
 public:
  // Throws ReadError if there is no central directory to go by.
  ZipArchive(ByteSource& source, const ZipLimits& limits);

  const std::vector<ZipEntry>& entries() const { return entries_; }
  const std::vector<std::string>& problems() const { return problems_; }

  ZipStream open(const ZipEntry& entry) const { return ZipStream(source_, entry); }

 private:
  void problem(std::string text);
  ByteRange find_directory();
  void read_directory(ByteRange range);
  void read_local_header(ZipEntry& entry);
  void check_names();
  void check_overlaps();
  void check_sizes();

  ByteSource& source_;
  ZipLimits limits_;
  uint64_t expected_entries_ = 0, directory_offset_ = 0;
  std::vector<ZipEntry> entries_;
  std::vector<std::string> problems_;
};

}  // namespace doctor
