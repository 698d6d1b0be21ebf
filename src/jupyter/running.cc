// SPDX-License-Identifier: Apache-2.0
#include "jupyter/running.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "support/process.h"
#include "support/session.h"
#include "support/text.h"

namespace jupyter {

using namespace support;

namespace {

constexpr uint64_t kMostMapBytes = 32 << 20;
constexpr double kGraceSeconds = 5;

bool is_of_a_package(std::string_view path) {
  return path.find("/site-packages/") != path.npos || path.find("/dist-packages/") != path.npos;
}

// "python -m ipykernel_launcher -f FILE", and "ipykernel_launcher.py" by its path; "pip install ipykernel" is none.
bool is_kernel(const std::vector<std::string>& words) {
  for (std::size_t i = 1; i < words.size(); ++i) {
    const bool is_module = words[i - 1] == "-m" && (words[i] == "ipykernel_launcher" || words[i] == "ipykernel");
    if (is_module || words[i].ends_with("/ipykernel_launcher.py")) return true;
  }
  return false;
}

void wait_a_moment() { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

}  // namespace

std::vector<std::string> replaced_files(std::string_view maps) {
  constexpr std::string_view kGone = " (deleted)";
  std::vector<std::string> out;
  for (const std::string& line : split(maps, '\n')) {
    const std::size_t at = line.find('/');
    if (at == line.npos || !line.ends_with(kGone)) continue;
    std::string path = line.substr(at, line.size() - at - kGone.size());
    if (!is_of_a_package(path)) continue;
    if (std::find(out.begin(), out.end(), path) == out.end()) out.push_back(std::move(path));
  }
  return out;
}

std::vector<RunningKernel> running_kernels(const Files& files) {
  std::vector<RunningKernel> out;
  for (const std::string& name : files.list("/proc")) {
    if (name.empty() || name.size() > 9 || name.find_first_not_of("0123456789") != name.npos) continue;
    const std::vector<std::string> words = split(files.read("/proc/" + name + "/cmdline", 1 << 16).value_or(""), '\0');
    if (!is_kernel(words)) continue;
    RunningKernel kernel;
    kernel.process = std::stoi(name);
    kernel.program = words[0];
    for (std::size_t i = 0; i + 1 < words.size(); ++i)
      if (words[i] == "-f") kernel.connection_file = words[i + 1];
    kernel.replaced = replaced_files(files.read("/proc/" + name + "/maps", kMostMapBytes).value_or(""));
    out.push_back(std::move(kernel));
  }
  return out;
}

std::vector<doctor::Verdict> judge_running(const RunningKernel& kernel) {
  if (kernel.replaced.empty()) return {};
  const std::string process = std::to_string(kernel.process);
  std::vector<std::string> evidence;
  for (const std::string& path : kernel.replaced)
    if (evidence.size() < 8) evidence.push_back(printable(path, 300));
  return {doctor::make_verdict(
      {.code = "JUPYTER_KERNEL_OLD",
       .subject = "process " + process,
       .message = "it still holds " + counted(kernel.replaced.size(), "file") + " that a package has no more",
       .cause =
           "A package was replaced while this kernel ran. What it imported before stays in it: the fix is on disk, "
           "and the notebook does not see it.",
       .fix = "mica jupyter running --restart " + process +
              " (its variables are lost), or Kernel > Restart in the notebook",
       .evidence = evidence})};
}

Restarted restart_kernel(const RunningKernel& kernel, double limit_seconds) {
  Restarted out;
  const double begin = monotonic_seconds();
  // Asked of /proc: a signal cannot be sent to another user's process, which is there all the same.
  const uint64_t start = process_start(kernel.process);
  const auto is_there = [&] { return start != 0 && process_start(kernel.process) == start; };
  const Files files;
  const auto successor = [&] {
    for (const RunningKernel& other : running_kernels(files))
      if (other.process != kernel.process && !kernel.connection_file.empty() &&
          other.connection_file == kernel.connection_file)
        return other.process;
    return 0;
  };
  if (kill(kernel.process, SIGTERM) != 0 && is_there()) return out;
  while (is_there() && monotonic_seconds() - begin < kGraceSeconds && successor() == 0) wait_a_moment();
  if (is_there() && successor() == 0) kill(kernel.process, SIGKILL);
  while ((out.process = successor()) == 0 && monotonic_seconds() - begin < limit_seconds) wait_a_moment();
  out.ended = out.process != 0 || !is_there();
  return out;
}

}  // namespace jupyter
