// SPDX-License-Identifier: Apache-2.0
// Archives with every fault, and what is read of good ones.
#include "doctor/read/wheel.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "doctor/judge/judge.h"
#include "doctor/read/inspect.h"
#include "doctor/read/record.h"
#include "doctor/read/zip/entry_source.h"
#include "doctor/read/zip/zip.h"
#include "support/stopwatch.h"
#include "tests/doctor/fixtures.h"

namespace {

using fixtures::ZipFile;

std::vector<std::string> problems_of(const std::string& bytes, const doctor::ZipLimits& limits = {}) {
  support::MemorySource source(bytes);
  return doctor::ZipArchive(source, limits).problems();
}

void expect_problem(const std::string& bytes, const std::string& part) {
  const auto problems = problems_of(bytes);
  bool found = false;
  for (const std::string& problem : problems) found = found || problem.find(part) != problem.npos;
  EXPECT_TRUE(found) << part << "; first: " << (problems.empty() ? "none" : problems[0]);
}

std::string contents(const std::string& bytes, std::size_t index, std::string* error) {
  support::MemorySource source(bytes);
  const doctor::ZipArchive archive(source, {});
  doctor::EntrySource entry(archive, archive.entries().at(index));
  std::string out;
  *error = entry.pass([&](std::span<const uint8_t> piece) { out.append(piece.begin(), piece.end()); });
  return out;
}

doctor::Wheel read(const std::string& bytes, const std::string& name = "pkg-1.0-cp311-cp311-linux_x86_64.whl") {
  support::MemorySource source(bytes);
  return doctor::read_wheel(source, name);
}

TEST(Zip, GoodOnes) {
  const std::string text(100'000, 't');
  for (const bool deflate : {false, true})
    for (const bool wide : {false, true})
      for (const uint16_t flags : {0, 8}) {
        ZipFile file{"a/b.txt", text, deflate};
        file.wide = wide;
        file.flags = flags;
        const std::string bytes = fixtures::make_zip({{"first", "1"}, file, {"a/", "", false}}, "a comment");
        EXPECT_EQ(problems_of(bytes), std::vector<std::string>());
        std::string error;
        EXPECT_EQ(contents(bytes, 1, &error), text);
        EXPECT_EQ(error, "");
      }
  EXPECT_EQ(problems_of(fixtures::make_zip({})), std::vector<std::string>());
}

TEST(Zip, FaultsOfTheArchive) {
  EXPECT_THROW(problems_of(""), support::ReadError);
  EXPECT_THROW(problems_of("no archive at all, but long enough to be looked at"), support::ReadError);
  const std::string good = fixtures::make_zip({{"a", "text"}});
  EXPECT_THROW(problems_of(good.substr(0, good.size() / 2)), support::ReadError);
  expect_problem(good + "tail", "4 bytes follow the end");
  expect_problem(fixtures::make_zip({{"a", "text"}}, "", 2), "announces 2 entries and lists 1");
  std::vector<ZipFile> many(30, ZipFile{"x", "x"});
  EXPECT_THROW(problems_of(fixtures::make_zip(many), {20}), support::ReadError);
}

TEST(Zip, FaultsOfEntries) {
  const auto with = [](ZipFile file) { return fixtures::make_zip({{"good", "text"}, std::move(file)}); };
  for (const char* name : {"../evil", "a/../../evil", "/etc/passwd", "a\\b", "C:evil", "a/.."})
    expect_problem(with({name, "x"}), "leads outside");
  EXPECT_EQ(problems_of(with({"a/..b/c..", "x"})), std::vector<std::string>());
  expect_problem(with({"a\nb", "x"}), "control character");
  expect_problem(with({"", "x"}), "without a name");
  expect_problem(with({"good", "x"}), "is there twice");
  ZipFile file{"other", "0123456789"};
  file.mode = 0120777;
  expect_problem(with(file), "symbolic link");
  file = {"other", "0123456789"};
  file.local_name = "another";
  expect_problem(with(file), "another name in its own header");
  file.local_name = "";
  file.flags = 1;
  expect_problem(with(file), "encrypted");
  file.flags = 0;
  file.method = 93;
  expect_problem(with(file), "method 93");
  file.method = -1;
  file.offset = 0;  // the first one's place
  expect_problem(with(file), "another name");
  file.local_name = "";
  file.offset = 5;
  expect_problem(with(file), "not where the directory says");
  file.offset = 1 << 30;
  expect_problem(with(file), "not where the directory says");
}

TEST(Zip, OverlappingEntriesAreNotRead) {
  // Two names for one place, as quine archives have: the second entry lies inside the first.
  const std::string inner = fixtures::make_zip({{"b", "inner", false}});
  const std::size_t directory = inner.find("PK\x01\x02");
  ZipFile first{"a", inner.substr(0, directory), false};
  ZipFile second{"b", "inner", false};
  second.offset = 30 + 1;  // after the local header and name of the first
  const std::string bytes = fixtures::make_zip({first, second});
  expect_problem(bytes, "'a' overlaps");
  std::string error;
  contents(bytes, 0, &error);
  EXPECT_EQ(error, "cannot be read");
}

TEST(Zip, ContentsThatLie) {
  std::string error;
  ZipFile file{"a", std::string(5000, 'z')};
  file.declared_bytes = 100;
  EXPECT_EQ(contents(fixtures::make_zip({file}), 0, &error).size(), 100u);
  EXPECT_EQ(error, "unpacks to more than the 100 bytes it declares");
  file.declared_bytes = 6000;
  contents(fixtures::make_zip({file}), 0, &error);
  EXPECT_EQ(error, "unpacks to 5000 bytes and declares 6000");
  file.declared_bytes = -1;
  file.crc = 1;
  contents(fixtures::make_zip({file}), 0, &error);
  EXPECT_EQ(error, "its checksum is wrong");
  std::string bytes =
      fixtures::make_zip({{"a", "some text that is long enough to be compressed, compressed, compressed"}});
  bytes[36] = char(0xff);
  contents(bytes, 0, &error);
  EXPECT_NE(error, "");
}

TEST(Zip, Bombs) {
  const std::string zeros(std::size_t(80) << 20, '\0');
  const std::string bomb = fixtures::make_zip({{"a", zeros}});
  expect_problem(bomb, "a zip bomb");
  std::string error;
  EXPECT_EQ(contents(bomb, 0, &error), "");
  EXPECT_EQ(problems_of(fixtures::make_zip({{"a", zeros.substr(0, 1 << 20)}})), std::vector<std::string>());
  ZipFile file{"a", "x", false};
  file.declared_bytes = 0xfffffffe;
  EXPECT_FALSE(problems_of(fixtures::make_zip({file}), {10, 1 << 20, 200}).empty());
}

// Random access: pages far apart, backwards, across page borders.
TEST(Zip, EntriesCanBeReadAnywhere) {
  std::string text;
  for (uint32_t i = 0; text.size() < (std::size_t(12) << 20); ++i) text += std::to_string(i * 2654435761u) + ",";
  const std::string bytes = fixtures::make_zip({{"big", text}});
  support::MemorySource source(bytes);
  const doctor::ZipArchive archive(source, {});
  doctor::EntrySource entry(archive, archive.entries()[0]);
  EXPECT_EQ(entry.pass([](std::span<const uint8_t>) {}), "");
  for (const std::size_t offset : {std::size_t(0), text.size() - 100, std::size_t(9) << 20, std::size_t(262'100),
                                   std::size_t(5) << 20, std::size_t(4'194'300)}) {
    std::vector<uint8_t> got(100);
    ASSERT_TRUE(entry.read(offset, got)) << offset;
    EXPECT_EQ(std::string(got.begin(), got.end()), text.substr(offset, 100)) << offset;
  }
  std::vector<uint8_t> beyond(101);
  EXPECT_FALSE(entry.read(text.size() - 100, beyond));
}

TEST(Wheel, AGoodOne) {
  fixtures::WheelParts parts;
  parts.files = {{"pkg/__init__.py", "import pkg_cuda\n"},
                 {"pkg/kernels.cubin", fixtures::make_cubin({})},
                 {"pkg/kernels.fatbin", fixtures::make_gpu_code({"80"})}};
  parts.more_metadata = "Requires-Python: >=3.9\nRequires-Dist: torch\nRequires-Dist: einops; extra == 'x'\n";
  const doctor::Wheel wheel = read(fixtures::make_zip(fixtures::wheel_files(parts)));
  EXPECT_TRUE(wheel.problems.empty());
  EXPECT_EQ(wheel.dist_info, "pkg-1.0.dist-info");
  EXPECT_EQ(wheel.metadata.first("version"), "1.0");
  EXPECT_EQ(wheel.metadata.all("Requires-Dist").size(), 2u);
  EXPECT_EQ(wheel.metadata.first("A body"), "");
  EXPECT_EQ(wheel.imports, std::vector<std::string>{"pkg_cuda"});
  ASSERT_EQ(wheel.binaries.size(), 2u);
  EXPECT_TRUE(wheel.binaries[0].cubin.has_value());
  EXPECT_TRUE(wheel.binaries[1].bare_fatbin);
  for (const doctor::RecordRow& row : wheel.record)
    for (const doctor::WheelEntry& entry : wheel.entries)
      if (entry.path == row.path && !row.hash.empty()) {
        EXPECT_EQ(row.hash, "sha256=" + entry.sha256);
      }
}

TEST(Wheel, CompiledFilesAreReadInPlace) {
  fixtures::TempFolder folder;
  fixtures::compile(folder / "m.so", "int PyInit_m(void) { return 0; }");
  fixtures::WheelParts parts;
  // Large enough to be read in pages, GPU code behind it, as a section would lie.
  parts.files = {{"m.cpython-311-x86_64-linux-gnu.so", fixtures::read_file(folder / "m.so")}};
  const doctor::Wheel wheel = read(fixtures::make_zip(fixtures::wheel_files(parts)));
  ASSERT_EQ(wheel.binaries.size(), 1u);
  const doctor::ElfFile alone = doctor::read_elf_file(folder / "m.so");
  EXPECT_EQ(wheel.binaries[0].elf.symbols.size(), alone.symbols.size());
  EXPECT_EQ(wheel.binaries[0].elf.sections.size(), alone.sections.size());
}

TEST(Wheel, TimeIsLimited) {
  fixtures::TempFolder folder;
  fixtures::WheelParts parts;
  parts.files = {{"pkg/__init__.py", "x = 1\n"}};
  const std::string path =
      fixtures::write_file(folder / parts.file_name(), fixtures::make_zip(fixtures::wheel_files(parts)));
  doctor::ReadLimits limits;
  EXPECT_NO_THROW(doctor::inspect(path, {}, limits));
  limits.seconds = -1;
  EXPECT_THROW(doctor::inspect(path, {}, limits), support::TimeError);
  EXPECT_THROW(doctor::inspect(folder.path(), {}, limits), support::TimeError);
}

TEST(Wheel, BrokenOnesGetAVerdict) {
  fixtures::TempFolder folder;
  const std::string path = fixtures::write_file(folder / "pkg-1.0-py3-none-any.whl", "<html>404</html>");
  const auto verdicts = doctor::judge(doctor::inspect(path));
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].code, "WHEEL_ARCHIVE");
  EXPECT_THROW(doctor::inspect(fixtures::write_file(folder / "readme.txt", "hello, this is text")), support::ReadError);
  EXPECT_THROW(doctor::inspect(folder / "nowhere"), support::ReadError);
  EXPECT_THROW(doctor::inspect("/dev/null"), support::ReadError);
}

// Root may read everything, so a child looks who is nobody.
TEST(Inspect, AFolderThatCannotBeReadIsNotEmpty) {
  const fixtures::TempFolder folder;
  std::filesystem::create_directories(folder.path() + "/open/closed");
  for (const char* name : {"", "/open"}) chmod((folder.path() + name).c_str(), 0755);
  chmod((folder.path() + "/open/closed").c_str(), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(9);
    int code = 0;
    try {
      const auto problems = doctor::inspect(folder.path() + "/open").problems;
      if (problems.size() != 1 || problems[0].code != "CANNOT_TELL") code |= 1;
      doctor::inspect(folder.path() + "/open/closed");
      code |= 2;
    } catch (const support::ReadError&) {
    }
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  chmod((folder.path() + "/open/closed").c_str(), 0700);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 9) GTEST_SKIP() << "this container has no other user";
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: the folder inside is not named; 2: the closed one counts as empty";
}

}  // namespace
