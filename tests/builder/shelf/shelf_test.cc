// SPDX-License-Identifier: Apache-2.0
// The shelf: complete or not there, whoever publishes at the same time and wherever a publisher dies.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "builder/shelf/matrix.h"
#include "builder/shelf/publish.h"
#include "builder/shelf/shelf_files.h"
#include "builder/shelf/shelf_index.h"
#include "builder/shelf/verify.h"
#include "support/bytes.h"
#include "support/package_name.h"
#include "tests/verdict_notes.h"

namespace builder {
namespace {

namespace fs = std::filesystem;

const char* const kWheel = "flash_attn-2.8.3+cu13torch2.11-cp312-cp312-linux_x86_64.whl";

std::vector<doctor::Verdict> nothing_wrong(const std::string&) { return {}; }

class Shelf : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/mica_shelf_XXXXXX";
    root_ = mkdtemp(name);
    shelf_ = root_ + "/shelf";
  }
  void TearDown() override {
    before_step = nullptr;
    fs::remove_all(root_);
  }

  std::string wheel(const std::string& name, const std::string& bytes, const std::string& folder = "in") {
    fs::create_directories(root_ + "/" + folder);
    const std::string path = root_ + "/" + folder + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  PublishRequest request(const std::string& path) {
    PublishRequest out;
    out.wheel = path;
    out.folder = shelf_;
    out.mica_version = "0.1.0";
    MatrixLine line;
    line.package = "flash-attn";
    line.status = "judged";
    out.line = line;
    return out;
  }
  std::string text(const std::string& name) { return support::read_text_file(shelf_ + "/" + name); }
  std::string index() { return text("simple/flash-attn/index.html"); }

  std::string root_, shelf_;
};

TEST_F(Shelf, PublishesWithHashProvenanceAndIndex) {
  const Published out = publish(request(wheel(kWheel, "abc")));
  EXPECT_EQ(out.placed, Placed::kNew);
  // FIPS 180-2, appendix B.1
  EXPECT_EQ(out.sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(text(kWheel), "abc");
  const auto provenance = provenances_of(shelf_, kWheel);
  ASSERT_EQ(provenance.size(), 1u);
  EXPECT_EQ(provenance[0].sha256, out.sha256);
  EXPECT_EQ(provenance[0].size, 3u);
  EXPECT_NE(provenance[0].published_by.find('@'), std::string::npos);
  EXPECT_NE(index().find("href=\"../../flash_attn-2.8.3%2Bcu13torch2.11-cp312-cp312-linux_x86_64.whl#sha256=" +
                         out.sha256 + "\">"),
            std::string::npos)
      << index();
  EXPECT_NE(text("simple/index.html").find("<a href=\"flash-attn/\">flash-attn</a>"), std::string::npos);
  std::vector<std::string> problems;
  const auto lines = read_matrix(shelf_, &problems);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].sha256, out.sha256);
  EXPECT_EQ(lines[0].wheel, kWheel);
  EXPECT_TRUE(problems.empty());
}

TEST_F(Shelf, SameBytesAreFineAndOthersAreRefused) {
  publish(request(wheel(kWheel, "abc")));
  EXPECT_EQ(publish(request(wheel(kWheel, "abc"))).placed, Placed::kSame);
  try {
    publish(request(wheel(kWheel, "abd", "other")));
    FAIL() << "it replaced another file";
  } catch (const WriteError& e) {
    EXPECT_NE(std::string(e.what()).find("another file with the same name"), std::string::npos) << e.what();
  }
  EXPECT_EQ(text(kWheel), "abc");
  EXPECT_EQ(file_names(shelf_, ".tmp"), std::vector<std::string>());
  EXPECT_EQ(provenances_of(shelf_, kWheel).size(), 1u);
}

TEST_F(Shelf, WhatIsNoWheelIsNotTaken) {
  EXPECT_THROW(publish(request(wheel("notes.txt", "abc"))), support::ReadError);
  EXPECT_THROW(publish(request(wheel("flash_attn-2.8.3.whl", "abc"))), support::ReadError);
  EXPECT_THROW(publish(request(root_ + "/in/" + kWheel)), support::ReadError);
  EXPECT_FALSE(fs::exists(shelf_));
}

int steps_left = 0;
void die_at_step(const char*) {
  if (steps_left-- == 0) kill(getpid(), SIGKILL);
}

// How a child ended that ran `work` and was killed before step `n`; true: it came to its end.
template <class Work>
bool survives(int n, Work work) {
  const pid_t child = fork();
  if (child == 0) {
    steps_left = n;
    before_step = die_at_step;
    work();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(Shelf, KilledAtAnyStepItIsCompleteOrNotThere) {
  const std::string bytes(100000, 'x');
  const std::string path = wheel(kWheel, bytes);
  bool done = false;
  int steps = 0;
  for (; !done; ++steps) {
    ASSERT_LT(steps, 200);
    fs::remove_all(shelf_);
    done = survives(steps, [&] { publish(request(path)); });
    const bool there = fs::exists(shelf_ + "/" + kWheel);
    if (there) {
      EXPECT_EQ(text(kWheel), bytes) << "step " << steps;
      EXPECT_EQ(provenances_of(shelf_, kWheel).size(), 1u) << "a wheel without its record, step " << steps;
    }
    // A second start finishes what the first left.
    publish(request(path));
    const ShelfReport report = verify(shelf_, nothing_wrong, false);
    ASSERT_EQ(report.entries.size(), 1u);
    EXPECT_FALSE(report.entries[0].bad());
    for (const auto& verdict : report.verdicts) EXPECT_EQ(verdict.code, "SHARE_LEFTOVER") << "step " << steps;
    EXPECT_NE(index().find(report.entries[0].sha256), std::string::npos);
  }
  EXPECT_GT(steps, 10);  // the hook was really called
}

TEST_F(Shelf, ManyPublishersAtOnce) {
  std::vector<pid_t> children;
  constexpr int kWheels = 6;
  for (int n = 0; n < 2 * kWheels; ++n) {
    // Each wheel twice, with the same bytes.
    const std::string version = std::to_string(n % kWheels);
    const std::string path =
        wheel("flash_attn-" + version + "-cp312-cp312-linux_x86_64.whl", version, std::to_string(n));
    children.push_back(fork());
    if (children.back() == 0) {
      try {
        publish(request(path));
      } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        _exit(1);
      }
      _exit(0);
    }
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  const ShelfReport report = verify(shelf_, nothing_wrong, false);
  EXPECT_EQ(report.entries.size(), std::size_t(kWheels));
  EXPECT_TRUE(report.verdicts.empty());  // the index lists them all, nothing is left over
  for (const ShelfEntry& entry : report.entries) EXPECT_TRUE(entry.verdicts.empty()) << entry.wheel;
}

TEST_F(Shelf, OfTwoDifferentFilesWithOneNameOneWins) {
  std::vector<pid_t> children;
  for (int n = 0; n < 6; ++n) {
    const std::string path = wheel(kWheel, std::string(200000, char('a' + n)), std::to_string(n));
    children.push_back(fork());
    if (children.back() == 0) {
      try {
        publish(request(path));
      } catch (const WriteError&) {
        _exit(7);
      }
      _exit(0);
    }
  }
  int won = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    won += WEXITSTATUS(status) == 0;
    if (WEXITSTATUS(status) != 0) {
      EXPECT_EQ(WEXITSTATUS(status), 7);
    }
  }
  EXPECT_EQ(won, 1);
  const std::string bytes = text(kWheel);
  EXPECT_EQ(bytes, std::string(200000, bytes[0]));
  EXPECT_FALSE(verify(shelf_, nothing_wrong, false).entries[0].bad());
}

TEST_F(Shelf, AWriteThatFailsLeavesNothing) {
  const std::string path = wheel(kWheel, std::string(3 << 20, 'x'));
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      publish(request(path));
    } catch (const WriteError& e) {
      _exit(std::string(e.what()).find("File too large") != std::string::npos ? 7 : 8);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(std::distance(fs::directory_iterator(shelf_), fs::directory_iterator()), 0);
}

TEST_F(Shelf, AWheelWithoutItsIndexIsSaidToBeThere) {
  const std::string path = wheel(kWheel, "abc");
  fs::create_directories(shelf_);
  std::ofstream(shelf_ + "/simple") << "no folder";
  try {
    publish(request(path));
    FAIL() << "an index in a file";
  } catch (const WriteError& e) {
    EXPECT_NE(std::string(e.what()).find(kWheel + std::string(" is there for --find-links")), std::string::npos)
        << e.what();
    EXPECT_NE(std::string(e.what()).find("/simple"), std::string::npos) << e.what();
  }
  EXPECT_EQ(text(kWheel), "abc");
  fs::remove(shelf_ + "/simple");
  EXPECT_EQ(publish(request(path)).placed, Placed::kSame);
  EXPECT_NE(index().find(".whl"), std::string::npos);
}

TEST_F(Shelf, WhateverTheUmaskItIsAsOpenAsItsFolder) {
  fs::create_directories(shelf_);
  chmod(shelf_.c_str(), 02775);
  const mode_t before = umask(077);
  publish(request(wheel(kWheel, "abc")));
  umask(before);
  int files = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(shelf_)) {
    struct stat found = {};
    stat(entry.path().c_str(), &found);
    const mode_t wanted = entry.is_directory() ? 02775 : 0444;
    EXPECT_EQ(found.st_mode & wanted, wanted) << entry.path();
    EXPECT_EQ(found.st_mode & 0002, 0u) << entry.path();
    files += entry.is_regular_file();
  }
  EXPECT_EQ(files, 6);  // the wheel, its record, two pages, a line and all lines
  // One that is for its owner alone stays so.
  chmod(shelf_.c_str(), 0700);
  publish(request(wheel("other-1.0-py3-none-any.whl", "abc")));
  EXPECT_EQ(shelf_permissions(shelf_), 0700u);
}

// A publisher that was killed in a container leaves its temporary file, and the next one there has its process id
// again.
TEST_F(Shelf, WhatAKilledPublisherLeftIsInNobodysWay) {
  fs::create_directories(shelf_);
  std::string taken;
  {
    const PendingFile file(shelf_ + "/" + kWheel);
    taken = file_names(shelf_, ".tmp").at(0);
  }
  const std::size_t end = taken.size() - std::string(".tmp").size(), dot = taken.rfind('.', end - 1);
  const int number = std::stoi(taken.substr(dot + 1, end - dot - 1));
  for (int n = 1; n <= 3; ++n)
    std::ofstream(shelf_ + "/" + taken.substr(0, dot + 1) + std::to_string(number + n) + ".tmp") << "half";
  EXPECT_EQ(publish(request(wheel(kWheel, "abc"))).placed, Placed::kNew);
  EXPECT_EQ(file_names(shelf_, ".tmp").size(), 3u);
}

TEST_F(Shelf, VerifyNamesWhatChanged) {
  publish(request(wheel(kWheel, "abc")));
  publish(request(wheel("other-1.0-py3-none-any.whl", "abc")));
  const ShelfReport good = verify(shelf_, nothing_wrong, false);
  std::ofstream(shelf_ + "/" + kWheel) << "ab";
  std::ofstream(shelf_ + "/stray-1.0-py3-none-any.whl") << "stray";
  const ShelfReport report = verify(shelf_, nothing_wrong, false);
  ASSERT_EQ(report.entries.size(), 3u);
  ASSERT_EQ(report.entries[0].verdicts.size(), 1u);
  EXPECT_EQ(report.entries[0].verdicts[0].code, "SHARE_ALTERED");
  EXPECT_TRUE(report.entries[0].bad());
  EXPECT_TRUE(report.entries[1].verdicts.empty());
  ASSERT_EQ(report.entries[2].verdicts.size(), 1u);
  EXPECT_EQ(report.entries[2].verdicts[0].code, "SHARE_UNRECORDED");
  ASSERT_EQ(report.verdicts.size(), 1u);
  EXPECT_EQ(report.verdicts[0].code, "SHARE_INDEX_STALE");
  EXPECT_EQ(report.verdicts[0].evidence.size(), 2u);  // the altered one has another hash now
  expect_covered("SHARE_ALTERED", report.entries[0].verdicts, good.entries[0].verdicts);
  expect_covered("SHARE_UNRECORDED", report.entries[2].verdicts, good.entries[1].verdicts);
  expect_covered("SHARE_INDEX_STALE", report.verdicts, good.verdicts);
  std::ofstream(shelf_ + "/.half.whl.1.tmp") << "half";
  expect_covered("SHARE_LEFTOVER", verify(shelf_, nothing_wrong, false).verdicts, report.verdicts);
  EXPECT_THROW(verify(shelf_ + "/nowhere", nothing_wrong, false), support::ReadError);
}

TEST_F(Shelf, APretenderIsSetAsideOnlyWhenAsked) {
  const char* name = "flash_attn-2.8.3-py3-none-any.whl";
  publish(request(wheel(name, "empty")));
  const Judge judge = [](const std::string& path) {
    return std::vector<doctor::Verdict>{doctor::make_verdict(
        {.code = "WHEEL_NO_EXTENSION", .subject = path, .message = "imports flash_attn_2_cuda and holds no binary"})};
  };
  EXPECT_TRUE(verify(shelf_, judge, false).entries[0].pretender);
  EXPECT_TRUE(fs::exists(shelf_ + "/" + name));
  const ShelfReport report = verify(shelf_, judge, true);
  EXPECT_EQ(report.entries[0].quarantined, shelf_ + "/quarantine/" + name);
  EXPECT_FALSE(fs::exists(shelf_ + "/" + name));
  EXPECT_EQ(support::read_text_file(report.entries[0].quarantined), "empty");
  EXPECT_EQ(index().find(".whl"), std::string::npos);
  EXPECT_TRUE(report.verdicts.empty());
}

TEST_F(Shelf, RecordsThatMakeNoSenseAreNamed) {
  fs::create_directories(shelf_);
  std::ofstream(shelf_ + "/matrix.jsonl") << R"({"package":"a","status":"judged","time":"1"})"
                                          << "\nnot json\n\n"
                                          << R"({"package":7,"codes":"x"})"
                                          << "\n";
  std::vector<std::string> problems;
  const auto lines = read_matrix(shelf_, &problems);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].package, "a");
  EXPECT_EQ(lines[1].package, "");
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("line 2"), std::string::npos);
}

TEST_F(Shelf, LinesComeBackAsTheyWere) {
  MatrixLine line;
  line.package = "flash-attn";
  line.version = "2.8.3";
  line.torch = "2.11.0";
  line.cuda = "13.0";
  line.python = "3.12";
  line.abi = "new";
  line.machine = "x86_64";
  line.gpu = "NVIDIA \"H200\"";
  line.architectures = {"9.0", "10.0"};
  line.status = "compared";
  line.codes = {"WHEEL_REQUIRES_TORCH_UNPINNED"};
  line.wheel = kWheel;
  line.sha256 = std::string(64, 'a');
  line.host = "node1";
  line.time = "2026-11-15T07:20:00Z";
  line.build_seconds = 1500.5;
  line.peak_bytes = 7e9;
  EXPECT_EQ(matrix_line_from_json(to_json_line(line), "test"), line);
  EXPECT_EQ(to_json_line(line).find('\n'), std::string::npos);
}

TEST_F(Shelf, LinesOfOneSecondAllStay) {
  fs::create_directories(shelf_);
  MatrixLine line;
  line.sha256 = std::string(64, 'a');
  line.host = "node1";
  line.time = "2026-11-15T07:20:00Z";
  for (const char* torch : {"2.10.0", "2.11.0", "2.11.0", "2.12.0"}) {
    line.torch = torch;
    record_line(shelf_, line);
  }
  rebuild_derived(shelf_);
  std::set<std::string> seen;
  for (const MatrixLine& found : read_matrix(shelf_, nullptr)) seen.insert(found.torch);
  EXPECT_EQ(seen, (std::set<std::string>{"2.10.0", "2.11.0", "2.12.0"}));
  EXPECT_EQ(file_names(shelf_ + "/matrix", ".json").size(), 3u) << "the same line again is no new one";
}

TEST(Matrix, AJudgementDoesNotHideAnImportOfTheSameBytes) {
  const auto line = [](const char* status, const char* time, const char* sha256) {
    MatrixLine out;
    out.package = "flash-attn";
    out.status = status;
    out.time = time;
    out.sha256 = sha256;
    return out;
  };
  const auto status = [](std::vector<MatrixLine> lines) { return latest_lines(std::move(lines)).at(0).status; };
  const MatrixLine imported = line("imported", "2026-01-01", "a"), judged = line("judged", "2026-01-03", "a");
  EXPECT_EQ(status({imported, judged}), "imported");
  EXPECT_EQ(status({imported, line("judged", "2026-01-03", "b")}), "judged");
  EXPECT_EQ(status({imported, line("fails", "2026-01-02", "a"), judged}), "judged");
  EXPECT_EQ(status({imported, judged, line("fails", "2026-01-04", "a")}), "fails");
}

TEST(ProjectName, IsNormalised) {
  EXPECT_EQ(normalised_package("Flash__Attn"), "flash-attn");
  EXPECT_EQ(normalised_package("a.-_b"), "a-b");
}

}  // namespace
}  // namespace builder
