// SPDX-License-Identifier: Apache-2.0
// An installation that is killed at every step leaves the environment as it was; one that is not, changes it as a
// whole.
#include "builder/install/install.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "builder/install/choose.h"
#include "builder/install/swap.h"
#include "support/durable.h"
#include "support/files.h"

namespace builder {
namespace {

namespace fs = std::filesystem;

// A virtual environment whose Python is a shell script: pip copies a prepared tree, an import works unless a file says
// that it does not.
struct Place {
  std::string root, site;
  doctor::PythonInstall python;

  Place() {
    std::string name = (fs::temp_directory_path() / "mica-install-XXXXXX").string();
    root = mkdtemp(name.data());
    site = root + "/venv/lib/python3.12/site-packages";
    write("tree/pkg/__init__.py", "new");
    write("tree/pkg/sub/more.py", "new");
    write("tree/pkg-2.0.dist-info/METADATA", "Name: pkg\nVersion: 2.0\n");
    write("tree/pkg-2.0.dist-info/RECORD",
          "pkg/__init__.py,,\npkg/sub/more.py,,\nbin/tool,,\npkg-2.0.dist-info/RECORD,,\n");
    write("tree/bin/tool", "new");
    write("venv/lib/python3.12/site-packages/pkg/__init__.py", "old");
    write("venv/lib/python3.12/site-packages/pkg/gone.py", "old");
    write("venv/lib/python3.12/site-packages/pkg-1.0.dist-info/METADATA", "Name: pkg\nVersion: 1.0\n");
    write("venv/lib/python3.12/site-packages/pkg-1.0.dist-info/RECORD",
          "pkg/__init__.py,,\npkg/gone.py,,\n../../../bin/tool,,\npkg-1.0.dist-info/RECORD,,\n/etc/passwd,,\n"
          "../../../../outside,,\n");
    write("venv/bin/tool", "old");
    write("outside", "theirs");
    write("venv/lib/python3.12/site-packages/other/__init__.py", "other");
    write("pkg-2.0-py3-none-any.whl", "");
    write(
        "venv/bin/python",
        "#!/bin/sh\nroot=" + root +
            "\ncase \"$*\" in\n*pip*) while [ $# -gt 0 ]; do [ \"$1\" = --target ] && cp -r $root/tree \"$2\"; shift; "
            "done ;;\n*) [ -n \"$PYTHONPATH\" ] && exit $(cat $root/beside)\n   exit $(cat $root/after) ;;\nesac\n");
    fs::permissions(root + "/venv/bin/python", fs::perms::owner_all);
    set_imports(0, 0);
    python.program = root + "/venv/bin/python";
    python.prefix = root + "/venv";
    python.facts.site_packages = {site};
    python.packages = {{"pkg", "1.0", site, "pkg-1.0.dist-info"}};
  }
  ~Place() { fs::remove_all(root); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root + "/" + path).parent_path());
    std::ofstream(root + "/" + path) << text;
  }
  void set_imports(int beside, int after) {
    write("beside", std::to_string(beside));
    write("after", std::to_string(after));
  }
  // Every file of the environment and what is in it.
  std::map<std::string, std::string> snapshot() const {
    std::map<std::string, std::string> out;
    for (const auto& entry : fs::recursive_directory_iterator(root + "/venv"))
      if (entry.is_regular_file())
        out[entry.path().string()] = support::Files().read(entry.path().string()).value_or("?");
    out["outside"] = support::Files().read(root + "/outside").value_or("gone");
    return out;
  }
  InstallRequest request() const { return {python, {root + "/pkg-2.0-py3-none-any.whl"}, {}, {}}; }
};

TEST(Install, ReplacesAsAWhole) {
  Place place;
  const InstallOutcome outcome = install_wheels(place.request());
  ASSERT_TRUE(outcome.installed) << outcome.error << outcome.log;
  EXPECT_EQ(outcome.replaced, std::vector<std::string>{"pkg 1.0"});
  EXPECT_EQ(outcome.imported, std::vector<std::string>{"pkg"});
  const auto after = place.snapshot();
  EXPECT_EQ(after.at(place.site + "/pkg/__init__.py"), "new");
  EXPECT_EQ(after.at(place.root + "/venv/bin/tool"), "new");
  EXPECT_EQ(after.at(place.site + "/other/__init__.py"), "other");
  EXPECT_EQ(after.at("outside"), "theirs");  // what a RECORD says of files outside is not followed
  EXPECT_FALSE(after.count(place.site + "/pkg/gone.py"));
  EXPECT_FALSE(after.count(place.site + "/pkg-1.0.dist-info/RECORD"));
  EXPECT_NE(after.at(place.site + "/pkg-2.0.dist-info/RECORD").find("../../../bin/tool,,"), std::string::npos);
  EXPECT_FALSE(fs::exists(swap_folder_of(place.python)));
  EXPECT_FALSE(fs::exists(place.site + "/pkg-1.0.dist-info"));
}

TEST(Install, WhatDoesNotImportIsTakenBack) {
  for (const auto& [beside, after] : {std::pair(1, 0), std::pair(0, 1)}) {
    Place place;
    place.set_imports(beside, after);
    const auto before = place.snapshot();
    const InstallOutcome outcome = install_wheels(place.request());
    EXPECT_FALSE(outcome.installed);
    EXPECT_NE(outcome.error.find("import pkg"), std::string::npos) << outcome.error;
    EXPECT_EQ(place.snapshot(), before);
    EXPECT_FALSE(fs::exists(swap_folder_of(place.python)));
  }
}

// Ends the program at its n-th step, by a signal that nothing can catch; its watcher puts all back.
TEST(Install, KilledAtEveryStep) {
  int steps = 0;
  {
    Place place;
    InstallRequest request = place.request();
    request.step = [&](const std::string&) { ++steps; };
    ASSERT_TRUE(install_wheels(request).installed);
  }
  ASSERT_GT(steps, 8);
  for (int last = 1; last <= steps; ++last) {
    SCOPED_TRACE(last);
    Place place;
    const auto before = place.snapshot();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      InstallRequest request = place.request();
      int at = 0;
      request.step = [&](const std::string&) {
        if (++at == last) kill(getpid(), SIGKILL);
      };
      install_wheels(request);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    for (int i = 0; i < 500 && fs::exists(swap_folder_of(place.python)); ++i) usleep(10'000);  // the watcher is at work
    EXPECT_FALSE(fs::exists(swap_folder_of(place.python)));
    EXPECT_EQ(place.snapshot(), before);
  }
}

// And if the watcher was killed too, or the power went: whoever comes next undoes it, interrupted or not.
TEST(Swap, UndoneByTheNext) {
  constexpr int kMoves = 4;
  for (int made = 0; made <= kMoves; ++made)
    for (int undone = 0; undone <= made; ++undone) {
      SCOPED_TRACE(std::to_string(made) + " made, " + std::to_string(undone) + " undone");
      Place place;
      const auto before = place.snapshot();
      const std::string folder = place.site + "/.mica-swap";
      Swap swap(folder);
      place.write("venv/lib/python3.12/site-packages/.mica-swap/new/a", "new a");
      place.write("venv/lib/python3.12/site-packages/.mica-swap/new/b", "new b");
      const std::vector<Move> moves = {{place.site + "/pkg/__init__.py", folder + "/old/1"},
                                       {place.site + "/pkg/gone.py", folder + "/old/2"},
                                       {folder + "/new/a", place.site + "/pkg/__init__.py"},
                                       {folder + "/new/b", place.site + "/fresh/deep/b.py"}};
      struct Stopped {};
      int count = -1;  // the list is a step too
      try {
        swap.commit(moves, [&](const std::string&) {
          if (++count == made) throw Stopped();
        });
      } catch (const Stopped&) {
      }
      // An undoing that is cut off after some moves, then a whole one.
      for (int i = 0; i < undone; ++i) {
        const Move& one = moves[std::size_t(made - 1 - i)];
        fs::create_directories(fs::path(one.from).parent_path());
        fs::rename(one.to, one.from);
      }
      EXPECT_TRUE(Swap::undo(folder));
      EXPECT_EQ(place.snapshot(), before);
      EXPECT_FALSE(fs::exists(place.site + "/fresh"));
      EXPECT_FALSE(Swap::undo(folder));
    }
}

TEST(Install, OneAtATime) {
  Place place;
  fs::create_directories(swap_folder_of(place.python));
  std::ofstream(swap_folder_of(place.python) + "/owner") << getppid();
  EXPECT_THROW(install_wheels(place.request()), support::WriteError);
  EXPECT_TRUE(fs::exists(swap_folder_of(place.python)));
}

}  // namespace
}  // namespace builder
