// SPDX-License-Identifier: Apache-2.0
#include "cli/process.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <stdexcept>

#include "support/machine/machine.h"
#include "support/process.h"

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

support::Command self(const std::vector<std::string>& arguments) {
  support::Command command = {
      .words = {"mica"}, .variables = support::current_environment(), .folder = "", .program = "/proc/self/exe"};
  command.words.insert(command.words.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace

ChildResult run_self(const std::vector<std::string>& arguments) {
  ChildResult result = {};
  result.exit_code = support::run_beside(self(arguments), &result.output).exit_code;
  return result;
}

int show_self(const std::vector<std::string>& arguments) {
  std::fflush(stdout);
  return support::run_beside(self(arguments), nullptr).exit_code;
}

bool stdout_is_terminal() { return isatty(STDOUT_FILENO) == 1; }

void require_writable(const std::string& path) {
  if (!std::ofstream(path, std::ios::app))
    throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
}

}  // namespace cli
