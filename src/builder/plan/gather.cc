// SPDX-License-Identifier: Apache-2.0
#include "builder/plan/gather.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "support/bytes.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

// "name 12" on a line of its own.
uint64_t counter_in(const std::string& text, const std::string& name) {
  for (const std::string& line : support::split(text, '\n'))
    if (line.starts_with(name + " ")) return std::strtoull(line.c_str() + name.size() + 1, nullptr, 10);
  return 0;
}

}  // namespace

BuildPlace look_around(const std::string& python) {
  BuildPlace place;
  place.survey = doctor::survey(doctor::outlook_here());
  place.python = python.empty() ? doctor::default_python(place.survey) : doctor::find_python(place.survey, python);
  if (!place.python)
    throw std::runtime_error(python.empty() ? "no Python is here; name one: --python PATH"
                                            : "--python is " + support::printable(python) + ", which is no Python");
  place.program = place.python->program;
  return place;
}

PlanInputs gather(const BuildPlace& place, const doctor::Environment* target) {
  PlanInputs in;
  const doctor::Survey& survey = place.survey;
  in.here = doctor::environment_of(survey, place.python);
  in.here.name = "this machine";
  in.target = target ? *target : in.here;
  for (const doctor::Toolkit& toolkit : survey.toolkits) {
    if (toolkit.nvcc.empty() || !toolkit.version.known()) continue;
    in.toolkits.push_back({toolkit.folder, toolkit.version, toolkit.most_gcc});
    if (toolkit.is_first) in.first_nvcc = toolkit.folder;
  }
  for (const doctor::Compiler& compiler : survey.compilers) {
    if (compiler.kind != "gcc" || !compiler.version.known()) continue;
    std::string cc = compiler.path;
    // "g++-12" has its "gcc-12", "c++" its "cc" beside it.
    const std::size_t name = cc.rfind('/') + 1;
    if (cc.compare(name, 3, "g++") == 0)
      cc.replace(name, 3, "gcc");
    else if (cc.compare(name, 3, "c++") == 0)
      cc.replace(name, 3, "cc");
    std::error_code error;
    if (!std::filesystem::exists(cc, error)) cc = compiler.path;
    const HostCompiler found = {cc, compiler.path, compiler.version};
    in.host_compilers.insert(compiler.is_first ? in.host_compilers.begin() : in.host_compilers.end(), found);
  }
  in.cores = std::max(1, int(survey.host.cores_allowed));
  in.memory_bytes = survey.host.memory_free_bytes();
  const bool limited = survey.host.memory_limit_bytes && *survey.host.memory_limit_bytes < survey.host.memory_bytes;
  in.memory_from = limited ? "what the control group's limit leaves" : "what the machine has left";
  return in;
}

uint64_t memory_kills() {
  uint64_t kills = 0;
  for (const std::string& line : support::split(text_or_nothing("/proc/self/cgroup"), '\n')) {
    const std::vector<std::string> parts = support::split(line, ':');
    if (parts.size() < 3) continue;
    // In a container the path may be that of the host, while the files lie at the top.
    for (const std::string& path : {parts[2], std::string("/")}) {
      if (parts[1].empty())
        kills = std::max(kills, counter_in(text_or_nothing("/sys/fs/cgroup" + path + "/memory.events"), "oom_kill"));
      else if (parts[1] == "memory")
        kills = std::max(
            kills, counter_in(text_or_nothing("/sys/fs/cgroup/memory" + path + "/memory.oom_control"), "oom_kill"));
    }
  }
  return std::max(kills, counter_in(text_or_nothing("/proc/vmstat"), "oom_kill"));
}

}  // namespace builder
