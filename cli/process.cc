// SPDX-License-Identifier: Apache-2.0
#include "cli/process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <stdexcept>

#include "doctor/system/host.h"
#include "doctor/system/outlook.h"

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
  const uint64_t free = doctor::read_host(doctor::outlook_here()).memory_free_bytes();
  return free ? double(free) : std::numeric_limits<double>::infinity();
}

ChildResult run_self(const std::vector<std::string>& arguments) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error(std::string("no pipe for a child process: ") + std::strerror(errno));
  std::vector<std::string> words = {"mica"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error(std::string("no child process: ") + std::strerror(errno));
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    execv("/proc/self/exe", argv.data());
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

bool stdout_is_terminal() { return isatty(STDOUT_FILENO) == 1; }

void require_writable(const std::string& path) {
  if (!std::ofstream(path, std::ios::app))
    throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
}

}  // namespace cli
