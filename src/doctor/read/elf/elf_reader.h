// SPDX-License-Identifier: Apache-2.0
// The reader behind read_elf: headers in elf.cc, what hangs on the dynamic section in elf_symbols.cc.
#pragma once

#include <algorithm>
#include <map>
#include <optional>

#include "doctor/read/elf/elf.h"
#include "doctor/read/elf/elf_fields.h"

namespace doctor {

class ElfReader {
 public:
  explicit ElfReader(ByteSource& source) : source_(source) {}
  ElfFile read();

 private:
  // Far above any library in the wild (libtorch_cpu has 35 MiB of names), far below harm.
  static constexpr uint64_t kMaxStringBytes = uint64_t(96) << 20;
  static constexpr uint64_t kMaxSymbols = 2'000'000;
  static constexpr uint64_t kMaxRelocations = 20'000'000;
  static constexpr uint64_t kMaxDynamicEntries = 4096;
  static constexpr uint64_t kMaxVersions = 10'000;
  static constexpr uint64_t kMaxSections = 70'000;
  static constexpr uint64_t kMaxNoteBytes = 64 << 10;
  static constexpr std::size_t kWindowBytes = 1 << 20;

  struct Segment {
    uint64_t type, flags, offset, address, size;  // size in the file
  };
  struct VersionName {
    std::string_view version, library;
  };

  void problem(std::string text);
  // Bytes that must be there; otherwise a problem, and empty.
  std::vector<uint8_t> bytes(ByteRange range, const char* what);
  ElfFields fields(const std::vector<uint8_t>& raw, uint64_t at) const {
    return {std::span<const uint8_t>(raw).subspan(std::min<uint64_t>(at, raw.size())), format_};
  }
  // The place in the file of an address; nothing if no segment holds it.
  std::optional<uint64_t> offset_of(uint64_t address) const;
  uint64_t dynamic(int64_t tag) const;
  // The range of a table whose address stands in the dynamic section; size 0 if it is not there.
  ByteRange table(int64_t address_tag, uint64_t size, const char* what);
  std::string_view name(uint64_t offset, const char* what);

  void read_header();
  void read_segments();
  void read_sections();
  void read_dynamic();
  void read_strings();
  void own_strings();
  void name_libraries();
  void read_notes();
  void read_properties(std::span<const uint8_t> properties);

  void read_needed_versions();
  void read_defined_versions();
  uint64_t symbol_count();
  uint64_t gnu_hash_count();
  void read_symbols();
  void read_relocations();
  void note_thread_use(uint64_t type, uint64_t symbol);
  void relocate(int64_t tag, uint64_t size, std::size_t stride, std::vector<bool>& seen, uint64_t& left);

  ByteSource& source_;
  ElfFile elf_;
  ElfFormat format_;
  ByteRange segments_at_, sections_at_;  // size counts entries
  uint64_t section_names_ = 0;
  std::vector<Segment> segments_;
  std::vector<uint64_t> section_name_offsets_, needed_offsets_;
  std::vector<uint8_t> string_bytes_, section_name_bytes_;
  std::string_view names_;
  std::map<int64_t, uint64_t> dynamic_;
  std::map<uint64_t, VersionName> version_names_;
  std::vector<bool> thread_uses_seen_;  // of no symbol and of each, fixed and by a function
};

}  // namespace doctor
