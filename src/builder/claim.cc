// SPDX-License-Identifier: Apache-2.0
#include "builder/claim.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "builder/durable.h"
#include "builder/process.h"
#include "builder/records.h"
#include "builder/state.h"
#include "doctor/bytes.h"
#include "doctor/text.h"

namespace builder {
namespace {

std::string own_line() {
  return host_name() + " " + std::to_string(getpid()) + " " + std::to_string(process_start(getpid())) + "\n";
}

std::string text_or_nothing(const std::string& path) {
  try {
    return doctor::read_text_file(path);
  } catch (const doctor::ReadError&) {
    return "";
  }
}

// A process of this machine is asked for by its id; one of another machine by the state that it keeps writing.
bool is_alive(const std::string& line, const std::string& folder) {
  const std::vector<std::string> parts = doctor::split(doctor::trimmed(line), ' ');
  if (parts.size() != 3) return false;
  if (parts[0] == host_name())
    return process_start(std::atoi(parts[1].c_str())) == std::strtoull(parts[2].c_str(), nullptr, 10);
  const auto state = read_state(folder);
  return state && is_running(*state);
}

}  // namespace

Claim::Claim(std::string folder) : path_(folder + "/claim") {
  for (int round = 0; round < 10 && !held_; ++round) {
    if (write_new_file(path_, own_line()) == Placed::kNew) {
      held_ = true;
      return;
    }
    const std::string line = text_or_nothing(path_);
    if (line.empty()) continue;  // it went away meanwhile
    if (is_alive(line, folder)) return;
    // Of a dead one. Only one of several that see this can move it, and what was moved must be what was read.
    const std::string aside = path_ + "." + host_name() + "." + std::to_string(getpid());
    if (std::rename(path_.c_str(), aside.c_str()) != 0) continue;
    [[maybe_unused]] const int put_back = text_or_nothing(aside) != line ? link(aside.c_str(), path_.c_str()) : 0;
    unlink(aside.c_str());
  }
}

Claim::~Claim() {
  if (held_) unlink(path_.c_str());
}

}  // namespace builder
