// SPDX-License-Identifier: Apache-2.0
// An entry of an archive as a source of bytes. One pass from beginning to end leaves marks behind from which inflating
// can go on, so that a later read costs a few MiB of inflating, wherever it is.
#pragma once

#include <functional>
#include <list>

#include "doctor/read/zip/zip.h"
#include "doctor/read/zip/zip_stream.h"

namespace doctor {

class EntrySource : public ByteSource {
 public:
  EntrySource(const ZipArchive& archive, const ZipEntry& entry);

  // The pass. Returns what is wrong with the entry, or nothing. Afterwards everything up to an error can be read.
  std::string pass(const std::function<void(std::span<const uint8_t>)>& take);

  uint64_t size() const override { return size_; }
  bool read(uint64_t offset, std::span<uint8_t> out) override;

 private:
  struct Page {
    uint64_t index;
    std::vector<uint8_t> bytes;
  };
  const Page* page(uint64_t index);

  const ZipArchive& archive_;
  const ZipEntry& entry_;
  uint64_t size_;
  std::vector<ZipStream> marks_;
  std::vector<ZipStream> current_;  // one or none: the stream that the last read left off at
  std::list<Page> pages_;           // the last used first
};

}  // namespace doctor
