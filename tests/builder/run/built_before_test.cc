// SPDX-License-Identifier: Apache-2.0
// A wheel that was built is not compiled again, whatever becomes of later starts that only judge it and hand it out.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "builder/plan/recipe.h"
#include "builder/run/build.h"
#include "builder/run/owner/claim.h"
#include "builder/run/prepare.h"
#include "builder/run/state.h"
#include "support/durable.h"
#include "tests/doctor/fixtures.h"

namespace builder {
namespace {

class BuiltBefore : public testing::Test {
 protected:
  BuiltBefore() {
    fixtures::WheelParts parts;
    parts.name = "small";
    parts.tag = "py3-none-any";
    parts.files = {{"small/__init__.py", "answer = 42\n"}};
    name_ = parts.file_name();
    wheel_ = fixtures::write_file(folder_ / "build/wheel/" + name_, fixtures::make_zip(fixtures::wheel_files(parts)));
    b_.folder = folder_ / "build";
    b_.place.program = "/nowhere/python";  // whatever would compile fails
    b_.request.target_files = {"node.json"};
    b_.request.out = folder_ / "out";
    b_.source.package = "small";
    b_.plan.recipe = &recipe_of("small");
  }

  void was_left_in(const std::string& phase) {
    BuildState state;
    state.phase = phase;
    state.wheel = wheel_;
    write_state(b_.folder, state);
  }
  BuildStatus start() {
    std::string who;
    return build(b_, {[](const std::string&) {}, nullptr}, &who).value().status;
  }
  std::string phase() { return read_state(b_.folder).value().phase; }

  fixtures::TempFolder folder_;
  std::string name_, wheel_;
  PreparedBuild b_;
};

TEST_F(BuiltBefore, IsHandedOutAgain) {
  for (const char* phase : {"done", "preparing", "judging", "interrupted"}) {
    was_left_in(phase);
    EXPECT_EQ(start(), BuildStatus::kBuilt) << phase;
    EXPECT_TRUE(std::filesystem::remove(b_.request.out + "/" + name_)) << phase;
  }
}

TEST_F(BuiltBefore, AndStaysBuiltWhereItCannotBeHandedOut) {
  was_left_in("done");
  b_.request.out = fixtures::write_file(folder_ / "file", "") + "/below";
  EXPECT_THROW(start(), support::WriteError);
  b_.request.out = folder_ / "out";
  EXPECT_EQ(start(), BuildStatus::kBuilt);
  EXPECT_EQ(phase(), "done");
}

TEST_F(BuiltBefore, AndWhereItDoesNotSuitAnotherNode) {
  was_left_in("done");
  const std::string good = fixtures::read_file(wheel_);
  fixtures::write_file(wheel_, "no archive: as bad as a wheel can be for a node");
  EXPECT_EQ(start(), BuildStatus::kFailed);
  EXPECT_EQ(phase(), "done");
  fixtures::write_file(wheel_, good);
  EXPECT_EQ(start(), BuildStatus::kBuilt);
}

// Two starts at the same moment: who comes second waits, though the first has not said anything yet.
TEST_F(BuiltBefore, BySomebodyWhoBeganAtTheSameMoment) {
  auto first = std::make_unique<Claim>(b_.folder);
  ASSERT_TRUE(first->held());
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    was_left_in("done");
    first.reset();
  });
  std::vector<std::string> said;
  const auto ended = build_or_follow(b_, {[&](const std::string& line) { said.push_back(line); }, nullptr});
  ends.join();
  ASSERT_TRUE(std::holds_alternative<BuildOutcome>(ended));
  EXPECT_EQ(std::get<BuildOutcome>(ended).status, BuildStatus::kBuilt);
  ASSERT_FALSE(said.empty());
  EXPECT_EQ(said[0].find("process " + std::to_string(getpid()) + " on "), 0u) << said[0];
}

}  // namespace
}  // namespace builder
