// SPDX-License-Identifier: Apache-2.0
// Programs started without a shell: what they say, how they end, what memory they take, what they leave behind.
#include "support/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "support/bytes.h"
#include "support/session.h"

namespace support {
namespace {

Command python(const std::string& program) { return {{"python3", "-c", program}, current_environment(), ""}; }

class Process : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/mica_process_XXXXXX";
    folder_ = mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(Process, CollectsWhatItSays) {
  Command command{{"sh", "-c", "echo \"$WORD in $PWD\"; echo no >&2; exit 3"}, current_environment(), folder_};
  command.variables["WORD"] = "a b";
  std::string output, errors;
  const Ended ended = run_collected(command, 30, &output, &errors);
  EXPECT_EQ(output, "a b in " + folder_ + "\n");
  EXPECT_EQ(errors, "no\n");
  EXPECT_EQ(ended.exit_code, 3);
}

TEST_F(Process, BesideThisOneItSharesSessionAndGroup) {
  std::string output;
  const Command command = {
      {"another name", "-c", "echo $0; ps -o sid= -p $$ 2>/dev/null || cut -d' ' -f6 /proc/$$/stat; exit 4"},
      current_environment(),
      "",
      "/bin/sh"};
  const Ended ended = run_beside(command, &output);
  EXPECT_EQ(ended.exit_code, 4);
  EXPECT_EQ(output.substr(0, output.find('\n')), "another name");
  EXPECT_EQ(std::stoi(output.substr(output.find('\n'))), getsid(0));
  EXPECT_THROW(run_beside({{"no-such-program"}, current_environment(), ""}, &output), ProcessError);
}

TEST_F(Process, ACopyOfThisOneAnswers) {
  std::string output;
  EXPECT_EQ(run_forked([] { return std::string(300000, 'x'); }, &output).exit_code, 0);
  EXPECT_EQ(output, std::string(300000, 'x'));
  EXPECT_EQ(run_forked([]() -> std::string { throw std::runtime_error("on purpose"); }, &output).exit_code, 2);
  EXPECT_EQ(run_forked(
                []() -> std::string {
                  raise(SIGKILL);
                  return "";
                },
                &output)
                .exit_code,
            128 + SIGKILL);
}

TEST_F(Process, WhatCannotBeStartedIsAnError) {
  EXPECT_THROW(run_collected({{"no-such-program"}, current_environment(), ""}, 5, nullptr), ProcessError);
  EXPECT_THROW(run_collected({{folder_}, current_environment(), ""}, 5, nullptr), ProcessError);
  EXPECT_THROW(run_collected({{"true"}, current_environment(), folder_ + "/nowhere"}, 5, nullptr), ProcessError);
  EXPECT_THROW(run_collected({{"true"}, {{"PATH", folder_}}, ""}, 5, nullptr), ProcessError);
}

TEST_F(Process, LastsNoLongerThanItsLimit) {
  const Ended ended = run_collected({{"sleep", "100"}, current_environment(), ""}, 0.3, nullptr);
  EXPECT_EQ(ended.signal, SIGTERM);  // it did not come to its own end
}

TEST_F(Process, WatchesMemoryOfTheWholeTree) {
  const std::string log = folder_ + "/log";
  // Two processes of 60 MB each, which stay until both were seen.
  const std::string child = "x = b'1' * 60000000; print('child', flush=True); open('both').read()";
  const std::string parent = "import subprocess, sys\n" +
                             std::string("p = subprocess.Popen([sys.executable, '-c', \"") + child +
                             "\"])\nx = b'2' * 60000000\np.wait()\nprint('end')";
  ASSERT_EQ(mkfifo((folder_ + "/both").c_str(), 0600), 0);
  Command command = python(parent);
  command.folder = folder_;
  std::string seen;
  int session = 0;
  bool told = false;
  const Ended ended = run_watched(command, {log, [&](int id) { session = id; },
                                            [&](const Sample& sample) {
                                              seen += sample.text;
                                              if (told || sample.peak_bytes < 120000000) return;
                                              // Without a reader there is nobody to tell yet.
                                              const int pipe = open((folder_ + "/both").c_str(), O_WRONLY | O_NONBLOCK);
                                              told = pipe >= 0;
                                              if (told) close(pipe);
                                            }});
  EXPECT_TRUE(ended.ok());
  EXPECT_TRUE(told);
  EXPECT_GT(ended.peak_bytes, 120000000u);
  EXPECT_LT(ended.peak_bytes, 400000000u);
  EXPECT_EQ(seen, "child\nend\n");
  EXPECT_EQ(support::read_text_file(log), seen);
  EXPECT_GT(session, 0);
  EXPECT_TRUE(session_use(session).processes.empty());
}

TEST_F(Process, LeavesNoOrphans) {
  int session = 0;
  const Ended ended = run_watched({{"sh", "-c", "sleep 100 & exit 4"}, current_environment(), ""},
                                  {folder_ + "/log", [&](int id) { session = id; }, nullptr});
  EXPECT_EQ(ended.exit_code, 4);
  EXPECT_TRUE(session_use(session).processes.empty());
}

TEST_F(Process, AKilledProgramSaysSo) {
  const Ended ended =
      run_watched({{"sh", "-c", "kill -9 $$"}, current_environment(), ""}, {folder_ + "/log", nullptr, nullptr});
  EXPECT_EQ(ended.signal, SIGKILL);
  EXPECT_EQ(ended.exit_code, 137);
  EXPECT_FALSE(ended.stopped);
}

// In a child of its own, since the signals stay taken.
TEST_F(Process, StopsWhenAskedAndOutlivesTheTerminal) {
  const pid_t child = fork();
  if (child == 0) {
    take_stop_signals();
    int session = 0, samples = 0;
    const Ended ended = run_watched({{"sh", "-c", "sleep 100; echo late"}, current_environment(), ""},
                                    {folder_ + "/log", [&](int id) { session = id; },
                                     [&](const Sample&) {
                                       if (++samples == 2) kill(getpid(), SIGHUP);
                                       if (samples == 4) kill(getpid(), SIGINT);
                                     }});
    const bool good = ended.stopped && !ended.ok() && samples >= 4 && session_use(session).processes.empty();
    _exit(good ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(Process, AProcessIsNamedByItsIdAndItsStart) {
  EXPECT_GT(process_start(getpid()), 0u);
  EXPECT_EQ(process_start(getpid()), process_start(getpid()));
  EXPECT_EQ(process_start(0), 0u);
  EXPECT_EQ(process_start(1 << 30), 0u);
}

}  // namespace
}  // namespace support
