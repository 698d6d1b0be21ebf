// SPDX-License-Identifier: Apache-2.0
// Where a build stands, in a file of its folder: a second start goes on from there, and another terminal can follow.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace builder {

struct BuildState {
  // "preparing", "building", "judging", "done", "failed", "interrupted"
  std::string phase = "preparing";
  std::string target, package;  // as asked for, and the name it turned out to have
  std::string python;           // for which it is
  std::string owner_host;       // who works on it
  int owner = 0;                // process
  uint64_t owner_start = 0;     // of that process, so that a recycled id is not taken for it
  int session = 0;              // of the compilers
  int attempt = 0, jobs = 0;
  int files_done = 0, files_total = 0;
  uint64_t bytes = 0, peak_bytes = 0;
  double seconds = 0;          // compiling, over all attempts and starts
  double updated = 0;          // seconds since 1970
  std::string wheel, message;  // of "done" and of "failed"

  bool finished() const { return phase == "done" || phase == "failed" || phase == "interrupted"; }
};

// Nothing if there is no state yet, or none that makes sense.
std::optional<BuildState> read_state(const std::string& folder);
void write_state(const std::string& folder, BuildState& state);  // stamps the time

// Whether a live process works on it in that folder: here by its id, elsewhere by its heartbeat.
bool is_running(const BuildState& state, const std::string& folder);

double seconds_since_1970();

}  // namespace builder
