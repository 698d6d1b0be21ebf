// SPDX-License-Identifier: Apache-2.0
#include "support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "support/session.h"
#include "support/text.h"

extern char** environ;

namespace support {
namespace {

volatile std::sig_atomic_t stop_signal = 0;
void note_stop(int signal) { stop_signal = signal; }

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void pause_milliseconds(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

std::string find_program(const std::string& name, const Variables& variables) {
  if (name.find('/') != name.npos) return name;
  const auto path = variables.find("PATH");
  for (const std::string& folder : split(path == variables.end() ? "/usr/bin:/bin" : path->second, ':')) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

// Descriptors become 0, 1 and 2 of the child. What exec itself says comes back through a pipe, so that a program that
// cannot be started is an error here and not an exit code.
pid_t start(const Command& command, int input, int output, int errors) {
  const std::string program = find_program(command.words.at(0), command.variables);
  if (program.empty()) throw ProcessError(command.words[0] + " is not to be found on PATH");
  std::vector<std::string> settings;
  for (const auto& [name, value] : command.variables) settings.push_back(name + "=" + value);
  std::vector<char*> argv, envp;
  for (const std::string& word : command.words) argv.push_back(const_cast<char*>(word.c_str()));
  for (const std::string& setting : settings) envp.push_back(const_cast<char*>(setting.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) throw ProcessError(std::string("no pipe: ") + std::strerror(errno));
  const pid_t child = fork();
  if (child < 0) {
    close(report[0]);
    close(report[1]);
    throw ProcessError("cannot start " + command.words[0] + ": " + std::strerror(errno));
  }
  if (child == 0) {
    setsid();
    // If memory runs out, the kernel shall take a compiler and not the process that watches it.
    if (const int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); score >= 0) {
      [[maybe_unused]] const ssize_t raised = write(score, "500", 3);
      close(score);
    }
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_DFL);
    dup2(input, 0);
    dup2(output, 1);
    dup2(errors, 2);
    if (command.folder.empty() || chdir(command.folder.c_str()) == 0) execve(program.c_str(), argv.data(), envp.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t written = write(report[1], &error, sizeof error);
    _exit(127);
  }
  close(report[1]);
  int error = 0;
  ssize_t got;
  while ((got = read(report[0], &error, sizeof error)) < 0 && errno == EINTR) continue;
  close(report[0]);
  if (got == sizeof error) {
    waitpid(child, nullptr, 0);
    throw ProcessError("cannot start " + program + ": " + std::strerror(error));
  }
  return child;
}

bool reap(pid_t child, Ended* ended) {
  int status = 0;
  const pid_t got = waitpid(child, &status, WNOHANG);
  if (got == 0 || (got < 0 && errno == EINTR)) return false;
  ended->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  ended->exit_code = ended->signal ? 128 + ended->signal : WEXITSTATUS(status);
  return true;
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : value_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (value_ < 0) throw ProcessError("cannot open " + path + ": " + std::strerror(errno));
  }
  ~Descriptor() { close(value_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

std::string read_new(int descriptor) {
  std::string text;
  char buffer[1 << 16];
  for (ssize_t got; (got = read(descriptor, buffer, sizeof buffer)) > 0 && text.size() < (1u << 24);)
    text.append(buffer, std::size_t(got));
  return text;
}

}  // namespace

Variables current_environment() {
  Variables out;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != text.npos) out[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
  }
  return out;
}

void take_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = note_stop;  // no SA_RESTART: sleeps end early
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  signal(SIGHUP, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
}

bool stop_requested() { return stop_signal != 0; }

Ended run_watched(const Command& command, const Watch& watch) {
  const Descriptor nothing("/dev/null", O_RDONLY);
  const Descriptor log(watch.log, O_WRONLY | O_CREAT | O_APPEND);
  const Descriptor tail(watch.log, O_RDONLY);
  lseek(tail.value(), 0, SEEK_END);
  const double begin = now_seconds();
  const pid_t child = start(command, nothing.value(), log.value(), log.value());
  if (watch.started) watch.started(child);
  Ended ended;
  const auto look = [&] {
    const uint64_t bytes = session_use(child).bytes;
    ended.peak_bytes = std::max(ended.peak_bytes, bytes);
    const std::string text = read_new(tail.value());
    if (watch.every) watch.every({now_seconds() - begin, bytes, ended.peak_bytes, text});
  };
  double asked_at = 0;  // when it was told to stop
  while (!reap(child, &ended)) {
    look();
    if (stop_requested() && !ended.stopped) {
      ended.stopped = true;
      asked_at = now_seconds();
      kill(-child, SIGINT);  // as Ctrl-C does: ninja takes back what is half-written
    }
    if (ended.stopped && now_seconds() - asked_at > 20) end_session(child, 2);
    pause_milliseconds(200);
  }
  // Whatever it left behind (a compiler whose parent was killed) would go on writing into the build.
  end_session(child, ended.stopped ? 10 : 2);
  look();
  ended.seconds = now_seconds() - begin;
  return ended;
}

Ended run_collected(const Command& command, double limit_seconds, std::string* output, std::string* errors) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)
    throw ProcessError(std::string("no pipe: ") + std::strerror(errno));
  const Descriptor nothing("/dev/null", O_RDONLY);
  const double begin = now_seconds();
  pid_t child = -1;
  try {
    child = start(command, nothing.value(), out[1], err[1]);
  } catch (...) {
    for (const int descriptor : {out[0], out[1], err[0], err[1]}) close(descriptor);
    throw;
  }
  close(out[1]);
  close(err[1]);
  pollfd ends[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  std::string* texts[2] = {output, errors};
  Ended ended;
  bool over_limit = false;
  for (int open_ends = 2; open_ends > 0;) {
    if (now_seconds() - begin > limit_seconds || stop_requested()) {
      over_limit = true;
      break;
    }
    if (poll(ends, 2, 200) <= 0) continue;
    for (int i = 0; i < 2; ++i) {
      if (!ends[i].revents) continue;
      char buffer[1 << 16];
      const ssize_t got = read(ends[i].fd, buffer, sizeof buffer);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        ends[i].fd = -1;
        --open_ends;
      } else if (texts[i] && texts[i]->size() < (64u << 20)) {
        texts[i]->append(buffer, std::size_t(got));
      }
    }
  }
  if (over_limit) {
    ended.stopped = stop_requested();
    end_session(child, 2);
  }
  while (!reap(child, &ended)) pause_milliseconds(5);
  close(out[0]);
  close(err[0]);
  ended.seconds = now_seconds() - begin;
  return ended;
}

}  // namespace support
