// SPDX-License-Identifier: Apache-2.0
// A bounded reader of zip archives over zlib's inflate. It trusts nothing: both headers of an entry are compared,
// entries may not overlap, and no entry gives more than it declares.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "doctor/read/zip/zip_stream.h"
#include "support/bytes.h"

namespace doctor {

using namespace support;

struct ZipLimits {
  uint64_t entries = 200'000;
  uint64_t plain_bytes = uint64_t(16) << 30;
  uint64_t ratio = 200;
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
