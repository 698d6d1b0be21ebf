// SPDX-License-Identifier: Apache-2.0
// Versions, symbols and relocations.
#include <algorithm>

#include "doctor/read/elf/elf_reader.h"

namespace doctor {

// Records of both version tables are chains of offsets that may lead anywhere: they are followed inside one window
// only.
void ElfReader::read_needed_versions() {
  if (!dynamic_.count(DT_VERNEED)) return;
  const auto raw =
      bytes(table(DT_VERNEED, kWindowBytes, "the table of needed versions"), "the table of needed versions");
  uint64_t at = 0, seen = 0;
  for (uint64_t i = 0; i < std::min(dynamic(DT_VERNEEDNUM), kMaxVersions) && at + sizeof(Elf64_Verneed) <= raw.size();
       ++i) {
    const ElfFields need = fields(raw, at);
    const std::string_view library = name(MICA_ELF_FIELD(need, format_, Verneed, vn_file), "a library");
    uint64_t aux = at + MICA_ELF_FIELD(need, format_, Verneed, vn_aux);
    uint64_t count = MICA_ELF_FIELD(need, format_, Verneed, vn_cnt);
    for (; count > 0 && ++seen < kMaxVersions && aux + sizeof(Elf64_Vernaux) <= raw.size(); --count) {
      const ElfFields v = fields(raw, aux);
      const std::string_view version = name(MICA_ELF_FIELD(v, format_, Vernaux, vna_name), "a version");
      const bool weak = MICA_ELF_FIELD(v, format_, Vernaux, vna_flags) & VER_FLG_WEAK;
      elf_.version_needs.push_back({library, version, weak});
      version_names_[MICA_ELF_FIELD(v, format_, Vernaux, vna_other) & 0x7fff] = {version, library};
      const uint64_t next = MICA_ELF_FIELD(v, format_, Vernaux, vna_next);
      if (next == 0) break;
      aux += next;
    }
    const uint64_t next = MICA_ELF_FIELD(need, format_, Verneed, vn_next);
    if (next == 0) break;
    at += next;
  }
}

void ElfReader::read_defined_versions() {
  if (!dynamic_.count(DT_VERDEF)) return;
  const auto raw =
      bytes(table(DT_VERDEF, kWindowBytes, "the table of defined versions"), "the table of defined versions");
  uint64_t at = 0;
  for (uint64_t i = 0; i < std::min(dynamic(DT_VERDEFNUM), kMaxVersions) && at + sizeof(Elf64_Verdef) <= raw.size();
       ++i) {
    const ElfFields def = fields(raw, at);
    const uint64_t aux = at + MICA_ELF_FIELD(def, format_, Verdef, vd_aux);
    if (aux + sizeof(Elf64_Verdaux) <= raw.size()) {
      const std::string_view version = name(MICA_ELF_FIELD(fields(raw, aux), format_, Verdaux, vda_name), "a version");
      const bool is_file = MICA_ELF_FIELD(def, format_, Verdef, vd_flags) & VER_FLG_BASE;
      if (!is_file) elf_.version_definitions.push_back(version);
      version_names_[MICA_ELF_FIELD(def, format_, Verdef, vd_ndx) & 0x7fff] = {version, {}};
    }
    const uint64_t next = MICA_ELF_FIELD(def, format_, Verdef, vd_next);
    if (next == 0) break;
    at += next;
  }
}

// The loader never counts symbols; the hash tables tell.
uint64_t ElfReader::symbol_count() {
  uint64_t count = 0;
  if (dynamic_.count(DT_HASH)) {
    // s390x and alpha have 64-bit words here; their GNU hash table serves then.
    const auto raw = bytes(table(DT_HASH, 8, "the hash table"), "the hash table");
    if (raw.size() == 8) count = ElfFields(raw, format_).read(4, 4);
  }
  if (dynamic_.count(DT_GNU_HASH)) count = std::max(count, gnu_hash_count());
  for (const ElfSection& section : elf_.sections)
    if (section.type == SHT_DYNSYM) count = std::max(count, section.size / MICA_ELF_SIZE(format_, Sym));
  return count;
}

uint64_t ElfReader::gnu_hash_count() {
  const auto header = bytes(table(DT_GNU_HASH, 16, "the GNU hash table"), "the GNU hash table");
  if (header.size() < 16) return 0;
  const ElfFields h(header, format_);
  const uint64_t buckets = h.read(0, 4), first = h.read(4, 4), bloom = h.read(8, 4);
  const auto begin = offset_of(dynamic(DT_GNU_HASH));
  if (!begin || buckets > kMaxSymbols || bloom > kMaxSymbols || first > kMaxSymbols) return 0;
  const uint64_t buckets_at = *begin + 16 + bloom * (format_.is_64 ? 8 : 4);
  const auto raw = bytes({buckets_at, buckets * 4}, "the GNU hash table");
  uint64_t last = 0;
  for (std::size_t at = 0; at + 4 <= raw.size(); at += 4) last = std::max(last, ElfFields(raw, format_).read(at, 4));
  if (last < first) return first;
  // The last chain ends at the first odd hash.
  for (uint64_t at = buckets_at + (buckets + last - first) * 4; last < kMaxSymbols; at += 4, ++last) {
    uint8_t hash[4] = {};
    if (!source_.read(at, hash)) return last;
    if (ElfFields(hash, format_).read(0, 4) & 1) return last + 1;
  }
  return last;
}

void ElfReader::read_symbols() {
  const std::size_t stride = MICA_ELF_SIZE(format_, Sym);
  uint64_t count = symbol_count();
  if (count > kMaxSymbols) {
    problem("more than 2000000 symbols");
    count = kMaxSymbols;
  }
  const ByteRange range = table(DT_SYMTAB, count * stride, "the table of symbols");
  if (range.size < count * stride) problem("the table of symbols is cut off");
  const auto raw = bytes(range, "the table of symbols");
  elf_.has_symbol_versions = dynamic_.count(DT_VERSYM) > 0;
  const auto versions = elf_.has_symbol_versions
                            ? bytes(table(DT_VERSYM, raw.size() / stride * 2, "symbol versions"), "symbol versions")
                            : std::vector<uint8_t>();
  if (raw.size() >= 2 * stride) elf_.symbols.reserve(raw.size() / stride - 1);
  for (std::size_t i = 1; (i + 1) * stride <= raw.size(); ++i) {
    const ElfFields f = fields(raw, i * stride);
    ElfSymbol symbol;
    symbol.name = name(MICA_ELF_FIELD(f, format_, Sym, st_name), "a symbol");
    symbol.value = MICA_ELF_FIELD(f, format_, Sym, st_value);
    const uint64_t info = MICA_ELF_FIELD(f, format_, Sym, st_info);
    symbol.binding = uint8_t(info >> 4);
    symbol.type = info & 15;
    symbol.visibility = MICA_ELF_FIELD(f, format_, Sym, st_other) & 3;
    symbol.defined = MICA_ELF_FIELD(f, format_, Sym, st_shndx) != SHN_UNDEF;
    if ((i + 1) * 2 <= versions.size()) {
      const uint64_t index = ElfFields(versions, format_).read(i * 2, 2);
      symbol.hidden_version = index & 0x8000;
      const auto found = version_names_.find(index & 0x7fff);
      if ((index & 0x7fff) > VER_NDX_GLOBAL && found != version_names_.end()) {
        symbol.version = found->second.version;
        symbol.version_library = found->second.library;
      }
    }
    elf_.symbols.push_back(symbol);
  }
}

// glibc's order: DT_REL or DT_RELA, then the table for calls.
void ElfReader::read_relocations() {
  std::vector<bool> seen(elf_.symbols.size() + 1);
  thread_uses_seen_.resize(2 * seen.size());
  uint64_t left = kMaxRelocations;
  relocate(DT_REL, dynamic(DT_RELSZ), MICA_ELF_SIZE(format_, Rel), seen, left);
  relocate(DT_RELA, dynamic(DT_RELASZ), MICA_ELF_SIZE(format_, Rela), seen, left);
  relocate(DT_JMPREL, dynamic(DT_PLTRELSZ),
           dynamic(DT_PLTREL) == DT_REL ? MICA_ELF_SIZE(format_, Rel) : MICA_ELF_SIZE(format_, Rela), seen, left);
}

void ElfReader::note_thread_use(uint64_t type, uint64_t symbol) {
  const bool is_x86 = elf_.machine == EM_X86_64, is_arm = elf_.machine == EM_AARCH64;
  const bool is_fixed = (is_x86 && type == R_X86_64_TPOFF64) || (is_arm && type == R_AARCH64_TLS_TPREL);
  const bool by_function = (is_x86 && type == R_X86_64_TLSDESC) || (is_arm && type == R_AARCH64_TLSDESC);
  if (!is_fixed && !by_function) return;
  // Without a symbol, or with one of its own, it is the file's own data.
  const bool is_own = symbol == 0 || symbol > elf_.symbols.size() || elf_.symbols[symbol - 1].binding == STB_LOCAL;
  const std::size_t place = 2 * (is_own ? 0 : symbol) + by_function;
  if (thread_uses_seen_[place]) return;
  thread_uses_seen_[place] = true;
  elf_.thread_uses.push_back({is_own ? ThreadUse::kOwn : uint32_t(symbol - 1), by_function});
}

void ElfReader::relocate(int64_t tag, uint64_t size, std::size_t stride, std::vector<bool>& seen, uint64_t& left) {
  const ByteRange range = table(tag, size, "the table of relocations");
  for (uint64_t at = range.offset; at + stride <= range.end();) {
    const uint64_t most = kWindowBytes / stride * stride;
    const auto raw = bytes({at, std::min(most, (range.end() - at) / stride * stride)}, "the table of relocations");
    if (raw.empty()) return;
    for (std::size_t i = 0; i + stride <= raw.size(); i += stride) {
      if (left-- == 0) {
        left = 0;
        return problem("more than 20000000 relocations");
      }
      // r_info is the second word of Rel and of Rela.
      const uint64_t info =
          format_.is_64 ? ElfFields(raw, format_).read(i + 8, 8) : ElfFields(raw, format_).read(i + 4, 4);
      const uint64_t symbol = format_.is_64 ? info >> 32 : info >> 8;
      note_thread_use(format_.is_64 ? info & 0xffffffff : info & 0xff, symbol);
      if (symbol == 0 || symbol >= seen.size() || seen[symbol]) continue;
      seen[symbol] = true;
      elf_.relocated.push_back(uint32_t(symbol - 1));
    }
    at += raw.size();
  }
}

}  // namespace doctor
