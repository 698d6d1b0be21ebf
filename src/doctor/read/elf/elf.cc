// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/elf/elf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "doctor/read/elf/elf_reader.h"

namespace doctor {
namespace {

std::string_view until_zero(std::string_view table, std::size_t offset) {
  if (offset >= table.size()) return {};
  const std::string_view rest = table.substr(offset);
  return rest.substr(0, rest.find('\0'));
}

}  // namespace

void ElfReader::problem(std::string text) {
  if (elf_.problems.size() < 20) elf_.problems.push_back(std::move(text));
}

// Bytes that must be there; a short answer is a problem, not an end.
std::vector<uint8_t> ElfReader::bytes(ByteRange range, const char* what) {
  std::vector<uint8_t> out;
  if (range.offset > source_.size() || range.size > source_.size() - range.offset) {
    problem(std::string(what) + " lies outside the file");
    return out;
  }
  out.resize(range.size);
  if (!source_.read(range.offset, out)) {
    problem(std::string(what) + " could not be read");
    out.clear();
  }
  return out;
}

void ElfReader::read_header() {
  std::array<uint8_t, sizeof(Elf64_Ehdr)> raw = {};
  const std::size_t have = std::size_t(std::min<uint64_t>(source_.size(), raw.size()));
  if (have < EI_NIDENT || !source_.read(0, std::span(raw).first(have)) || std::memcmp(raw.data(), ELFMAG, SELFMAG) != 0)
    throw ReadError("not an ELF file");
  const uint8_t elf_class = raw[EI_CLASS], order = raw[EI_DATA];
  if ((elf_class != ELFCLASS32 && elf_class != ELFCLASS64) || (order != ELFDATA2LSB && order != ELFDATA2MSB))
    throw ReadError("an ELF file of unknown class or byte order");
  format_ = {elf_class == ELFCLASS64, order == ELFDATA2LSB};
  if (have < MICA_ELF_SIZE(format_, Ehdr)) throw ReadError("the ELF header is cut off");
  const ElfFields header(raw, format_);
  elf_.is_64 = format_.is_64;
  elf_.little_endian = format_.little_endian;
  elf_.osabi = raw[EI_OSABI];
  elf_.abi_version = raw[EI_ABIVERSION];
  elf_.type = uint16_t(MICA_ELF_FIELD(header, format_, Ehdr, e_type));
  elf_.machine = uint16_t(MICA_ELF_FIELD(header, format_, Ehdr, e_machine));
  elf_.version = uint32_t(MICA_ELF_FIELD(header, format_, Ehdr, e_version));
  elf_.flags = uint32_t(MICA_ELF_FIELD(header, format_, Ehdr, e_flags));
  segments_at_ = {MICA_ELF_FIELD(header, format_, Ehdr, e_phoff), MICA_ELF_FIELD(header, format_, Ehdr, e_phnum)};
  sections_at_ = {MICA_ELF_FIELD(header, format_, Ehdr, e_shoff), MICA_ELF_FIELD(header, format_, Ehdr, e_shnum)};
  section_names_ = MICA_ELF_FIELD(header, format_, Ehdr, e_shstrndx);
  const uint64_t segment_bytes = MICA_ELF_FIELD(header, format_, Ehdr, e_phentsize);
  const uint64_t section_bytes = MICA_ELF_FIELD(header, format_, Ehdr, e_shentsize);
  if (segments_at_.size > 0 && segment_bytes != MICA_ELF_SIZE(format_, Phdr)) {
    problem("program headers of an unknown size");
    segments_at_.size = 0;
  }
  if (sections_at_.size > 0 && section_bytes != MICA_ELF_SIZE(format_, Shdr)) {
    problem("section headers of an unknown size");
    sections_at_.size = 0;
  }
}

void ElfReader::read_segments() {
  const std::size_t stride = MICA_ELF_SIZE(format_, Phdr);
  const auto raw = bytes({segments_at_.offset, segments_at_.size * stride}, "the table of program headers");
  std::optional<uint64_t> stack_flags;
  for (std::size_t at = 0; at + stride <= raw.size(); at += stride) {
    const ElfFields f = fields(raw, at);
    segments_.push_back({MICA_ELF_FIELD(f, format_, Phdr, p_type), MICA_ELF_FIELD(f, format_, Phdr, p_flags),
                         MICA_ELF_FIELD(f, format_, Phdr, p_offset), MICA_ELF_FIELD(f, format_, Phdr, p_vaddr),
                         MICA_ELF_FIELD(f, format_, Phdr, p_filesz)});
    if (segments_.back().type == PT_LOAD) {
      const uint64_t align = MICA_ELF_FIELD(f, format_, Phdr, p_align);
      const uint64_t distance = segments_.back().address - segments_.back().offset;
      elf_.layout.alignments |= align;
      elf_.layout.distances |= distance;
      elf_.layout.is_skewed |= align > 0 && (distance & (align - 1)) != 0;
    }
    if (segments_.back().type == PT_TLS)
      elf_.thread_data = {MICA_ELF_FIELD(f, format_, Phdr, p_memsz), MICA_ELF_FIELD(f, format_, Phdr, p_align)};
    if (segments_.back().type == PT_GNU_STACK) stack_flags = segments_.back().flags;
  }
  // Where a file says nothing of its stack, glibc takes it for an executable one, but not on newer machines (aarch64).
  constexpr std::array<uint16_t, 4> kExecutableUnlessSaid = {EM_386, EM_X86_64, EM_ARM, EM_S390};
  const bool is_old = std::count(kExecutableUnlessSaid.begin(), kExecutableUnlessSaid.end(), elf_.machine) > 0;
  elf_.says_nothing_of_stack = !stack_flags;
  elf_.executable_stack = stack_flags ? (*stack_flags & PF_X) != 0 : is_old && !segments_.empty();
  elf_.has_segments =
      std::any_of(segments_.begin(), segments_.end(), [](const Segment& s) { return s.type == PT_LOAD; });
}

// Names come later, when all strings have their place.
void ElfReader::read_sections() {
  if (sections_at_.offset == 0 || sections_at_.size == 0) return;
  if (sections_at_.size > kMaxSections) return problem("more than 70000 sections");
  const std::size_t stride = MICA_ELF_SIZE(format_, Shdr);
  const auto raw = bytes({sections_at_.offset, sections_at_.size * stride}, "the table of section headers");
  for (std::size_t at = 0; at + stride <= raw.size(); at += stride) {
    const ElfFields f = fields(raw, at);
    ElfSection section;
    section.type = uint32_t(MICA_ELF_FIELD(f, format_, Shdr, sh_type));
    section.flags = MICA_ELF_FIELD(f, format_, Shdr, sh_flags);
    section.offset = MICA_ELF_FIELD(f, format_, Shdr, sh_offset);
    section.size = MICA_ELF_FIELD(f, format_, Shdr, sh_size);
    elf_.sections.push_back(section);
    section_name_offsets_.push_back(MICA_ELF_FIELD(f, format_, Shdr, sh_name));
  }
  if (section_names_ >= elf_.sections.size()) return;
  const ElfSection& names = elf_.sections[section_names_];
  if (names.size > kMaxStringBytes) return problem("the table of section names is too large");
  section_name_bytes_ = bytes({names.offset, names.size}, "the table of section names");
}

// The place in the file of an address; nothing if no segment holds it.
std::optional<uint64_t> ElfReader::offset_of(uint64_t address) const {
  for (const Segment& s : segments_)
    if (s.type == PT_LOAD && address >= s.address && address - s.address < s.size)
      return s.offset + (address - s.address);
  return std::nullopt;
}

uint64_t ElfReader::dynamic(int64_t tag) const {
  const auto found = dynamic_.find(tag);
  return found == dynamic_.end() ? 0 : found->second;
}

// The range of a table whose address stands in the dynamic section; size 0 if it is not there.
ByteRange ElfReader::table(int64_t address_tag, uint64_t size, const char* what) {
  if (!dynamic_.count(address_tag) || size == 0) return {};
  const auto offset = offset_of(dynamic(address_tag));
  if (!offset || *offset > source_.size()) {
    problem(std::string(what) + " lies outside the file");
    return {};
  }
  return {*offset, std::min(size, source_.size() - *offset)};
}

void ElfReader::read_dynamic() {
  const Segment* found = nullptr;
  for (const Segment& s : segments_)
    if (s.type == PT_DYNAMIC) found = &s;
  if (!found) return;
  const std::size_t stride = MICA_ELF_SIZE(format_, Dyn);
  const auto raw =
      bytes({found->offset, std::min<uint64_t>(found->size, kMaxDynamicEntries * stride)}, "the dynamic section");
  for (std::size_t at = 0; at + stride <= raw.size(); at += stride) {
    const ElfFields f = fields(raw, at);
    uint64_t tag = MICA_ELF_FIELD(f, format_, Dyn, d_tag);
    const uint64_t value = MICA_ELF_FIELD(f, format_, Dyn, d_un);
    if (!format_.is_64) tag = uint64_t(int64_t(int32_t(uint32_t(tag))));
    if (tag == DT_NULL) break;
    elf_.has_dynamic = true;
    if (tag == DT_NEEDED)
      needed_offsets_.push_back(value);
    else
      dynamic_[int64_t(tag)] = value;
  }
  elf_.bind_now = dynamic_.count(DT_BIND_NOW) || (dynamic(DT_FLAGS) & DF_BIND_NOW) || (dynamic(DT_FLAGS_1) & DF_1_NOW);
  constexpr uint64_t kPie = 0x08000000;  // DF_1_PIE, which older elf.h have not
  elf_.is_program = (dynamic(DT_FLAGS_1) & kPie) != 0;
  elf_.refuses_dlopen = (dynamic(DT_FLAGS_1) & DF_1_NOOPEN) != 0;
  elf_.shuns_defaults = (dynamic(DT_FLAGS_1) & DF_1_NODEFLIB) != 0;
  constexpr int64_t kRelr = 36, kRelrBytes = 35;  // DT_RELR and DT_RELRSZ, which older elf.h have not
  if (dynamic_.count(kRelr)) elf_.packed_relocations = dynamic(kRelrBytes);
  elf_.text_relocations = dynamic_.count(DT_TEXTREL) || (dynamic(DT_FLAGS) & DF_TEXTREL);
}

void ElfReader::read_strings() {
  uint64_t size = dynamic(DT_STRSZ);
  if (size > kMaxStringBytes) {
    problem("the table of names is larger than 96 MiB");
    size = kMaxStringBytes;
  }
  const ByteRange range = table(DT_STRTAB, size, "the table of names");
  string_bytes_ = bytes(range, "the table of names");
}

// One string for everything that views will point into.
void ElfReader::own_strings() {
  std::vector<uint8_t> interpreter;
  for (const Segment& s : segments_)
    if (s.type == PT_INTERP && s.size < 4096) interpreter = bytes({s.offset, s.size}, "the interpreter's name");
  auto all = std::make_shared<std::string>();
  all->reserve(string_bytes_.size() + section_name_bytes_.size() + interpreter.size() + 3);
  for (const auto* part : {&string_bytes_, &section_name_bytes_, &interpreter}) {
    all->append(part->begin(), part->end());
    all->push_back('\0');
  }
  const std::size_t section_names = string_bytes_.size() + 1;
  const std::size_t interpreter_at = section_names + section_name_bytes_.size() + 1;
  elf_.strings = all;
  names_ = std::string_view(*all).substr(0, string_bytes_.size());
  const std::string_view sections = std::string_view(*all).substr(section_names, section_name_bytes_.size());
  for (std::size_t i = 0; i < elf_.sections.size(); ++i)
    if (section_name_offsets_[i] < sections.size())
      elf_.sections[i].name = until_zero(sections, section_name_offsets_[i]);
  elf_.interpreter = until_zero(std::string_view(*all), interpreter_at);
  string_bytes_ = section_name_bytes_ = {};
}

std::string_view ElfReader::name(uint64_t offset, const char* what) {
  if (offset >= names_.size()) {
    if (offset != 0 || !names_.empty())
      problem(std::string("the name of ") + what + " lies outside the table of names");
    return {};
  }
  return until_zero(names_, offset);
}

void ElfReader::name_libraries() {
  for (const uint64_t offset : needed_offsets_) elf_.needed.push_back(name(offset, "a needed library"));
  if (dynamic_.count(DT_SONAME)) elf_.soname = name(dynamic(DT_SONAME), "the library itself");
  if (dynamic_.count(DT_RPATH)) elf_.rpath = name(dynamic(DT_RPATH), "the run path");
  if (dynamic_.count(DT_RUNPATH)) elf_.runpath = name(dynamic(DT_RUNPATH), "the run path");
  elf_.has_empty_runpath = dynamic_.count(DT_RUNPATH) && elf_.runpath.empty();
}

// Pairs of a kind and its data: among them the levels of x86-64 that the file asks for, each a bit.
void ElfReader::read_properties(std::span<const uint8_t> properties) {
  constexpr uint64_t kLevelsNeeded = 0xc0008002;  // GNU_PROPERTY_X86_ISA_1_NEEDED, which older elf.h have not
  const std::size_t align = format_.is_64 ? 8 : 4;
  for (std::size_t at = 0; at + 8 <= properties.size();) {
    const ElfFields f(properties.subspan(at), format_);
    const uint64_t kind = f.read(0, 4), bytes = f.read(4, 4);
    if (bytes > properties.size() - at - 8) return;
    if (kind == kLevelsNeeded && bytes == 4 && elf_.machine == EM_X86_64)
      elf_.cpu_level = std::bit_width(uint32_t(f.read(8, 4) & 0xf));
    at += 8 + (bytes + align - 1) / align * align;
  }
}

void ElfReader::read_notes() {
  for (const Segment& s : segments_) {
    if (s.type != PT_NOTE || s.size > kMaxNoteBytes || s.size == 0) continue;
    const auto raw = bytes({s.offset, s.size}, "a note");
    const ElfFields f(raw, format_);
    for (uint64_t at = 0; at + 12 <= raw.size();) {
      const uint64_t name_bytes = f.read(at, 4), bytes = f.read(at + 4, 4), type = f.read(at + 8, 4);
      const uint64_t data = at + 12 + (name_bytes + 3) / 4 * 4;
      if (data + bytes > raw.size()) break;
      if (type == NT_GNU_BUILD_ID && name_bytes == 4 && std::memcmp(raw.data() + at + 12, "GNU", 4) == 0 && bytes <= 64)
        for (uint64_t i = 0; i < bytes; ++i)
          for (const int shift : {4, 0}) elf_.build_id += "0123456789abcdef"[raw[data + i] >> shift & 15];
      if (type == NT_GNU_PROPERTY_TYPE_0 && name_bytes == 4 && std::memcmp(raw.data() + at + 12, "GNU", 4) == 0)
        read_properties(std::span(raw).subspan(data, bytes));
      at = data + (bytes + 3) / 4 * 4;
    }
  }
}

ElfFile ElfReader::read() {
  read_header();
  read_segments();
  read_sections();
  read_dynamic();
  if (elf_.has_dynamic) read_strings();
  own_strings();
  if (elf_.has_dynamic) {
    name_libraries();
    read_needed_versions();
    read_defined_versions();
    read_symbols();
    read_relocations();
  }
  read_notes();
  return std::move(elf_);
}

ElfFile read_elf(ByteSource& source) { return ElfReader(source).read(); }

ElfFile read_elf_file(const std::string& path) {
  FileSource source(path);
  return read_elf(source);
}

std::string machine_name(const ElfFile& elf) {
  switch (elf.machine) {
    case EM_X86_64: return elf.is_64 ? "x86_64" : "x32";
    case EM_386: return "i686";
    case EM_AARCH64: return elf.little_endian ? "aarch64" : "aarch64_be";
    case EM_ARM: return "armv7l";
    case EM_PPC64: return elf.little_endian ? "ppc64le" : "ppc64";
    case EM_S390: return elf.is_64 ? "s390x" : "s390";
    case EM_RISCV: return elf.is_64 ? "riscv64" : "riscv32";
    case 258: return "loongarch64";
    case EM_CUDA: return "cuda";
    default: return "machine " + std::to_string(elf.machine);
  }
}

}  // namespace doctor
