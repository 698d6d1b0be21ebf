// SPDX-License-Identifier: Apache-2.0
#include "doctor/read/elf/elf.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "doctor/facts/facts.h"
#include "doctor/judge/judge.h"
#include "doctor/read/inspect.h"
#include "tests/doctor/fixtures.h"

namespace {

using doctor::ElfFile;
using fixtures::TempFolder;

// One library with everything a reader must find, and one that it needs.
struct Compiled {
  TempFolder folder;
  std::string user = folder / "user.so", bytes;

  Compiled() {
    fixtures::write_file(folder / "v.map", "V1 { global: old_one; both; local: *; }; V2 { global: new_one; } V1;");
    fixtures::compile(folder / "libv.so.1",
                      "int old_one(void) { return 1; } int both(void) { return 2; } int new_one(void) { return 3; }",
                      "-shared -fPIC -nostdlib -Wl,--version-script=v.map -Wl,-soname,libv.so.1");
    fixtures::compile(user,
                      "int new_one(void); int old_one(void); extern int data; void maybe(void) __attribute__((weak));\n"
                      "int PyInit_user(void) { if (maybe) maybe(); return new_one() + old_one(); }\n"
                      "int* where = &data; static int hidden(void) { return 1; } int (*pointer)(void) = hidden;",
                      "-shared -fPIC -nostdlib libv.so.1 -Wl,-rpath,/nowhere/lib -Wl,--disable-new-dtags -Wl,-z,now "
                      "-Wl,--build-id=0xc0ffee");
    bytes = fixtures::read_file(user);
  }
};

const Compiled& compiled() {
  static const Compiled* files = new Compiled;
  return *files;
}

ElfFile parse(const std::string& bytes) {
  support::MemorySource source(bytes);
  return doctor::read_elf(source);
}

const doctor::ElfSymbol* find(const ElfFile& elf, std::string_view name) {
  for (const auto& symbol : elf.symbols)
    if (symbol.name == name) return &symbol;
  return nullptr;
}

void expect_all_there(const ElfFile& elf) {
  EXPECT_EQ(elf.problems, std::vector<std::string>());
  EXPECT_EQ(elf.needed, std::vector<std::string_view>{"libv.so.1"});
  EXPECT_EQ(elf.rpath, "/nowhere/lib");
  EXPECT_EQ(elf.runpath, "");
  EXPECT_EQ(elf.build_id, "c0ffee");
  EXPECT_TRUE(elf.bind_now);
  ASSERT_EQ(elf.version_needs.size(), 2u);
  const auto* wanted = find(elf, "new_one");
  ASSERT_TRUE(wanted);
  EXPECT_FALSE(wanted->defined);
  EXPECT_EQ(wanted->version, "V2");
  EXPECT_EQ(wanted->version_library, "libv.so.1");
  ASSERT_TRUE(find(elf, "maybe"));
  EXPECT_TRUE(find(elf, "maybe")->weak());
  ASSERT_TRUE(find(elf, "PyInit_user"));
  EXPECT_TRUE(find(elf, "PyInit_user")->defined);
  EXPECT_FALSE(find(elf, "hidden"));
  std::vector<std::string_view> relocated;
  for (const uint32_t index : elf.relocated) relocated.push_back(elf.symbols[index].name);
  for (const char* name : {"data", "new_one", "old_one", "maybe"})
    EXPECT_TRUE(std::find(relocated.begin(), relocated.end(), name) != relocated.end()) << name;
  // Data before calls: .rela.dyn before .rela.plt.
  EXPECT_LT(std::find(relocated.begin(), relocated.end(), "data"),
            std::find(relocated.begin(), relocated.end(), "new_one"));
}

TEST(Elf, ReadsWhatTheLoaderReads) {
  const ElfFile elf = parse(compiled().bytes);
  expect_all_there(elf);
  EXPECT_FALSE(elf.sections.empty());
  const ElfFile library = doctor::read_elf_file(compiled().folder / "libv.so.1");
  EXPECT_EQ(library.soname, "libv.so.1");
  EXPECT_EQ(library.version_definitions, (std::vector<std::string_view>{"V1", "V2"}));
  EXPECT_EQ(find(library, "new_one")->version, "V2");
  EXPECT_EQ(doctor::machine_name(library), fixtures::output_of("uname -m"));
}

// What `-z x86-64-v3` leaves in the header.
TEST(Elf, LevelOfTheProcessor) {
#if defined(__x86_64__)
  TempFolder folder;
  const std::string flags = "-shared -fPIC -nostdlib ";
  fixtures::compile(folder / "plain.so", "void f(void) {}", flags);
  EXPECT_EQ(parse(fixtures::read_file(folder / "plain.so")).cpu_level, 0);
  if (fixtures::output_of("ld --help").find("-z x86-64-") == std::string::npos)
    GTEST_SKIP() << "the linker here knows no levels";
  for (const int level : {2, 3, 4}) {
    fixtures::compile(folder / "level.so", "void f(void) {}", flags + "-Wl,-z,x86-64-v" + std::to_string(level));
    EXPECT_EQ(parse(fixtures::read_file(folder / "level.so")).cpu_level, level);
  }
#else
  GTEST_SKIP() << "levels are of x86-64";
#endif
}

TEST(Elf, NeedsNoSectionHeaders) {
  std::string bytes = compiled().bytes;
  std::memset(bytes.data() + offsetof(Elf64_Ehdr, e_shoff), 0, 8);
  std::memset(bytes.data() + offsetof(Elf64_Ehdr, e_shnum), 0, 4);
  const ElfFile elf = parse(bytes);
  EXPECT_TRUE(elf.sections.empty());
  expect_all_there(elf);
}

// A file that says nothing of its stack gets an executable one on x86_64, and none on aarch64.
TEST(Elf, WhatItSaysOfItsStack) {
  std::string bytes = compiled().bytes;
  const auto is_executable = [&](uint16_t machine) {
    std::memcpy(bytes.data() + offsetof(Elf64_Ehdr, e_machine), &machine, sizeof machine);
    return parse(bytes).executable_stack;
  };
  EXPECT_FALSE(is_executable(EM_X86_64));
  EXPECT_FALSE(is_executable(EM_AARCH64));
  EXPECT_FALSE(parse(bytes).says_nothing_of_stack);
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof header);
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    char* segment = bytes.data() + header.e_phoff + i * sizeof(Elf64_Phdr);
    uint32_t type;
    std::memcpy(&type, segment, sizeof type);
    if (type == PT_GNU_STACK) std::memset(segment, 0, sizeof type);
  }
  EXPECT_TRUE(is_executable(EM_X86_64));
  EXPECT_FALSE(is_executable(EM_AARCH64));
  EXPECT_TRUE(parse(bytes).says_nothing_of_stack);
}

TEST(Elf, CopiesShareTheirStrings) {
  ElfFile copy;
  {
    const ElfFile elf = parse(compiled().bytes);
    copy = elf;
  }
  expect_all_there(copy);
}

TEST(Elf, OtherClassesAndByteOrders) {
  std::string header(64, '\0');
  std::memcpy(header.data(),
              "\x7f"
              "ELF\x01\x02\x01",
              7);
  header[19] = 8;  // EM_MIPS, big-endian
  EXPECT_EQ(doctor::machine_name(parse(header)), "machine 8");
  EXPECT_FALSE(parse(header).is_64);
  EXPECT_FALSE(parse(header).little_endian);
  std::memcpy(header.data(),
              "\x7f"
              "ELF\x02\x02\x01",
              7);
  header[19] = 22;  // EM_S390
  EXPECT_EQ(doctor::machine_name(parse(header)), "s390x");
  EXPECT_THROW(parse("\x7f"
                     "ELF\x03\x01\x01" +
                     std::string(60, '\0')),
               support::ReadError);
  EXPECT_THROW(parse("\x7f"
                     "ELF\x02\x01\x01"),
               support::ReadError);
  EXPECT_THROW(parse("#!/bin/sh\n"), support::ReadError);
  EXPECT_THROW(parse(""), support::ReadError);
}

TEST(Elf, CutOffAnywhereGivesAnAnswer) {
  const std::string& whole = compiled().bytes;
  for (std::size_t size = 64; size < whole.size(); size += 97) {
    const ElfFile elf = parse(whole.substr(0, size));
    EXPECT_TRUE(!elf.problems.empty() || elf.symbols.size() < 100);
  }
  EXPECT_FALSE(parse(whole.substr(0, whole.size() / 3)).problems.empty());
}

TEST(Elf, FloorsNameTheSymbolThatSetsThem) {
  ElfFile elf;
  elf.version_needs = {
      {"libc.so.6", "GLIBC_2.17", false}, {"libc.so.6", "GLIBC_2.32", false}, {"libc.so.6", "GLIBC_PRIVATE", false}};
  elf.symbols.resize(2);
  elf.symbols[0].name = "malloc";
  elf.symbols[0].version = "GLIBC_2.17";
  elf.symbols[1].name = "__libc_single_threaded";
  elf.symbols[1].version = "GLIBC_2.32";
  EXPECT_EQ(doctor::version_floor(elf, "GLIBC_").text("GLIBC_"), "GLIBC_2.32 (__libc_single_threaded)");
  EXPECT_FALSE(doctor::version_floor(elf, "GLIBCXX_").known());
}

// What the project ships keeps its own promises.
TEST(Elf, MicasOwnLibrary) {
  const doctor::Inspection inspection = doctor::inspect(MICA_TEST_LIBRARY);
  ASSERT_EQ(inspection.binaries.size(), 1u);
  for (const doctor::Verdict& verdict : doctor::judge(inspection))
    EXPECT_EQ(verdict.severity, doctor::Severity::kNote) << doctor::verdict_text(verdict, false);
  const doctor::Binary& binary = inspection.binaries[0];
  const doctor::BinaryFacts facts = doctor::facts_of(binary);
  EXPECT_EQ(binary.elf.soname, "libmica.so.0");
  EXPECT_FALSE(facts.uses_torch);
  EXPECT_EQ(facts.python.imports, 0u);
  EXPECT_EQ(facts.cuda_major, 0);
#ifndef MICA_TEST_SANITIZED
  EXPECT_FALSE(facts.glibcxx.known());
  for (const std::string_view needed : binary.elf.needed)
    EXPECT_TRUE(needed.starts_with("libc.so") || needed.starts_with("libm.so") || needed.starts_with("libdl.so") ||
                needed.starts_with("libpthread.so") || needed.starts_with("ld-linux"))
        << needed;
#endif
}

}  // namespace
