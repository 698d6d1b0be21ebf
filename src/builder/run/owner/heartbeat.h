// SPDX-License-Identifier: Apache-2.0
// That somebody works in a folder, for those on other machines, who cannot ask for his process: he touches a file in it
// every few seconds, whatever else he is at (fetching tools and judging a wheel write no state for many minutes).
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace builder {

// One beat: before a folder is claimed, so that nobody finds a claim of which nothing is heard.
void beat(const std::string& folder);

// The owner's, from now on; what says so is gone with it.
class Heartbeat {
 public:
  explicit Heartbeat(std::string folder, std::chrono::milliseconds every = std::chrono::seconds(15));
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  std::string folder_;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool is_over_ = false;
  std::thread thread_;
};

// Whether there was one in the last two minutes, by the clock of the machine that has the files: those of two nodes may
// differ by more.
bool is_beating(const std::string& folder);

}  // namespace builder
