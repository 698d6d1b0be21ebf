// SPDX-License-Identifier: Apache-2.0
// Looking around, fetching and planning, before anything is built.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "builder/plan/forecast.h"
#include "builder/plan/gather.h"
#include "builder/plan/plan.h"
#include "builder/run/source.h"

namespace builder {

struct BuildRequest {
  std::string target;                     // package, archive or folder
  std::string python;                     // program or prefix; empty: the active one
  std::vector<std::string> target_files;  // environments that `mica doctor --export` wrote; none: this machine
  std::string architectures = "auto";
  int jobs = 0;           // 0: chosen
  std::string out = ".";  // where the wheel goes
  std::string work;       // where builds live; empty: default_work_folder()
  bool keep = false;      // sources and objects stay after success
  bool allow_downloads = false;
  bool fetches_toolchain = true;  // nvcc and g++ that are not here, into the work folder
  std::string conda_channel;      // a folder that g++ is taken from; empty: the distribution's packages
  std::string mica_version;
};

struct BuildProgress {
  int files_done = 0, files_total = 0, jobs = 0;  // files_total 0: not known yet
  uint64_t bytes = 0, peak_bytes = 0;
  double seconds = 0, seconds_left = -1;  // left: negative while nothing is known
};

struct Listener {
  std::function<void(const std::string& line)> say;
  std::function<void(const BuildProgress&)> progress;
};

struct PreparedBuild {
  BuildRequest request;
  BuildPlace place;
  Source source;
  PlanInputs inputs;
  Plan plan;
  Forecast forecast;
  std::string folder;  // of this build; empty until the source is known

  std::string toolchains() const { return request.work + "/toolchains"; }
  // Wheels of build tools, shared by all builds of a work folder.
  std::string wheels() const { return request.work + "/wheels"; }
};

std::string default_work_folder();  // throws std::runtime_error where there is none

// What prepare() brings besides the plan.
enum class Fetch {
  kNothing,
  kSource,  // for a build here
  // Source, and wheels of what setup.py imports, whatever the plan says: a node that may have no network, and has what
  // is missing here, builds. What cannot be fetched is said, and left to that node.
  kForAnotherNode,
};

// Looks around and plans. Throws std::runtime_error with one line.
PreparedBuild prepare(const BuildRequest& request, Fetch fetch, const Listener& listener);

// The build folder in which a live process works on `target` (any target if empty); empty: none.
std::string find_running(const std::string& work, const std::string& target);

}  // namespace builder
