// SPDX-License-Identifier: Apache-2.0
#include "cli/process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <stdexcept>

#include "support/machine/machine.h"

namespace cli {
namespace {

// A line "Name:   123 kB" of a file under /proc, in bytes; negative if there is none.
double proc_field(const char* file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.rfind(name + ":", 0) == 0) return std::stod(line.substr(name.size() + 1)) * 1024;
  return -1;
}

}  // namespace

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double resident_bytes() {
  // NOTE: VmRSS and VmHWM of /proc/self/status are counted in batches per CPU and may be off by megabytes.
  double bytes = proc_field("/proc/self/smaps_rollup", "Rss");
  if (bytes < 0) bytes = proc_field("/proc/self/status", "VmRSS");  // Linux before 4.14
  if (bytes < 0) throw std::runtime_error("neither /proc/self/smaps_rollup nor /proc/self/status tells the memory");
  return bytes;
}

double available_bytes() {
  const uint64_t free = support::read_machine(support::Files()).memory_free_bytes();
  return free ? double(free) : std::numeric_limits<double>::infinity();
}

namespace {

// Forks; the child's standard output, or what it writes to `out`, is collected. body(out) does not return.
ChildResult fork_and_collect(const std::function<void(int out)>& body) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error(std::string("no pipe for a child process: ") + std::strerror(errno));
  std::fflush(nullptr);  // what is buffered is this process's to write
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error(std::string("no child process: ") + std::strerror(errno));
  if (child == 0) {
    close(ends[0]);
    body(ends[1]);
    _exit(127);
  }
  close(ends[1]);
  ChildResult result = {};
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0 || (n < 0 && errno == EINTR);)
    if (n > 0) result.output.append(buffer, std::size_t(n));
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

}  // namespace

ChildResult run_self(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"mica"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return fork_and_collect([&](int out) {
    dup2(out, STDOUT_FILENO);
    close(out);
    execv("/proc/self/exe", argv.data());
  });
}

ChildResult run_in_child(const std::function<std::string()>& work) {
  return fork_and_collect([&](int out) {
    std::string answer;
    try {
      answer = work();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "mica: %s\n", e.what());
      _exit(2);
    }
    for (std::size_t sent = 0; sent < answer.size();) {
      const ssize_t n = write(out, answer.data() + sent, answer.size() - sent);
      if (n < 0 && errno != EINTR) _exit(2);
      if (n > 0) sent += std::size_t(n);
    }
    _exit(0);
  });
}

bool stdout_is_terminal() { return isatty(STDOUT_FILENO) == 1; }

void require_writable(const std::string& path) {
  if (!std::ofstream(path, std::ios::app))
    throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
}

}  // namespace cli
