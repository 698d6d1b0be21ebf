// SPDX-License-Identifier: Apache-2.0
// What the dynamic loader reads of an ELF file, and a little more. Everything is bounded: any input gives facts or a
// message, never a crash, a long wait or more memory than the limits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/bytes.h"

namespace doctor {

using namespace support;

struct ElfSymbol {
  std::string_view name;             // points into ElfFile::strings
  std::string_view version;          // "GLIBC_2.32"; empty: none
  std::string_view version_library;  // of an undefined symbol: the library its version is asked of ("libc.so.6")
  uint64_t value = 0;
  uint8_t binding = 0;     // STB_*
  uint8_t type = 0;        // STT_*
  uint8_t visibility = 0;  // STV_*
  bool defined = false;
  bool hidden_version = false;  // name@VERSION rather than name@@VERSION

  bool weak() const { return binding == 2; }
};

struct VersionNeed {
  std::string_view library;  // "libc.so.6"
  std::string_view version;  // "GLIBC_2.32"
  bool weak = false;
};

// Thread-local data (PT_TLS), a copy of which each thread has.
struct ThreadData {
  uint64_t bytes = 0, align = 1;
};

// A relocation that wants such data at a fixed distance from the thread's pointer.
struct ThreadUse {
  static constexpr uint32_t kOwn = 0xffffffff;
  uint32_t symbol = kOwn;       // index into symbols, or the file's own data
  bool can_do_without = false;  // it asks for the distance by a function (TLSDESC), which has another way
};

// How the parts that are loaded (PT_LOAD) lie in the file and in memory.
struct LoadLayout {
  uint64_t alignments = 0;  // the bits of all alignments
  uint64_t distances = 0;   // the bits of all distances from the place in the file to the address
  bool is_skewed = false;   // a distance that its own alignment does not allow
};

struct ElfSection {
  std::string_view name;
  uint32_t type = 0;
  uint64_t flags = 0, offset = 0, size = 0;
};

struct ElfFile {
  std::shared_ptr<const std::string> strings;  // what every view below points into; a copy shares it

  bool is_64 = true, little_endian = true;
  uint8_t osabi = 0, abi_version = 0;
  uint16_t type = 0, machine = 0;  // ET_*, EM_*
  uint32_t version = 0, flags = 0;
  bool has_dynamic = false;
  bool is_program = false;      // position-independent, and meant to be started (DF_1_PIE)
  bool has_segments = true;     // something that would be loaded (PT_LOAD)
  bool refuses_dlopen = false;  // linked to be loaded with a program, not later (DF_1_NOOPEN)
  bool shuns_defaults = false;  // the system's folders do not count for what it needs (DF_1_NODEFLIB)
  std::string_view interpreter, soname, rpath, runpath;
  bool has_empty_runpath = false;          // DT_RUNPATH without a folder, which still stands before any DT_RPATH
  std::vector<std::string_view> needed;    // in order
  std::vector<VersionNeed> version_needs;  // in the order the loader checks them
  std::vector<std::string_view> version_definitions;
  bool has_symbol_versions = true;             // a version beside each symbol (DT_VERSYM), be it only that it has none
  std::vector<ElfSymbol> symbols;              // the dynamic ones, without the null symbol
  std::vector<uint32_t> relocated;             // indices into symbols, in the order the loader first looks them up
  std::optional<uint64_t> packed_relocations;  // DT_RELR: the bytes of that table
  LoadLayout layout;
  ThreadData thread_data;
  std::vector<ThreadUse> thread_uses;  // each once
  bool bind_now = false, text_relocations = false, executable_stack = false;
  bool says_nothing_of_stack = false;  // no PT_GNU_STACK
  int cpu_level = 0;                   // 3: it asks for a processor of x86-64-v3; 0: for none
  std::vector<ElfSection> sections;    // empty if the headers were stripped
  std::string build_id;                // hex
  std::vector<std::string> problems;   // what was cut off, inconsistent or over a limit; the rest still stands
};

// Throws ReadError if it is no ELF file or its headers lead nowhere.
ElfFile read_elf(ByteSource& source);
ElfFile read_elf_file(const std::string& path);

// "x86_64", "aarch64", "i686", "ppc64le", "s390x", "riscv64", "armv7l", "cuda"; else "machine 123".
std::string machine_name(const ElfFile& elf);

}  // namespace doctor
