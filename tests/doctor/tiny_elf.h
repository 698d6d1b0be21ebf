// SPDX-License-Identifier: Apache-2.0
// Shared libraries of a few hundred bytes, for fake systems: the names a loader looks at, and no code.
#pragma once

#include <elf.h>

#include <cstring>
#include <string>
#include <vector>

namespace tiny {

struct Library {
  uint16_t machine = EM_X86_64;
  std::string soname;
  std::vector<std::string> needed;
  std::vector<std::string> exports;
  std::vector<std::string> imports;
  std::vector<std::string> versions;  // that it defines
  std::string runpath;
  std::string data;  // bytes that nothing points to
};

class ElfWriter {
 public:
  std::string write(const Library& library) {
    const std::size_t header = sizeof(Elf64_Ehdr) + 3 * sizeof(Elf64_Phdr);
    bytes_.assign(header, '\0');
    strings_.assign(1, '\0');
    std::vector<Elf64_Sym> symbols(1);
    for (const std::string& name : library.exports) symbols.push_back(symbol(name, true));
    for (const std::string& name : library.imports) symbols.push_back(symbol(name, false));
    std::vector<Elf64_Dyn> dynamic;
    const auto entry = [&](int64_t tag, uint64_t value) { dynamic.push_back({tag, {value}}); };
    if (!library.soname.empty()) entry(DT_SONAME, string(library.soname));
    if (!library.runpath.empty()) entry(DT_RUNPATH, string(library.runpath));
    for (const std::string& name : library.needed) entry(DT_NEEDED, string(name));
    const std::string definitions = version_definitions(library.versions);
    entry(DT_SYMTAB, append(symbols.data(), symbols.size() * sizeof(Elf64_Sym)));
    entry(DT_SYMENT, sizeof(Elf64_Sym));
    std::vector<Elf64_Rela> relocations;  // each import is looked up once
    for (std::size_t i = 0; i < library.imports.size(); ++i)
      relocations.push_back({0, ELF64_R_INFO(1 + library.exports.size() + i, glob_dat(library.machine)), 0});
    if (!relocations.empty()) {
      entry(DT_RELA, append(relocations.data(), relocations.size() * sizeof(Elf64_Rela)));
      entry(DT_RELASZ, relocations.size() * sizeof(Elf64_Rela));
      entry(DT_RELAENT, sizeof(Elf64_Rela));
    }
    const uint32_t hash[4] = {1, uint32_t(symbols.size()), 0, 0};  // the count is all that is read
    entry(DT_HASH, append(hash, sizeof hash));
    if (!library.versions.empty()) {
      entry(DT_VERDEF, append(definitions.data(), definitions.size()));
      entry(DT_VERDEFNUM, library.versions.size());
    }
    append(library.data.data(), library.data.size());
    const uint64_t strings_at = append(strings_.data(), strings_.size());
    entry(DT_STRTAB, strings_at);
    entry(DT_STRSZ, strings_.size());
    entry(DT_NULL, 0);
    const uint64_t dynamic_at = append(dynamic.data(), dynamic.size() * sizeof(Elf64_Dyn));
    finish(library, dynamic_at, dynamic.size() * sizeof(Elf64_Dyn));
    return bytes_;
  }

 private:
  static uint32_t glob_dat(uint16_t machine) { return machine == EM_AARCH64 ? R_AARCH64_GLOB_DAT : R_X86_64_GLOB_DAT; }

  uint32_t string(const std::string& text) {
    const std::size_t at = strings_.size();
    strings_.append(text).append(1, '\0');
    return uint32_t(at);
  }

  Elf64_Sym symbol(const std::string& name, bool defined) {
    Elf64_Sym out = {};
    out.st_name = string(name);
    out.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    out.st_shndx = defined ? 1 : SHN_UNDEF;
    out.st_value = defined ? 64 : 0;
    return out;
  }

  std::string version_definitions(const std::vector<std::string>& versions) {
    std::string out;
    for (std::size_t i = 0; i < versions.size(); ++i) {
      Elf64_Verdef def = {};
      def.vd_version = 1;
      def.vd_ndx = uint16_t(i + 2);
      def.vd_cnt = 1;
      def.vd_aux = sizeof def;
      def.vd_next = i + 1 < versions.size() ? uint32_t(sizeof(Elf64_Verdef) + sizeof(Elf64_Verdaux)) : 0;
      const Elf64_Verdaux aux = {string(versions[i]), 0};
      out.append(reinterpret_cast<const char*>(&def), sizeof def);
      out.append(reinterpret_cast<const char*>(&aux), sizeof aux);
    }
    return out;
  }

  uint64_t append(const void* data, std::size_t size) {
    bytes_.resize((bytes_.size() + 7) / 8 * 8);
    const uint64_t at = bytes_.size();
    bytes_.append(static_cast<const char*>(data), size);
    return at;
  }

  void finish(const Library& library, uint64_t dynamic_at, uint64_t dynamic_size) {
    Elf64_Ehdr header = {};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_ident[EI_VERSION] = EV_CURRENT;
    header.e_type = ET_DYN;
    header.e_machine = library.machine;
    header.e_version = EV_CURRENT;
    header.e_phoff = sizeof header;
    header.e_ehsize = sizeof header;
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phnum = 3;
    Elf64_Phdr segments[3] = {};
    segments[0].p_type = PT_LOAD;
    segments[0].p_filesz = segments[0].p_memsz = bytes_.size();
    segments[1].p_type = PT_DYNAMIC;
    segments[1].p_offset = segments[1].p_vaddr = dynamic_at;
    segments[1].p_filesz = segments[1].p_memsz = dynamic_size;
    segments[2].p_type = PT_GNU_STACK;
    segments[2].p_flags = PF_R | PF_W;
    std::memcpy(bytes_.data(), &header, sizeof header);
    std::memcpy(bytes_.data() + sizeof header, segments, sizeof segments);
  }

  std::string bytes_, strings_;
};

inline std::string elf(const Library& library) { return ElfWriter().write(library); }

}  // namespace tiny
