// SPDX-License-Identifier: Apache-2.0
#include "builder/run/owner/claim.h"

#include <unistd.h>

#include "builder/shelf/records.h"
#include "support/bytes.h"
#include "support/durable.h"
#include "support/process.h"
#include "support/session.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

constexpr int kMostVanished = 100;

std::string own_line() {
  return host_name() + " " + std::to_string(getpid()) + " " + std::to_string(process_start(getpid())) + "\n";
}

// A process of this machine is asked for by its id; one of another machine by its heartbeat.
bool is_alive(const std::string& line, const std::string& folder) {
  const std::vector<std::string> parts = support::split(support::trimmed(line), ' ');
  if (parts.size() != 3) return false;
  if (parts[0] == host_name())
    return process_start(std::atoi(parts[1].c_str())) == std::strtoull(parts[2].c_str(), nullptr, 10);
  return is_beating(folder);
}

}  // namespace

// The claims of a folder are a chain: claim.1, claim.2, ... The next may only be made while all before it are of dead
// processes. A claim is removed by its own process alone, so a dead one stays, and whoever found it dead long ago can
// only make the one after it, or finds that made: no claim of a live process is ever moved or overwritten.
Claim::Claim(std::string folder) {
  int vanished = 0;
  for (int number = 1; vanished < kMostVanished;) {
    path_ = folder + "/claim." + std::to_string(number);
    std::string line = text_or_nothing(path_);
    if (line.empty()) {
      beat(folder);
      if (write_new_file(path_, own_line()) == Placed::kNew) {
        heartbeat_ = std::make_unique<Heartbeat>(folder);
        return;
      }
      line = text_or_nothing(path_);
    }
    if (line.empty()) {
      ++vanished;  // its process has just let go
    } else if (is_alive(line, folder)) {
      const std::vector<std::string> parts = split(trimmed(line), ' ');
      owner_ = "process " + printable(parts[1]) + " on " + printable(parts[0]);
      return;
    } else {
      ++number;
    }
  }
}

Claim::~Claim() {
  if (!held()) return;
  heartbeat_.reset();  // before somebody else has the folder, and a heartbeat of his own
  unlink(path_.c_str());
}

}  // namespace builder
