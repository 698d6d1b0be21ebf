// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/binary.h"

#include <elf.h>

#include <algorithm>
#include <cstring>

#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

constexpr uint8_t kFatbinMagic[8] = {0x50, 0xed, 0x55, 0xba, 0x01, 0x00, 0x10, 0x00};

bool starts_as_elf(std::span<const uint8_t> head) {
  return head.size() >= SELFMAG && std::memcmp(head.data(), ELFMAG, SELFMAG) == 0;
}
bool starts_as_fatbin(std::span<const uint8_t> head) {
  return head.size() >= sizeof kFatbinMagic && std::memcmp(head.data(), kFatbinMagic, sizeof kFatbinMagic) == 0;
}

bool is_gpu_section(const ElfSection& section) {
  return section.name == ".nv_fatbin" || section.name == "__nv_relfatbin";
}

// Other sections may carry containers as plain data; code and what is not loaded cannot.
bool may_hold_containers(const ElfSection& section) {
  return section.type == SHT_PROGBITS && (section.flags & SHF_ALLOC) && !(section.flags & SHF_EXECINSTR);
}

// Where to look for containers: in the sections made for them, else in all data, else everywhere.
std::vector<ByteRange> container_ranges(const ElfFile& elf, uint64_t size) {
  std::vector<ByteRange> own, data;
  for (const ElfSection& section : elf.sections) {
    if (section.type == SHT_NOBITS || section.offset > size) continue;
    const ByteRange range{section.offset, std::min(section.size, size - section.offset)};
    if (is_gpu_section(section)) own.push_back(range);
    if (may_hold_containers(section)) data.push_back(range);
  }
  if (!own.empty()) return own;
  return elf.sections.empty() ? std::vector<ByteRange>{{0, size}} : data;
}

void add_problems(const std::string& path, const char* code, const std::vector<std::string>& texts,
                  std::vector<Verdict>& problems) {
  for (const std::string& text : texts)
    problems.push_back(make_verdict(code, path, text, "The file was cut off or changed after it was made.",
                                    "download or build it again"));
}

// The parts of a binary that do not depend on where its bytes come from.
std::optional<Binary> read_headers(ByteSource& source, const std::string& path, std::vector<Verdict>& problems) {
  Binary out;
  out.path = path;
  out.size = source.size();
  try {
    out.elf = read_elf(source);
    if (out.elf.machine == EM_CUDA) out.cubin = read_cubin(source);
  } catch (const ReadError& e) {
    add_problems(path, "ELF_DAMAGED", {e.what()}, problems);
    return std::nullopt;
  }
  // Relocatable objects and debug files lack what the loader wants; that is no damage.
  add_problems(path, "ELF_DAMAGED", out.elf.problems, problems);
  return out;
}

}  // namespace

void BinaryProbe::feed(std::span<const uint8_t> piece) {
  if (kind_ == Kind::kUnknown) {
    head_.insert(head_.end(), piece.begin(), piece.end());
    if (head_.size() < 8 && head_.size() < size_) return;
    kind_ = starts_as_elf(head_) ? Kind::kElf : (starts_as_fatbin(head_) ? Kind::kFatbin : Kind::kOther);
    if (kind_ != Kind::kOther) scanner_.feed(head_);
    head_ = {};
  } else if (kind_ != Kind::kOther) {
    scanner_.feed(piece);
  }
}

std::optional<Binary> BinaryProbe::finish(ByteSource& source, std::vector<Verdict>& problems) {
  if (kind_ != Kind::kElf && kind_ != Kind::kFatbin) return std::nullopt;
  std::vector<std::string> damage;
  std::vector<FatbinContainer> found = scanner_.finish(&damage);
  std::optional<Binary> out;
  if (kind_ == Kind::kFatbin) {
    out.emplace();
    out->path = path_;
    out->size = size_;
    out->bare_fatbin = true;
    out->fatbins = std::move(found);
  } else {
    out = read_headers(source, path_, problems);
    if (!out || out->cubin) return out;
    const std::vector<ByteRange> ranges = container_ranges(out->elf, size_);
    for (FatbinContainer& container : found)
      if (std::any_of(ranges.begin(), ranges.end(),
                      [&](ByteRange r) { return container.offset >= r.offset && container.offset < r.end(); }))
        out->fatbins.push_back(std::move(container));
    if (out->fatbins.empty()) damage.clear();
  }
  add_problems(path_, "GPU_CODE_DAMAGED", damage, problems);
  return out;
}

std::optional<Binary> read_binary(ByteSource& source, const std::string& path, std::vector<Verdict>& problems) {
  uint8_t head[8] = {};
  const std::size_t have = std::min<uint64_t>(source.size(), sizeof head);
  if (!source.read(0, std::span(head, have))) return std::nullopt;
  std::vector<std::string> damage;
  std::optional<Binary> out;
  if (starts_as_fatbin({head, have})) {
    out.emplace();
    out->path = path;
    out->size = source.size();
    out->bare_fatbin = true;
    out->fatbins = read_fatbins(source, {0, source.size()}, &damage);
  } else if (starts_as_elf({head, have})) {
    out = read_headers(source, path, problems);
    if (!out || out->cubin) return out;
    for (const ByteRange& range : container_ranges(out->elf, source.size()))
      for (FatbinContainer& container : read_fatbins(source, range, &damage))
        out->fatbins.push_back(std::move(container));
    if (out->fatbins.empty()) damage.clear();
  }
  add_problems(path, "GPU_CODE_DAMAGED", damage, problems);
  return out;
}

std::optional<Binary> read_binary(const std::string& path, std::vector<Verdict>& problems) {
  FileSource source(path);
  return read_binary(source, path, problems);
}

}  // namespace doctor
