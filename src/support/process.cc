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
#include <cstdio>
#include <cstring>
#include <thread>

#include "support/session.h"
#include "support/text.h"

extern char** environ;

namespace support {
namespace {

// Both ends are closed in programs that are started.
class Pipe {
 public:
  Pipe() {
    if (pipe2(ends_, O_CLOEXEC) != 0) throw ProcessError(std::string("no pipe: ") + std::strerror(errno));
  }
  ~Pipe() {
    close_in();
    close(ends_[0]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int out() const { return ends_[0]; }
  int in() const { return ends_[1]; }
  void close_in() {
    if (ends_[1] >= 0) close(ends_[1]);
    ends_[1] = -1;
  }

 private:
  int ends_[2] = {-1, -1};
};

volatile std::sig_atomic_t stop_signal = 0;
void note_stop(int signal) { stop_signal = signal; }

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

// Forks. body() runs in the child and does not return.
pid_t fork_child(const std::string& name, const std::function<void()>& body) {
  std::fflush(nullptr);  // what is buffered is this process's to write
  const pid_t child = fork();
  if (child < 0) throw ProcessError("cannot start " + name + ": " + std::strerror(errno));
  if (child > 0) return child;
  body();
  _exit(127);
}

// What becomes 0, 1 and 2 of a child.
struct Streams {
  int input = 0, output = 1, errors = 2;
};

// A session of its own, and the first to go if memory runs out: the kernel shall take a compiler and not the process
// that watches it.
void set_apart() {
  setsid();
  if (const int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); score >= 0) {
    [[maybe_unused]] const ssize_t raised = write(score, "500", 3);
    close(score);
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_DFL);
}

// What exec itself says comes back through a pipe, so that a program that cannot be started is an error here and not an
// exit code.
pid_t start(const Command& command, const Streams& streams, bool apart = true) {
  const std::string program =
      find_program(command.program.empty() ? command.words.at(0) : command.program, command.variables);
  if (program.empty()) throw ProcessError(command.words[0] + " is not to be found on PATH");
  std::vector<std::string> settings;
  for (const auto& [name, value] : command.variables) settings.push_back(name + "=" + value);
  std::vector<char*> argv, envp;
  for (const std::string& word : command.words) argv.push_back(const_cast<char*>(word.c_str()));
  for (const std::string& setting : settings) envp.push_back(const_cast<char*>(setting.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  Pipe report;
  const pid_t child = fork_child(command.words[0], [&] {
    if (apart) set_apart();
    dup2(streams.input, 0);
    dup2(streams.output, 1);
    dup2(streams.errors, 2);
    if (command.folder.empty() || chdir(command.folder.c_str()) == 0) execve(program.c_str(), argv.data(), envp.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t written = write(report.in(), &error, sizeof error);
  });
  report.close_in();
  int error = 0;
  ssize_t got;
  while ((got = read(report.out(), &error, sizeof error)) < 0 && errno == EINTR) continue;
  if (got == sizeof error) {
    waitpid(child, nullptr, 0);
    throw ProcessError("cannot start " + program + ": " + std::strerror(error));
  }
  return child;
}

bool reap(pid_t child, int options, Ended* ended) {
  int status = 0;
  const pid_t got = waitpid(child, &status, options);
  if (got == 0 || (got < 0 && errno == EINTR)) return false;
  ended->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  ended->exit_code = ended->signal ? 128 + ended->signal : WEXITSTATUS(status);
  return true;
}

// Reads until the child closes its end, then waits for it.
Ended collect(pid_t child, Pipe& said, std::string* output) {
  said.close_in();
  char buffer[4096];
  for (ssize_t n; (n = read(said.out(), buffer, sizeof buffer)) > 0 || (n < 0 && errno == EINTR);)
    if (n > 0) output->append(buffer, std::size_t(n));
  Ended ended;
  while (!reap(child, 0, &ended)) continue;
  return ended;
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

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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
  const double begin = monotonic_seconds();
  const pid_t child = start(command, {nothing.value(), log.value(), log.value()});
  if (watch.started) watch.started(child);
  Ended ended;
  const auto look = [&] {
    const uint64_t bytes = session_use(child).bytes;
    ended.peak_bytes = std::max(ended.peak_bytes, bytes);
    const std::string text = read_new(tail.value());
    if (watch.every) watch.every({monotonic_seconds() - begin, bytes, ended.peak_bytes, text});
  };
  double asked_at = 0;  // when it was told to stop
  while (!reap(child, WNOHANG, &ended)) {
    look();
    if (stop_requested() && !ended.stopped) {
      ended.stopped = true;
      asked_at = monotonic_seconds();
      kill(-child, SIGINT);  // as Ctrl-C does: ninja takes back what is half-written
    }
    if (ended.stopped && monotonic_seconds() - asked_at > 20) end_session(child, 2);
    pause_milliseconds(200);
  }
  // Whatever it left behind (a compiler whose parent was killed) would go on writing into the build.
  end_session(child, ended.stopped ? 10 : 2);
  look();
  ended.seconds = monotonic_seconds() - begin;
  return ended;
}

Ended run_collected(const Command& command, double limit_seconds, std::string* output, std::string* errors) {
  Pipe out, err;
  const Descriptor nothing("/dev/null", O_RDONLY);
  const double begin = monotonic_seconds();
  const pid_t child = start(command, {nothing.value(), out.in(), err.in()});
  out.close_in();
  err.close_in();
  pollfd ends[2] = {{out.out(), POLLIN, 0}, {err.out(), POLLIN, 0}};
  std::string* texts[2] = {output, errors};
  Ended ended;
  bool over_limit = false;
  for (int open_ends = 2; open_ends > 0;) {
    if (monotonic_seconds() - begin > limit_seconds || stop_requested()) {
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
  while (!reap(child, WNOHANG, &ended)) pause_milliseconds(5);
  ended.seconds = monotonic_seconds() - begin;
  return ended;
}

Ended run_beside(const Command& command, std::string* output) {
  Pipe said;
  const double begin = monotonic_seconds();
  const pid_t child = output ? start(command, {.output = said.in()}, false) : start(command, {}, false);
  std::string nothing;
  Ended ended = collect(child, said, output ? output : &nothing);
  ended.seconds = monotonic_seconds() - begin;
  return ended;
}

Ended run_forked(const std::function<std::string()>& work, std::string* output) {
  Pipe said;
  const pid_t child = fork_child("a process", [&] {
    std::string answer;
    try {
      answer = work();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "mica: %s\n", e.what());
      _exit(2);
    }
    for (std::size_t sent = 0; sent < answer.size();) {
      const ssize_t n = write(said.in(), answer.data() + sent, answer.size() - sent);
      if (n < 0 && errno != EINTR) _exit(2);
      if (n > 0) sent += std::size_t(n);
    }
    _exit(0);
  });
  return collect(child, said, output);
}

}  // namespace support
