// SPDX-License-Identifier: Apache-2.0
#include "builder/run/owner/heartbeat.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <utility>

namespace builder {
namespace {

constexpr time_t kSilence = 120;  // seconds

std::string file_in(const std::string& folder) { return folder + "/alive"; }

// With no time named it is that of the machine that has the file.
void touch(const std::string& path) {
  const int descriptor = open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (descriptor < 0) return;
  futimens(descriptor, nullptr);
  close(descriptor);
}

std::optional<time_t> touched(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0 ? std::optional(status.st_mtime) : std::nullopt;
}

// What time it is there; this machine's where nothing may be written.
time_t time_in(const std::string& folder) {
  std::string probe = folder + "/.time.XXXXXX";
  const int descriptor = mkstemp(probe.data());
  if (descriptor < 0) return time(nullptr);
  close(descriptor);
  const std::optional<time_t> now = touched(probe);
  unlink(probe.c_str());
  return now.value_or(time(nullptr));
}

}  // namespace

void beat(const std::string& folder) { touch(file_in(folder)); }

Heartbeat::Heartbeat(std::string folder, std::chrono::milliseconds every) : folder_(std::move(folder)) {
  beat(folder_);
  // Signals are for the thread that builds.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this, every] {
    std::unique_lock lock(mutex_);
    while (!ends_.wait_for(lock, every, [this] { return is_over_; })) beat(folder_);
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  ends_.notify_one();
  thread_.join();
  unlink(file_in(folder_).c_str());
}

bool is_beating(const std::string& folder) {
  const std::optional<time_t> last = touched(file_in(folder));
  if (!last) return false;
  // Who follows a build asks twice a second: most often this machine's clock is near enough.
  const time_t here = time(nullptr) - *last;
  if (here >= 0 && here < kSilence / 2) return true;
  const time_t there = time_in(folder) - *last;
  return there > -kSilence && there < kSilence;
}

}  // namespace builder
