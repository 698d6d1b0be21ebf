// SPDX-License-Identifier: Apache-2.0
// Sources by their names and folders; the state of a build; who may work in its folder.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "builder/plan/recipe.h"
#include "builder/run/build_json.h"
#include "builder/run/owner/claim.h"
#include "builder/run/owner/heartbeat.h"
#include "builder/run/prepare.h"
#include "builder/run/project_name.h"
#include "builder/run/source.h"
#include "builder/run/state.h"
#include "builder/run/toolchain/compiler_by_packages.h"
#include "builder/run/workshop.h"
#include "builder/shelf/records.h"
#include "support/durable.h"
#include "support/process.h"
#include "support/session.h"

namespace builder {
namespace {

namespace fs = std::filesystem;

class Folder : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/mica_folder_XXXXXX";
    root_ = mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(root_ + "/" + name).parent_path());
    std::ofstream(root_ + "/" + name) << text;
  }
  std::string root_;
};

TEST_F(Folder, SourcesAreTold) {
  Source source = parse_source("Flash_Attn==2.8.3");
  EXPECT_EQ(source.kind, SourceKind::kPackage);
  EXPECT_EQ(source.requirement, "flash-attn==2.8.3");
  EXPECT_EQ(parse_source("flash-attn").requirement, "flash-attn");
  for (const char* bad : {"flash-attn>=2", "--index-url", "flash attn", "https://x/y", "a.tar.gz", "/nowhere"})
    EXPECT_THROW(parse_source(bad), std::runtime_error) << bad;

  write("thing-1.0-py3-none-any.whl", "bytes");
  write("thing.so", "bytes");
  for (const char* bad : {"/thing-1.0-py3-none-any.whl", "/thing.so"})
    EXPECT_THROW(parse_source(root_ + bad), std::runtime_error) << bad;
  EXPECT_THROW(parse_source("thing-1.0-py3-none-any.whl"), std::runtime_error) << "no package's name either";

  write("causal_conv1d-1.5.0.tar.gz", "bytes");
  source = parse_source(root_ + "/causal_conv1d-1.5.0.tar.gz");
  EXPECT_EQ(source.kind, SourceKind::kArchive);
  EXPECT_EQ(source.package, "causal-conv1d");
  EXPECT_EQ(source.version, "1.5.0");
  EXPECT_EQ(source.sha256.size(), 64u);

  write("project/setup.py", "setup(\n    name=\"My.Thing\",\n    version='1.2')\n");
  source = parse_source(root_ + "/project");
  EXPECT_EQ(source.kind, SourceKind::kFolder);
  EXPECT_EQ(source.package, "my-thing");
  EXPECT_EQ(source.version, "1.2");
  fs::create_directories(root_ + "/empty");
  EXPECT_THROW(parse_source(root_ + "/empty"), std::runtime_error);
}

TEST_F(Folder, AProjectNamesItself) {
  if (!MICA_BUILDER_HAS_TOML) GTEST_SKIP() << "built without toml++";
  // [build-system] comes before and has a name of no meaning; the version is the build's to find out.
  write("one/pyproject.toml",
        "[build-system]\nname = 'other'\n[project]\nname = \"My_Thing\" # here\ndynamic=['version']\n");
  write("one/setup.py", "setup(name='wrong', version='1.2')\n");
  ProjectName project = read_project_name(root_ + "/one");
  EXPECT_EQ(project.package, "my-thing");
  EXPECT_EQ(project.version, "1.2") << "as far as setup.py tells";
  EXPECT_EQ(parse_pyproject("project = {name = 'a', version = '2'}", "").version, "2");
  EXPECT_EQ(parse_pyproject("[tool.poetry]\nname = 'Po.Et'\nversion = '3'", "").package, "po-et");
  EXPECT_EQ(parse_pyproject("[project]\nname = 7", "").package, "");
  EXPECT_EQ(parse_pyproject("text = \"\"\"\nname = 'inside'\n\"\"\"", "").package, "") << "no line of the file";

  write("two/pyproject.toml", "[project]\nname = ]\n");
  write("two/PKG-INFO", "Name: two\nVersion: 4\n");
  try {
    parse_source(root_ + "/two");
    FAIL() << "a file that is no TOML was taken";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("two/pyproject.toml, line 2: "), std::string::npos) << error.what();
  }
}

// A job without the variables of its user's shell still builds where that user does.
TEST(WorkFolder, IsTheUsersOwn) {
  std::map<std::string, std::string> before;
  for (const char* name : {"MICA_BUILD_DIR", "XDG_CACHE_HOME", "HOME"}) {
    if (const char* value = std::getenv(name)) before[name] = value;
    unsetenv(name);
  }
  const passwd* user = getpwuid(geteuid());
  if (user)
    EXPECT_EQ(default_work_folder(), std::string(user->pw_dir) + "/.cache/mica/build");
  else
    EXPECT_THROW(default_work_folder(), std::runtime_error);
  setenv("HOME", "/home/ada", 1);
  EXPECT_EQ(default_work_folder(), "/home/ada/.cache/mica/build");
  setenv("XDG_CACHE_HOME", "/scratch/ada", 1);
  EXPECT_EQ(default_work_folder(), "/scratch/ada/mica/build");
  setenv("MICA_BUILD_DIR", "/scratch/builds", 1);
  EXPECT_EQ(default_work_folder(), "/scratch/builds");
  for (const char* name : {"MICA_BUILD_DIR", "XDG_CACHE_HOME", "HOME"}) unsetenv(name);
  for (const auto& [name, value] : before) setenv(name.c_str(), value.c_str(), 1);
}

TEST_F(Folder, WhatBuildsLeaveDoesNotCount) {
  write("a/setup.py", "x");
  write("a/csrc/one.cu", "1");
  write("a/csrc/cutlass/test/two.cu", "2");
  const std::string before = folder_sha256(root_ + "/a");
  write("a/build/temp/one.o", "object");
  write("a/thing.egg-info/PKG-INFO", "x");
  write("a/thing-1.0-cp312-cp312-linux_x86_64.whl", "of mica build . in that folder");
  write("a/thing-1.0-cp312-cp312-linux_x86_64.whl.build.json", "{}");
  EXPECT_EQ(folder_sha256(root_ + "/a"), before);
  EXPECT_EQ(count_cuda_files(root_ + "/a"), 1);
  copy_source_folder(root_ + "/a", root_ + "/b");
  EXPECT_FALSE(fs::exists(root_ + "/b/build"));
  EXPECT_EQ(folder_sha256(root_ + "/b"), before);
  write("b/vendored/needed-1.0-py3-none-any.whl", "a part of the source");
  EXPECT_NE(folder_sha256(root_ + "/b"), before);
  write("a/csrc/one.cu", "3");
  EXPECT_NE(folder_sha256(root_ + "/a"), before);
}

// Else the builds would be copied into the next one, and every build would be of another source.
TEST_F(Folder, TheWorkFolderIsNoSource) {
  write("a/setup.py", "setup(name='a')");
  write("a/csrc/a.cu", "");
  const std::string work = root_ + "/a/my/work";
  const Source before = parse_source(root_ + "/a", work + "/");
  EXPECT_EQ(before.sha256, folder_sha256(root_ + "/a"));
  write("a/my/work/a-1/source/copy.cu", "");
  const Source source = parse_source(root_ + "/a/csrc/..", root_ + "/a/csrc/../my/work");
  EXPECT_EQ(source.sha256, before.sha256);
  EXPECT_EQ(count_cuda_files(source.path, source.work), 1);
  copy_source_folder(source.path, root_ + "/b", source.work);
  EXPECT_FALSE(fs::exists(root_ + "/b/my"));
  EXPECT_EQ(parse_source(root_ + "/a", root_ + "/aside").work, "");
  EXPECT_EQ(parse_source(root_ + "/a", root_ + "/a-1").work, "") << "a name that only begins alike";
  EXPECT_THROW(parse_source(root_ + "/a", root_ + "/a/"), std::runtime_error);
}

// apt without lists of packages: a trial says that they would be fetched, and fetches none.
TEST_F(Folder, ATrialFetchesNoLists) {
  write("bin/apt-cache", "#!/bin/sh\n");
  write("bin/apt-get", "#!/bin/sh\ncase \"$*\" in *update*) touch " + root_ + "/updated;; *) echo apt;; esac\n");
  for (const char* name : {"/bin/apt-cache", "/bin/apt-get"}) fs::permissions(root_ + name, fs::perms::owner_all);
  const std::string path = std::getenv("PATH");
  setenv("PATH", (root_ + "/bin:" + path).c_str(), 1);
  const CompilerWish wish = {12, root_ + "/toolchains", ""};
  const auto named = compiler_of_packages(wish, false);
  const bool is_changed = fs::exists(wish.folder) || fs::exists(root_ + "/updated");
  const auto asked = compiler_of_packages(wish, true);
  setenv("PATH", path.c_str(), 1);
  EXPECT_FALSE(is_changed);
  ASSERT_TRUE(named);
  EXPECT_NE(named->fetched_by.find("apt-get update into " + wish.folder), std::string::npos) << named->fetched_by;
  EXPECT_FALSE(asked) << "the lists have none";
  EXPECT_TRUE(fs::exists(root_ + "/updated"));
}

// The source is unpacked before it is known who builds: one start is still at it when another begins.
TEST_F(Folder, TwoStartsAtOnceUnpackOneSource) {
  if (std::system("python3 -c 'import tarfile' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 is here";
  for (int n = 0; n < 3; ++n) write("thing-1.0/part" + std::to_string(n) + ".cu", "x");
  write("thing-1.0/inner/setup.py", "x");
  ASSERT_EQ(std::system(("tar -C " + root_ + " -czf " + root_ + "/thing-1.0.tar.gz thing-1.0").c_str()), 0);
  // The first Python has unpacked and answers when the second has begun; that one goes on when the first was believed.
  write("python",
        "#!/bin/sh\ncd " + root_ +
            "\nwait_for() { for i in $(seq 200); do [ -e $1 ] && break; sleep 0.05; done; }\n"
            "if mkdir first 2>/dev/null; then python3 \"$@\" >said; touch unpacked; wait_for second; cat said\n"
            "else touch second; wait_for believed; exec python3 \"$@\"; fi\n");
  fs::permissions(root_ + "/python", fs::perms::owner_all);
  const Source source = parse_source(root_ + "/thing-1.0.tar.gz");
  Plan plan;
  plan.recipe = &recipe_of("thing");
  const Workshop shop{root_ + "/build", root_ + "/python", ""};
  const auto unpack = [&] {
    shop.open();
    shop.bring_source(source, plan);
    return count_cuda_files(shop.path("source")) == 3 && fs::exists(shop.source_root() + "/setup.py");
  };
  const pid_t first = fork();
  if (first == 0) {
    const bool is_whole = unpack();
    write("believed", "");
    _exit(is_whole ? 0 : 1);
  }
  for (int tenths = 0; tenths < 100 && !fs::exists(root_ + "/unpacked"); ++tenths) usleep(100'000);
  EXPECT_TRUE(unpack());
  int status = 0;
  waitpid(first, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  // What a start left that was killed between the folder and its mark.
  fs::remove(shop.path("source.root"));
  EXPECT_TRUE(unpack());
}

TEST_F(Folder, AStateComesBack) {
  EXPECT_FALSE(read_state(root_));
  BuildState state;
  state.phase = "building";
  state.owner_host = host_name();
  state.owner = getpid();
  state.owner_start = process_start(getpid());
  state.files_done = 3;
  state.files_total = 72;
  state.peak_bytes = 7'000'000'000;
  write_state(root_, state);
  const auto read = read_state(root_);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->files_total, 72);
  EXPECT_EQ(read->peak_bytes, 7'000'000'000u);
  EXPECT_TRUE(is_running(*read, root_));
  state.owner_start += 1;  // the id was given to another process since
  EXPECT_FALSE(is_running(state, root_));
  state.owner_host = "another-node";
  EXPECT_FALSE(is_running(state, root_)) << "nobody says that he lives";
  const Heartbeat heartbeat(root_);
  state.updated -= 1000;
  EXPECT_TRUE(is_running(state, root_)) << "he judges, and writes no state for long";
  state.phase = "done";
  EXPECT_FALSE(is_running(state, root_));
  std::ofstream(root_ + "/state.json") << "{\"phase\": 7}";
  EXPECT_FALSE(read_state(root_));
}

TEST(Record, WhatWasFoundOutBeforeStaysKnown) {
  const std::string before =
      R"({"sha256": "a", "attempts": 2, "imported": ["m"], "compared_with_mica": true, "largest_difference": 0.5,
          "verdicts": [], "matrix": {"status": "compared"}})";
  const std::string after =
      R"({"sha256": "a", "attempts": 0, "imported": [], "compared_with_mica": null, "largest_difference": null,
          "verdicts": ["v"], "matrix": {"status": "judged"}})";
  const std::string both = judged_again(before, after);
  for (const char* part : {R"("attempts": 2)", R"("m")", R"("compared_with_mica": true)",
                           R"("largest_difference": 0.5)", R"("v")", R"("status": "compared")"})
    EXPECT_NE(both.find(part), std::string::npos) << part << " in " << both;
  const std::string other = judged_again(R"({"sha256": "b", "attempts": 2})", after);
  EXPECT_EQ(other, after) << "other bytes";
  EXPECT_EQ(judged_again("nonsense", after), after);
}

TEST_F(Folder, OneAtATimeWorksInIt) {
  {
    const Claim first(root_), second(root_);
    EXPECT_TRUE(first.held());
    EXPECT_FALSE(second.held());
  }
  EXPECT_TRUE(Claim(root_).held());
  // The claim of a process that died is taken over.
  const pid_t child = fork();
  if (child == 0) {
    const Claim claim(root_);
    _exit(claim.held() ? 0 : 1);  // without the destructor
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(fs::exists(root_ + "/claim.1"));
  EXPECT_TRUE(Claim(root_).held());
}

// When the heartbeat's file was last touched, by so many seconds before now.
void set_silence(const std::string& folder, time_t seconds) {
  const struct timespec then = {time(nullptr) - seconds, 0}, both[2] = {then, then};
  ASSERT_EQ(utimensat(AT_FDCWD, (folder + "/alive").c_str(), both, 0), 0);
}

TEST_F(Folder, AnotherMachineHasItForAsLongAsItSaysSo) {
  std::ofstream(root_ + "/claim.1") << "another-node 12 34\n";
  std::ofstream(root_ + "/alive");
  EXPECT_FALSE(Claim(root_).held());
  set_silence(root_, 100);
  EXPECT_FALSE(Claim(root_).held()) << "files of a network are seen late";
  set_silence(root_, -1000);
  EXPECT_FALSE(is_beating(root_)) << "a time to come says nothing";
  set_silence(root_, 1000);
  EXPECT_TRUE(Claim(root_).held());
  EXPECT_FALSE(is_beating(root_)) << "who had it after the dead one has let go";
  EXPECT_TRUE(Claim(root_).held());
  for (const auto& entry : fs::directory_iterator(root_)) EXPECT_EQ(entry.path().filename(), "claim.1");
}

TEST_F(Folder, WhoHasItSaysSoAgainAndAgain) {
  const Heartbeat heartbeat(root_, std::chrono::milliseconds(5));
  set_silence(root_, 1000);
  for (int tenths = 0; !is_beating(root_) && tenths < 300; ++tenths) usleep(100000);
  EXPECT_TRUE(is_beating(root_));
}

// What became of children that wanted the folder at the same moment.
struct Crowd {
  int held = 0, overlaps = 0, broken = 0;
};

// The exit code of a child: 0 it had the folder, 1 another has it, 2 another was inside at the same time, 3 an error.
int want_folder(const std::string& root) try {
  const std::string inside = root + "/inside";
  const Claim claim(root);
  if (!claim.held()) return 1;
  const int descriptor = open(inside.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
  if (descriptor < 0) return 2;
  usleep(2000);
  unlink(inside.c_str());
  _exit(0);  // without the destructor: its claim is a dead one now
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 3;
}

Crowd crowd(const std::string& root, int children) {
  std::vector<pid_t> started;
  for (int n = 0; n < children; ++n) {
    started.push_back(fork());
    if (started.back() == 0) _exit(want_folder(root));
  }
  Crowd out;
  for (const pid_t child : started) {
    int status = 0;
    waitpid(child, &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    out.held += code == 0;
    out.overlaps += code == 2;
    out.broken += code != 0 && code != 1 && code != 2;
  }
  return out;
}

TEST_F(Folder, OfManyThatFindADeadClaimOneAtATimeHasIt) {
  std::ofstream(root_ + "/claim.1") << host_name() << " 999999999 1\n";
  for (int round = 0; round < 25; ++round) {
    const Crowd result = crowd(root_, 8);
    EXPECT_GE(result.held, 1);
    EXPECT_EQ(result.overlaps, 0);
    EXPECT_EQ(result.broken, 0);
  }
}

}  // namespace
}  // namespace builder
