// SPDX-License-Identifier: Apache-2.0
#include "builder/run/verdict_of_wheel.h"

#include <algorithm>

#include "builder/plan/architectures.h"
#include "builder/run/prepare.h"
#include "doctor/facts/cpython_abi.h"
#include "doctor/judge/judge.h"
#include "doctor/read/inspect.h"
#include "doctor/tables/gpu_arch.h"
#include "support/text.h"

namespace builder {

using namespace support;

namespace {

using doctor::make_verdict;

// "package/_C.cpython-312-x86_64-linux-gnu.so" is imported as "package._C".
std::string import_name(const std::string& path, const std::string& module) {
  std::string folder = support::folder_name(path);
  std::replace(folder.begin(), folder.end(), '/', '.');
  return folder.empty() ? module : folder + "." + module;
}

bool has_code_for(const doctor::Wheel& wheel, const doctor::GpuArch& arch) {
  for (const doctor::Binary& binary : wheel.binaries)
    for (const doctor::FatbinContainer& container : binary.fatbins)
      for (const doctor::FatbinEntry& entry : container.entries)
        if (entry.code == doctor::GpuCode::kCubin && !entry.empty && entry.arch == arch) return true;
  return false;
}

}  // namespace

WheelVerdict judge_built_wheel(const std::string& path, const PreparedBuild& b) {
  WheelVerdict out;
  const doctor::Inspection inspection = doctor::inspect(path);
  out.verdicts = doctor::judge(inspection, b.inputs.target);
  for (const doctor::Environment& other : b.inputs.others)
    for (doctor::Verdict& verdict : doctor::judge(inspection, other)) {
      verdict.subject += " in " + other.name;
      out.verdicts.push_back(std::move(verdict));
    }
  if (!inspection.wheel) return out;
  const std::string name = support::base_name(path);
  for (const doctor::Binary& binary : inspection.wheel->binaries) {
    const doctor::ModuleName module = doctor::parse_module_name(binary.path);
    if (!module.module.empty() && doctor::python_abi_of(binary.elf).is_module(module.module))
      out.modules.push_back(import_name(binary.path, module.module));
  }
  const std::vector<const char*>& wanted = b.plan.recipe->modules;
  for (const char* module : wanted)
    if (std::find(out.modules.begin(), out.modules.end(), module) == out.modules.end())
      out.verdicts.push_back(make_verdict({.code = "WHEEL_NO_EXTENSION",
                                           .subject = name,
                                           .message = std::string("it holds no module ") + module,
                                           .cause = "The build ended well and left out what matters.",
                                           .fix = "look into the log for what setup.py skipped"}));
  if (out.modules.empty() && wanted.empty() && b.inputs.cuda_files > 0)
    out.verdicts.push_back(
        make_verdict({.code = "WHEEL_NO_EXTENSION",
                      .subject = name,
                      .message = "it holds no compiled module",
                      .cause = "The source has " + support::counted(std::size_t(b.inputs.cuda_files), ".cu file") +
                               ", and setup.py left them out.",
                      .fix = "look into the log for what setup.py skipped"}));
  if (!b.plan.cuda || out.modules.empty()) return out;
  for (const Architecture& a : b.plan.architectures)
    if (!has_code_for(*inspection.wheel, a.arch))
      out.verdicts.push_back(make_verdict({.code = "GPU_NO_CODE",
                                           .subject = name,
                                           .message = "it holds no code for " + a.arch.text(),
                                           .cause = "setup.py compiles for architectures of its own choice.",
                                           .fix = "see the nvcc lines in the log"}));
  return out;
}

}  // namespace builder
