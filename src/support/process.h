// SPDX-License-Identifier: Apache-2.0
// Other programs, started without a shell: a build that runs for hours and whose memory is watched, or a short
// question.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace support {

struct ProcessError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Variables = std::map<std::string, std::string>;
Variables current_environment();

struct Command {
  std::vector<std::string> words;  // the first is looked for on the PATH of `variables`
  Variables variables;             // the whole environment
  std::string folder;              // where it starts; empty: here
  std::string program = {};        // the file that is started, where it is not the first word
};

struct Ended {
  int exit_code = 0;  // 128 + signal if it was killed
  int signal = 0;
  bool stopped = false;  // because stop_requested()
  double seconds = 0;
  uint64_t peak_bytes = 0;  // resident memory of all its processes together, as sampled
  bool ok() const { return exit_code == 0 && !stopped; }
};

struct Sample {
  double seconds = 0;
  uint64_t bytes = 0, peak_bytes = 0;
  std::string_view text;  // what the log gained since the last one
};

// Runs it in a session of its own with all output appended to the file `log`: it does not notice a terminal that
// closes. `every` is called a few times a second; `started` once, with the session's id.
struct Watch {
  std::string log;
  std::function<void(int session)> started;
  std::function<void(const Sample&)> every;
};
Ended run_watched(const Command& command, const Watch& watch);

// Runs it and collects its standard output (at most 64 MiB); errors of the program go to `errors` if that is given.
// Ended after `limit_seconds` at the latest.
Ended run_collected(const Command& command, double limit_seconds, std::string* output, std::string* errors = nullptr);

// Runs it as a part of this program: in its session, with its input, errors and terminal. Collects its standard output;
// without `output` that goes where this program's goes.
Ended run_beside(const Command& command, std::string* output);

// What `work` returns in a copy of this process, as its output; exit code 2 if it throws (the line goes to standard
// error). For a process without threads of its own.
Ended run_forked(const std::function<std::string()>& work, std::string* output);

double monotonic_seconds();

// SIGINT and SIGTERM then only make stop_requested() true; SIGHUP and SIGPIPE are ignored: the terminal may close.
void take_stop_signals();
bool stop_requested();

}  // namespace support
