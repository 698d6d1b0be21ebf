// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/zip/entry_source.h"

#include <algorithm>
#include <cstring>

namespace doctor {
namespace {

constexpr uint64_t kPageBytes = 256 << 10;
constexpr std::size_t kMaxPages = 64;
// A mark takes 110 KB.
constexpr uint64_t kMarkEveryBytes = uint64_t(4) << 20, kMaxMarks = 200;

}  // namespace

EntrySource::EntrySource(const ZipArchive& archive, const ZipEntry& entry)
    : archive_(archive), entry_(entry), size_(entry.plain) {}

std::string EntrySource::pass(const std::function<void(std::span<const uint8_t>)>& take) {
  const uint64_t spacing = std::max(kMarkEveryBytes, entry_.plain / kMaxMarks);
  ZipStream stream = archive_.open(entry_);
  std::vector<uint8_t> buffer(std::min(kPageBytes, std::max<uint64_t>(entry_.plain, 1)));
  uint64_t next_mark = spacing;
  while (const std::size_t got = stream.next(buffer)) {
    // Small files are read from memory afterwards.
    if (entry_.plain <= kPageBytes) pages_.push_front({0, {buffer.begin(), buffer.begin() + std::ptrdiff_t(got)}});
    if (entry_.method != 0 && stream.position() >= next_mark) {
      marks_.push_back(stream.fork());
      next_mark = stream.position() + spacing;
    }
    take(std::span<const uint8_t>(buffer).first(got));
  }
  if (!stream.error().empty()) size_ = std::min(size_, stream.position());
  return stream.error();
}

const EntrySource::Page* EntrySource::page(uint64_t index) {
  for (auto it = pages_.begin(); it != pages_.end(); ++it)
    if (it->index == index) {
      pages_.splice(pages_.begin(), pages_, it);
      return &pages_.front();
    }
  const uint64_t begin = index * kPageBytes, end = std::min(begin + kPageBytes, size_);
  if (begin >= end) return nullptr;
  // The stream to go on from: the last one, the nearest mark before, or the beginning.
  const ZipStream* mark = nullptr;
  for (const ZipStream& m : marks_)
    if (m.position() <= begin) mark = &m;
  const uint64_t from_mark = mark ? mark->position() : 0;
  if (current_.empty() || current_[0].position() > begin || current_[0].position() < from_mark) {
    current_.clear();
    current_.push_back(mark ? mark->fork() : archive_.open(entry_));
  }
  ZipStream& stream = current_[0];
  Page out{index, std::vector<uint8_t>(kPageBytes)};
  while (stream.position() < begin)
    if (stream.next(std::span(out.bytes).first(std::min(kPageBytes, begin - stream.position()))) == 0) return nullptr;
  out.bytes.resize(end - begin);
  std::size_t have = 0;
  while (have < out.bytes.size()) {
    const std::size_t got = stream.next(std::span(out.bytes).subspan(have));
    if (got == 0) return nullptr;
    have += got;
  }
  pages_.push_front(std::move(out));
  if (pages_.size() > kMaxPages) pages_.pop_back();
  return &pages_.front();
}

bool EntrySource::read(uint64_t offset, std::span<uint8_t> out) {
  if (offset > size_ || out.size() > size_ - offset) return false;
  while (!out.empty()) {
    const Page* from = page(offset / kPageBytes);
    const std::size_t at = offset % kPageBytes;
    if (!from || at >= from->bytes.size()) return false;
    const std::size_t count = std::min(out.size(), from->bytes.size() - at);
    std::memcpy(out.data(), from->bytes.data() + at, count);
    out = out.subspan(count);
    offset += count;
  }
  return true;
}

}  // namespace doctor
