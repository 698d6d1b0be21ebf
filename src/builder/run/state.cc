// SPDX-License-Identifier: Apache-2.0
#include "builder/run/state.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "builder/run/owner/heartbeat.h"
#include "builder/shelf/records.h"
#include "support/bytes.h"
#include "support/durable.h"
#include "support/process.h"
#include "support/session.h"

namespace builder {

using namespace support;

namespace {

// One list of the fields for both ways.
template <class State, class Visit>
void each_field(State& s, Visit visit) {
  visit("phase", s.phase);
  visit("target", s.target);
  visit("package", s.package);
  visit("python", s.python);
  visit("owner_host", s.owner_host);
  visit("owner", s.owner);
  visit("owner_start", s.owner_start);
  visit("session", s.session);
  visit("attempt", s.attempt);
  visit("jobs", s.jobs);
  visit("files_done", s.files_done);
  visit("files_total", s.files_total);
  visit("bytes", s.bytes);
  visit("peak_bytes", s.peak_bytes);
  visit("seconds", s.seconds);
  visit("updated", s.updated);
  visit("wheel", s.wheel);
  visit("message", s.message);
}

}  // namespace

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::optional<BuildState> read_state(const std::string& folder) {
  try {
    const auto json = nlohmann::json::parse(support::read_text_file(folder + "/state.json"));
    BuildState state;
    each_field(state, [&](const char* name, auto& field) { json.at(name).get_to(field); });
    return state;
  } catch (const support::ReadError&) {
    return std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

void write_state(const std::string& folder, BuildState& state) {
  state.updated = seconds_since_1970();
  nlohmann::ordered_json json;
  each_field(state, [&](const char* name, const auto& field) { json[name] = field; });
  replace_file(folder + "/state.json",
               json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

bool is_running(const BuildState& state, const std::string& folder) {
  if (state.finished() || state.owner == 0) return false;
  if (state.owner_host == host_name()) return process_start(state.owner) == state.owner_start && state.owner_start != 0;
  return is_beating(folder);
}

}  // namespace builder
