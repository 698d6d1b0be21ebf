// SPDX-License-Identifier: Apache-2.0
// Processes by their session, from /proc: a compiler that lost its parent still belongs to the build.
#include "support/session.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace support {
namespace {

struct Stat {
  char state = 0;
  int session = 0;
  uint64_t start = 0, resident_pages = 0;
};

// Of /proc/PID/stat. The name in parentheses may hold anything, so fields count from the last ')'.
bool read_stat(int process, Stat* out) {
  char path[64], text[2048];
  std::snprintf(path, sizeof path, "/proc/%d/stat", process);
  FILE* file = std::fopen(path, "r");
  if (!file) return false;
  const std::size_t length = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[length] = 0;
  const std::string fields(text);
  const std::size_t close = fields.rfind(')');
  if (close == fields.npos) return false;
  unsigned long long start = 0;
  long resident = 0;
  // Fields 3 (state), 6 (session), 22 (start) and 24 (resident pages) of proc(5).
  const int found =
      std::sscanf(fields.c_str() + close + 1,
                  " %c %*d %*d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu %*u %ld",
                  &out->state, &out->session, &start, &resident);
  out->start = start;
  out->resident_pages = resident > 0 ? uint64_t(resident) : 0;
  return found == 4;
}

}  // namespace

SessionUse session_use(int session) {
  SessionUse out;
  const uint64_t page = uint64_t(sysconf(_SC_PAGESIZE));
  DIR* folder = opendir("/proc");
  if (!folder) return out;
  while (const dirent* entry = readdir(folder)) {
    char* end = nullptr;
    const long process = std::strtol(entry->d_name, &end, 10);
    Stat stat;
    if (*end || process <= 0 || !read_stat(int(process), &stat) || stat.session != session) continue;
    if (stat.state == 'Z' || stat.state == 'X') continue;
    out.bytes += stat.resident_pages * page;
    out.processes.push_back(int(process));
  }
  closedir(folder);
  return out;
}

void end_session(int session, double patience_seconds) {
  const auto signal_all = [&](int signal) {
    const SessionUse use = session_use(session);
    for (const int process : use.processes) kill(process, signal);
    return use.processes.empty();
  };
  if (signal_all(SIGTERM)) return;
  for (double waited = 0; waited < patience_seconds; waited += 0.05) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (session_use(session).processes.empty()) return;
  }
  // Even that takes its time on a machine with more to do; a process that waits for a dead disk may never go.
  constexpr int kMostRounds = 600;
  for (int round = 0; round < kMostRounds && !signal_all(SIGKILL); ++round)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

uint64_t process_start(int process) {
  Stat stat;
  return process > 0 && read_stat(process, &stat) && stat.state != 'Z' ? stat.start : 0;
}

}  // namespace support
