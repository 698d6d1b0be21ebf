// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/zip/zip.h"

#include <algorithm>
#include <unordered_set>

#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr uint32_t kEndMagic = 0x06054b50, kEnd64Magic = 0x06064b50, kLocator64Magic = 0x07064b50;
constexpr uint32_t kDirectoryMagic = 0x02014b50, kLocalMagic = 0x04034b50;
constexpr std::size_t kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20, kDirectoryBytes = 46, kLocalBytes = 30;
constexpr uint64_t kMaxDirectoryBytes = uint64_t(128) << 20;
constexpr uint64_t kRatioCountsFrom = uint64_t(64) << 20;
constexpr std::size_t kMaxProblems = 50;
enum Flags : uint16_t { kEncrypted = 1, kDescriptor = 8, kStrongEncryption = 64 };

uint64_t little(std::span<const uint8_t> raw, std::size_t at, std::size_t size) {
  uint64_t value = 0;
  for (std::size_t i = 0; i < size && at + i < raw.size(); ++i) value |= uint64_t(raw[at + i]) << (8 * i);
  return value;
}

// Sizes and offset that did not fit into 32 bits, from the extra field of kind 1, in this fixed order.
void widen(std::span<const uint8_t> extra, ZipEntry& entry) {
  for (std::size_t at = 0; at + 4 <= extra.size();) {
    const uint64_t kind = little(extra, at, 2), size = little(extra, at + 2, 2);
    at += 4;
    if (at + size > extra.size()) return;
    if (kind == 1) {
      std::size_t next = at;
      for (uint64_t* field : {&entry.plain, &entry.stored, &entry.header_offset})
        if (*field == 0xffffffff && next + 8 <= at + size) {
          *field = little(extra, next, 8);
          next += 8;
        }
      return;
    }
    at += size;
  }
}

// Why a name must not be unpacked; empty if it may.
std::string unsafe(const std::string& name) {
  if (name.empty()) return "an entry without a name";
  if (name.front() == '/' || name.find('\\') != name.npos || (name.size() > 1 && name[1] == ':'))
    return "'" + printable(name) + "' leads outside the folder it is unpacked to";
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    if (name.compare(begin, end - begin, "..") == 0)
      return "'" + printable(name) + "' leads outside the folder it is unpacked to";
    begin = end + 1;
  }
  for (const char c : name)
    if (static_cast<unsigned char>(c) < 32) return "'" + printable(name) + "' has a control character in its name";
  return "";
}

}  // namespace

ZipArchive::ZipArchive(ByteSource& source, const ZipLimits& limits) : source_(source), limits_(limits) {
  read_directory(find_directory());
  for (ZipEntry& entry : entries_) read_local_header(entry);
  check_names();
  check_overlaps();
  check_sizes();
}

void ZipArchive::problem(std::string text) {
  if (problems_.size() < kMaxProblems) problems_.push_back(std::move(text));
}

ByteRange ZipArchive::find_directory() {
  const uint64_t size = source_.size();
  const std::size_t tail_bytes = std::size_t(std::min<uint64_t>(size, kEndBytes + 65535));
  std::vector<uint8_t> tail(tail_bytes);
  if (tail_bytes < kEndBytes || !source_.read(size - tail_bytes, tail)) throw ReadError("not a zip archive");
  // The record ends with a comment that reaches to the end of the file; anything else after it is a stranger's.
  std::size_t at = tail_bytes - kEndBytes + 1;
  bool found = false;
  while (at-- > 0 && !found)
    if (little(tail, at, 4) == kEndMagic && at + kEndBytes + little(tail, at + 20, 2) <= tail_bytes) found = true;
  if (!found) throw ReadError("not a zip archive: its end is missing (a download that was cut off?)");
  ++at;
  const std::span<const uint8_t> end = std::span<const uint8_t>(tail).subspan(at);
  if (kEndBytes + little(end, 20, 2) < end.size())
    problem(std::to_string(end.size() - kEndBytes - little(end, 20, 2)) + " bytes follow the end of the archive");
  const uint64_t end_offset = size - tail_bytes + at;
  uint64_t disk = little(end, 4, 2), entries = little(end, 10, 2);
  ByteRange directory{little(end, 16, 4), little(end, 12, 4)};
  uint64_t directory_limit = end_offset;

  uint8_t locator[kLocator64Bytes];
  if (end_offset >= kLocator64Bytes && source_.read(end_offset - kLocator64Bytes, locator) &&
      little(locator, 0, 4) == kLocator64Magic) {
    uint8_t end64[kEnd64Bytes];
    const uint64_t offset = little(locator, 8, 8);
    if (!source_.read(offset, end64) || little(end64, 0, 4) != kEnd64Magic)
      throw ReadError("not a zip archive: its 64-bit end leads nowhere");
    disk = little(end64, 16, 4);
    entries = little(end64, 32, 8);
    directory = {little(end64, 48, 8), little(end64, 40, 8)};
    directory_limit = offset;
  }
  if (disk != 0) throw ReadError("a zip archive in several parts");
  if (directory.offset > directory_limit || directory.size > directory_limit - directory.offset)
    throw ReadError("not a zip archive: its directory lies outside the file");
  if (directory.end() != directory_limit) problem("the directory does not end where the archive says");
  if (directory.size > kMaxDirectoryBytes) throw ReadError("a zip archive with a directory of over 128 MiB");
  expected_entries_ = entries;
  directory_offset_ = directory.offset;
  return directory;
}

void ZipArchive::read_directory(ByteRange range) {
  std::vector<uint8_t> raw(range.size);
  if (!source_.read(range.offset, raw)) throw ReadError("the archive's directory could not be read");
  const std::span<const uint8_t> all(raw);
  for (std::size_t at = 0; at + kDirectoryBytes <= raw.size();) {
    const auto h = all.subspan(at);
    if (little(h, 0, 4) != kDirectoryMagic) break;
    const std::size_t name = little(h, 28, 2), extra = little(h, 30, 2), comment = little(h, 32, 2);
    if (kDirectoryBytes + name + extra + comment > h.size()) break;
    if (entries_.size() >= limits_.entries)
      throw ReadError("a zip archive with more than " + std::to_string(limits_.entries) + " entries");
    ZipEntry entry;
    entry.name.assign(h.begin() + kDirectoryBytes, h.begin() + std::ptrdiff_t(kDirectoryBytes + name));
    entry.flags = uint16_t(little(h, 8, 2));
    entry.method = uint16_t(little(h, 10, 2));
    entry.crc = uint32_t(little(h, 16, 4));
    entry.stored = little(h, 20, 4);
    entry.plain = little(h, 24, 4);
    entry.header_offset = little(h, 42, 4);
    if (h[5] == 3) entry.mode = uint32_t(little(h, 40, 2));  // made on Unix: the upper half of the attributes
    widen(h.subspan(kDirectoryBytes + name, extra), entry);
    entries_.push_back(std::move(entry));
    at += kDirectoryBytes + name + extra + comment;
  }
  if (entries_.size() != expected_entries_)
    problem("the archive announces " + std::to_string(expected_entries_) + " entries and lists " +
            std::to_string(entries_.size()));
}

void ZipArchive::read_local_header(ZipEntry& entry) {
  const std::string who = "'" + printable(entry.name) + "'";
  uint8_t h[kLocalBytes];
  if (!source_.read(entry.header_offset, h) || little(h, 0, 4) != kLocalMagic)
    return problem(who + " is not where the directory says");
  const std::size_t name_bytes = little(h, 26, 2), extra_bytes = little(h, 28, 2);
  std::vector<uint8_t> rest(name_bytes + extra_bytes);
  if (!source_.read(entry.header_offset + kLocalBytes, rest)) return problem(who + " is cut off");
  entry.data_offset = entry.header_offset + kLocalBytes + rest.size();
  if (std::string(rest.begin(), rest.begin() + std::ptrdiff_t(name_bytes)) != entry.name)
    return problem(who + " has another name in its own header");
  if (entry.stored > source_.size() || entry.data_offset > source_.size() - entry.stored)
    return problem(who + " reaches beyond the end of the file");
  if (little(h, 8, 2) != entry.method) return problem(who + " has two compression methods");
  ZipEntry local;
  local.stored = little(h, 18, 4);
  local.plain = little(h, 22, 4);
  widen(std::span<const uint8_t>(rest).subspan(name_bytes), local);
  // With a descriptor after the data, the sizes here may be zero.
  const bool same = local.stored == entry.stored && local.plain == entry.plain;
  if (!same && !((entry.flags & kDescriptor) && local.stored == 0 && local.plain == 0))
    return problem(who + " has two sizes");
  if (entry.flags & (kEncrypted | kStrongEncryption)) return problem(who + " is encrypted");
  if (entry.method != 0 && entry.method != 8)
    return problem(who + " is compressed by method " + std::to_string(entry.method) +
                   ", want 0 (stored) or 8 (deflate)");
  if (entry.method == 0 && entry.stored != entry.plain) return problem(who + " is stored and has two sizes");
#if !MICA_DOCTOR_HAS_ZLIB
  if (entry.method == 8) return problem(who + " is compressed, and this build of mica has no zlib");
#endif
  entry.readable = true;
}

void ZipArchive::check_names() {
  std::unordered_set<std::string> seen;
  for (const ZipEntry& entry : entries_) {
    if (const std::string why = unsafe(entry.name); !why.empty()) problem(why);
    if (!seen.insert(entry.name).second) problem("'" + printable(entry.name) + "' is there twice");
    if (entry.is_link()) problem("'" + printable(entry.name) + "' is a symbolic link, which installers do not follow");
  }
}

void ZipArchive::check_overlaps() {
  std::vector<const ZipEntry*> order;
  for (const ZipEntry& entry : entries_)
    if (entry.readable) order.push_back(&entry);
  std::sort(order.begin(), order.end(),
            [](const ZipEntry* a, const ZipEntry* b) { return a->header_offset < b->header_offset; });
  for (std::size_t i = 0; i < order.size(); ++i) {
    const uint64_t end = order[i]->data_offset + order[i]->stored;
    const uint64_t next = i + 1 < order.size() ? order[i + 1]->header_offset : directory_offset_;
    if (end <= next) continue;
    problem("'" + printable(order[i]->name) + "' overlaps what follows it");
    const_cast<ZipEntry*>(order[i])->readable = false;
  }
}

void ZipArchive::check_sizes() {
  uint64_t plain = 0, stored = 0;
  for (const ZipEntry& entry : entries_) {
    plain += std::min(entry.plain, uint64_t(1) << 50);
    stored += std::min(entry.stored, uint64_t(1) << 50);
  }
  const bool bomb = plain > kRatioCountsFrom && plain / std::max<uint64_t>(stored, 1) > limits_.ratio;
  if (plain <= limits_.plain_bytes && !bomb) return;
  problem("its " + std::to_string(stored) + " bytes unpack to " + std::to_string(plain) + ": a zip bomb, not read");
  for (ZipEntry& entry : entries_) entry.readable = false;
}

}  // namespace doctor
