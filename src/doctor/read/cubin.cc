// SPDX-License-Identifier: Apache-2.0
// Cubins are ELF files for the GPU. What they say of themselves depends on the toolkit's generation.
#include "doctor/read/cubin.h"

#include <algorithm>
#include <array>

#include "doctor/read/elf/elf.h"
#include "doctor/read/elf/elf_fields.h"

namespace doctor {
namespace {

constexpr uint16_t kMachineCuda = 190;
constexpr std::size_t kMaxKernels = 100'000, kMaxNote = 64 << 10;

std::vector<uint8_t> section_bytes(ByteSource& source, const ElfSection& section) {
  std::vector<uint8_t> out;
  if (section.size > kMaxNote || section.offset > source.size() || section.size > source.size() - section.offset)
    return out;
  out.resize(section.size);
  if (!source.read(section.offset, out)) out.clear();
  return out;
}

// The text after a key inside a note, up to its zero.
std::string text_after(std::string_view note, std::string_view key) {
  const std::size_t at = note.find(key);
  if (at == note.npos) return "";
  const std::string_view rest = note.substr(at + key.size());
  return std::string(rest.substr(0, rest.find('\0')));
}

// Toolkits write 13.0 as 130.
Version toolkit_version(uint64_t tenths) { return {{int(tenths / 10), int(tenths % 10)}}; }

void read_abi7(const ElfFile& elf, Cubin& out) {
  out.arch.sm = int(elf.flags & 0xff);
  if (elf.flags & 0x800) out.arch.suffix = 'a';
  out.virtual_arch.sm = int(elf.flags >> 16 & 0xff);
  if (elf.version >= 40 && elf.version < 1000) out.toolkit = toolkit_version(elf.version);
}

// NOTE: from CUDA 13 on, no flag says "a": it stands in .nv.compat and in the command line.
void read_abi8(const ElfFile& elf, ByteSource& source, Cubin& out) {
  out.arch.sm = int(elf.flags >> 8 & 0xff);
  for (const ElfSection& section : elf.sections) {
    if (section.name == ".note.nv.cuinfo") {
      // Note header (12), owner (12), then u16 version, u16 sm, u16 toolkit.
      const auto raw = section_bytes(source, section);
      if (raw.size() >= 30) out.toolkit = toolkit_version(uint64_t(raw[28]) | uint64_t(raw[29]) << 8);
    } else if (section.name == ".note.nv.tkinfo") {
      const auto raw = section_bytes(source, section);
      const std::string_view note(reinterpret_cast<const char*>(raw.data()), raw.size());
      if (note.find("-arch ") != note.npos) out.command_line = "-arch " + text_after(note, "-arch ");
      if (!out.toolkit.known()) out.toolkit = parse_version(text_after(note, "release "));
      const std::string arch = text_after(note, "-arch sm_");
      const std::size_t end = arch.find_first_not_of("0123456789");
      if (end != arch.npos && (arch[end] == 'a' || arch[end] == 'f')) out.arch.suffix = arch[end];
    } else if (section.name == ".nv.compat") {
      // Records: format, attribute, u16 value; format 4: the value is a length, and that many bytes follow.
      const auto raw = section_bytes(source, section);
      for (std::size_t at = 0; at + 4 <= raw.size();) {
        const uint16_t value = uint16_t(raw[at + 2] | raw[at + 3] << 8);
        if (raw[at + 1] == 9 && raw[at] != 4 && (value & 0xff) == 1 && !out.arch.suffix) out.arch.suffix = 'a';
        at += 4 + (raw[at] == 4 ? value : 0u);
      }
    }
  }
  while (!out.command_line.empty() && out.command_line.back() == ' ') out.command_line.pop_back();
}

}  // namespace

namespace {

Cubin read(ByteSource& source, bool whole) {
  std::array<uint8_t, 64> head = {};
  if (!whole && !source.read(0, head)) throw ReadError("the ELF header is cut off");
  // Without its tables, the header is an ELF file by itself.
  for (const std::size_t field : {offsetof(Elf64_Ehdr, e_phoff), offsetof(Elf64_Ehdr, e_shoff)})
    std::fill_n(head.begin() + field, 8, uint8_t(0));
  std::fill_n(head.begin() + offsetof(Elf64_Ehdr, e_phnum), 2, uint8_t(0));
  std::fill_n(head.begin() + offsetof(Elf64_Ehdr, e_shnum), 2, uint8_t(0));
  MemorySource header(head);
  const ElfFile elf = read_elf(whole ? source : header);
  if (elf.machine != kMachineCuda) throw ReadError("an ELF file for " + machine_name(elf) + ", not for a GPU");
  Cubin out;
  out.abi = elf.abi_version;
  if (elf.osabi == 0x41)
    read_abi8(elf, source, out);
  else
    read_abi7(elf, out);
  for (const ElfSection& section : elf.sections)
    if (section.name.starts_with(".text.") && section.size > 0 && out.kernels.size() < kMaxKernels)
      out.kernels.emplace_back(section.name.substr(6));
  return out;
}

}  // namespace

Cubin read_cubin(ByteSource& source) { return read(source, true); }
Cubin read_cubin_header(ByteSource& source) { return read(source, false); }

}  // namespace doctor
