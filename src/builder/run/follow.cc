// SPDX-License-Identifier: Apache-2.0
// Watching a build that another process runs.
#include "builder/run/follow.h"

#include <chrono>
#include <thread>

#include "support/process.h"

namespace builder {

using namespace support;

BuildState follow(const std::string& folder, const Listener& listener) {
  BuildState last;
  const double begin = seconds_since_1970();
  int done_at_begin = -1;
  while (!stop_requested()) {
    const auto state = read_state(folder);
    if (state) {
      last = *state;
      if (done_at_begin < 0) done_at_begin = last.files_done;
      const int done = last.files_done - done_at_begin;
      const double left = done > 0 ? (seconds_since_1970() - begin) / done * (last.files_total - last.files_done) : -1;
      if (listener.progress)
        listener.progress(
            {last.files_done, last.files_total, last.jobs, last.bytes, last.peak_bytes, last.seconds, left});
      if (!is_running(last, folder)) return last;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  return last;
}

}  // namespace builder
