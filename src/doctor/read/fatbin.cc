// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/fatbin.h"

#include <algorithm>
#include <cstring>

#include "doctor/read/cubin.h"
#include "doctor/read/unpack/lz4.h"
#include "doctor/read/unpack/zstd.h"
#include "doctor/tables/cuda_releases.h"

namespace doctor {
namespace {

constexpr std::size_t kContainerHeader = 16, kEntryHeader = 64, kMaxEntryHeader = 4096;
constexpr std::size_t kSmallCubin = 64 << 10;  // opened to see whether it holds any code
constexpr std::size_t kCubinHead = 512;        // of larger ones, to see which toolkit made them
constexpr std::size_t kZstdHead =
    129 << 10;  // the same where zstd packed them: its blocks open as a whole, 128 KB at most
constexpr std::size_t kMaxEntries = 1'000'000, kMaxProblems = 20;
// Without zstd's decoder: nvcc's empty cubins are about 1.5 KB, the least kernel takes 3 KB.
constexpr uint64_t kEmptyCubinBytes = 2048;

enum EntryFlags : uint64_t {
  kDebug = 0x2,
  kLz4 = 0x2000,
  kZstd = 0x8000,
  kOtherCompression = 0x10000,
  kArchSpecific = 0x100000,
  kFamily = 0x200000,
};

template <class T>
T little(const uint8_t* at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value |= T(T(at[i]) << (8 * i));
  return value;
}

// Fields by their place in an entry's header.
FatbinEntry decode(const uint8_t* h) {
  FatbinEntry out;
  out.kind = little<uint16_t>(h);
  out.code = out.kind == 1   ? GpuCode::kPtx
             : out.kind == 2 ? GpuCode::kCubin
             : out.kind == 8 ? GpuCode::kLtoIr
                             : GpuCode::kOther;
  out.stored_bytes = little<uint64_t>(h + 0x08);
  const uint32_t compressed = little<uint32_t>(h + 0x10);
  const int minor = little<uint16_t>(h + 0x18), major = little<uint16_t>(h + 0x1a);
  const uint64_t flags = little<uint64_t>(h + 0x28);
  out.arch.sm = int(std::min<uint32_t>(little<uint32_t>(h + 0x1c), 9999));
  out.arch.suffix = flags & kArchSpecific ? 'a' : (flags & kFamily ? 'f' : char(0));
  out.debug = flags & kDebug;
  out.compression = flags & kZstd                                   ? Compression::kZstd
                    : flags & kLz4                                  ? Compression::kLz4
                    : (flags & kOtherCompression) || compressed > 0 ? Compression::kOther
                                                                    : Compression::kNone;
  const uint64_t plain = little<uint64_t>(h + 0x38);
  out.plain_bytes = out.compression == Compression::kNone || plain == 0 ? out.stored_bytes : plain;
  if (out.compression != Compression::kNone && compressed > 0 && compressed <= out.stored_bytes)
    out.stored_bytes = compressed;
  if (out.code == GpuCode::kPtx) out.ptx_isa = {{major, minor}};
  if (out.code == GpuCode::kCubin) out.cubin_abi = minor;
  return out;
}

}  // namespace

bool FatbinContainer::empty() const {
  return std::all_of(entries.begin(), entries.end(), [](const FatbinEntry& e) { return e.empty; });
}

void FatbinScanner::damaged(const std::string& what) {
  if (problems_.size() < kMaxProblems)
    problems_.push_back("the container at offset " + std::to_string(containers_.back().offset) + " " + what);
  step_ = Step::kSearch;
  skip_ = 0;
}

void FatbinScanner::skip(uint64_t bytes) {
  skip_ -= std::min(skip_, bytes);
  position_ += bytes;
}

void FatbinScanner::feed(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    if (pending_.empty() && skip_ > 0) {
      const uint64_t over = std::min<uint64_t>(skip_, bytes.size());
      skip(over);
      bytes = bytes.subspan(over);
      continue;
    }
    // Whole pieces, so that a search sees long runs; a payload never waits for more than a small cubin.
    const std::size_t take = std::min<std::size_t>(bytes.size(), 256 << 10);
    pending_.insert(pending_.end(), bytes.begin(), bytes.begin() + std::ptrdiff_t(take));
    position_ += take;
    bytes = bytes.subspan(take);
    while (advance()) {
    }
    pending_.erase(pending_.begin(), pending_.begin() + std::ptrdiff_t(used_));
    used_ = 0;
  }
}

// One step with the bytes that are there; false if it needs more.
bool FatbinScanner::advance() {
  const std::size_t have = pending_.size() - used_;
  const uint8_t* at = pending_.data() + used_;
  const uint64_t offset = position_ - have;
  if (skip_ > 0) {
    const uint64_t over = std::min<uint64_t>(skip_, have);
    skip_ -= over;
    used_ += over;
    return over > 0;
  }
  switch (step_) {
    case Step::kSearch: {
      std::size_t i = std::size_t((8 - offset % 8) % 8);
      for (; i + kContainerHeader <= have; i += 8) {
        uint64_t word;
        std::memcpy(&word, at + i, sizeof word);
        if (word != kFatbinMagic) continue;
        used_ += i;
        open_container();
        return true;
      }
      used_ += std::min(i, have);
      return false;
    }
    case Step::kEntryHeader: {
      if (offset >= container_end_) {
        step_ = Step::kSearch;
        return true;
      }
      if (container_end_ - offset < kEntryHeader) return damaged("ends inside an entry"), true;
      if (have < kEntryHeader) return false;
      const uint32_t header = little<uint32_t>(at + 4);
      if (header < kEntryHeader || header > kMaxEntryHeader)
        return damaged("has an entry with a header of " + std::to_string(header) + " bytes"), true;
      if (have < header) return false;
      read_entry();
      return true;
    }
    case Step::kPayload:
      if (have < opened_) return false;
      close_entry();
      return true;
  }
  return false;
}

void FatbinScanner::open_container() {
  const uint64_t offset = position_ - (pending_.size() - used_);
  const uint64_t size = little<uint64_t>(pending_.data() + used_ + 8);
  containers_.push_back({offset, {}});
  used_ += kContainerHeader;
  container_end_ = offset + kContainerHeader + std::min(size, uint64_t(1) << 62);
  step_ = Step::kEntryHeader;
}

void FatbinScanner::read_entry() {
  const uint8_t* at = pending_.data() + used_;
  const uint64_t offset = position_ - (pending_.size() - used_);
  const uint32_t header = little<uint32_t>(at + 4);
  const uint64_t payload = little<uint64_t>(at + 8);
  if (offset + header > container_end_ || payload > container_end_ - offset - header)
    return damaged("has an entry that is larger than the container");
  if (++total_entries_ > kMaxEntries) return damaged("is one too many: more than 1000000 entries");
  FatbinEntry entry = decode(at);
  containers_.back().entries.push_back(entry);
  used_ += header;
  const bool is_zstd = entry.compression == Compression::kZstd;
  if (entry.code == GpuCode::kCubin && is_zstd && !has_zstd() && entry.plain_bytes < kEmptyCubinBytes)
    containers_.back().entries.back().empty = true;
  const bool readable =
      entry.compression == Compression::kNone || entry.compression == Compression::kLz4 || (is_zstd && has_zstd());
  if (entry.code == GpuCode::kCubin && readable) {
    payload_ = payload;
    opened_ = payload <= kSmallCubin ? payload : is_zstd ? std::min<uint64_t>(payload, kZstdHead) : kCubinHead;
    step_ = Step::kPayload;
  } else {
    skip_ = payload;
    step_ = Step::kEntryHeader;
  }
}

// Enough of a cubin is there: what toolkit made it and, of a small one, is there anything in it.
void FatbinScanner::close_entry() {
  FatbinEntry& entry = containers_.back().entries.back();
  std::span<const uint8_t> bytes(pending_.data() + used_, opened_);
  std::vector<uint8_t> plain;
  if (entry.compression != Compression::kNone) {
    const auto expand = entry.compression == Compression::kLz4 ? expand_lz4 : expand_zstd;
    plain = expand(bytes.first(std::min<uint64_t>(bytes.size(), entry.stored_bytes)),
                   std::min<uint64_t>(entry.plain_bytes, 16 * kSmallCubin));
    bytes = plain;
  }
  const bool is_expanded = entry.compression == Compression::kNone || plain.size() >= entry.plain_bytes;
  const bool whole = opened_ == payload_ && is_expanded;
  try {
    MemorySource source(bytes);
    const Cubin cubin = whole ? read_cubin(source) : read_cubin_header(source);
    entry.toolkit = cubin.toolkit;
    entry.empty = whole && cubin.kernels.empty();
  } catch (const ReadError&) {
    // A cubin that cannot be opened still says in its entry what it is for.
  }
  used_ += opened_;
  skip_ = payload_ - opened_;
  step_ = Step::kEntryHeader;
}

namespace {

// One nvcc packs a container: what one entry tells holds for those that do not.
void share_toolkit(FatbinContainer& container) {
  Version known;
  for (const FatbinEntry& entry : container.entries)
    known = std::max(known, entry.code == GpuCode::kPtx ? cuda_for_ptx(entry.ptx_isa) : entry.toolkit);
  for (FatbinEntry& entry : container.entries)
    if (entry.code == GpuCode::kCubin && !entry.toolkit.known()) entry.toolkit = known;
}

}  // namespace

std::vector<FatbinContainer> FatbinScanner::finish(std::vector<std::string>* problems) {
  const uint64_t offset = position_ - (pending_.size() - used_);
  const bool inside = step_ == Step::kPayload || (step_ == Step::kEntryHeader && offset + skip_ < container_end_);
  if (inside || skip_ > 0) damaged("is cut off");
  if (problems) problems->insert(problems->end(), problems_.begin(), problems_.end());
  for (FatbinContainer& container : containers_) share_toolkit(container);
  return std::move(containers_);
}

std::vector<FatbinContainer> read_fatbins(ByteSource& source, ByteRange range, std::vector<std::string>* problems) {
  FatbinScanner scanner(range.offset);
  std::vector<uint8_t> buffer;
  const uint64_t end = range.offset + std::min(range.size, source.size() - std::min(source.size(), range.offset));
  for (uint64_t at = range.offset; at < end;) {
    const uint64_t over = std::min(scanner.skippable(), end - at);
    scanner.skip(over);
    at += over;
    // Headers are small; a search reads on in larger steps.
    buffer.resize(std::min<uint64_t>(end - at, over > 0 ? 4096 : 256 << 10));
    if (!source.read(at, buffer)) {
      if (problems) problems->push_back("GPU code could not be read");
      break;
    }
    scanner.feed(buffer);
    at += buffer.size();
  }
  return scanner.finish(problems);
}

}  // namespace doctor
