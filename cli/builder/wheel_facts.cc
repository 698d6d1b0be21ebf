// SPDX-License-Identifier: Apache-2.0
#include "cli/builder/wheel_facts.h"

#include <set>

#include "builder/plan/architectures.h"
#include "builder/plan/plan.h"
#include "builder/shelf/shelf_files.h"
#include "doctor/facts/facts.h"
#include "doctor/facts/mangled.h"
#include "doctor/judge/attention_wheel.h"
#include "doctor/read/inspect.h"
#include "doctor/read/wheel_name.h"
#include "doctor/tables/gpu_arch.h"
#include "doctor/tables/published_wheels.h"
#include "support/package_name.h"
#include "support/text.h"

namespace cli {
namespace {

// "cp312" -> "3.12", "py3" -> "3", others as they are.
std::string python_version(const std::string& tag) {
  if (tag.starts_with("cp3") && tag.size() > 3) return "3." + tag.substr(3);
  return tag.starts_with("py") ? tag.substr(2) : tag;
}

// "linux_x86_64", "manylinux_2_28_x86_64" -> "x86_64"
std::string machine_of(const std::string& platform) {
  for (const char* machine : {"x86_64", "aarch64", "ppc64le", "i686"})
    if (platform.ends_with(machine)) return machine;
  return platform;
}

}  // namespace

builder::MatrixLine line_of_wheel(const doctor::Inspection& inspection, std::span<const doctor::Verdict> verdicts) {
  builder::MatrixLine line;
  line.status = doctor::exit_code_of(verdicts) ? "fails" : "judged";
  for (const doctor::Verdict& verdict : verdicts)
    if (verdict.severity == doctor::Severity::kError) line.codes.push_back(verdict.code.text());
  if (!inspection.wheel || !inspection.wheel->name) return line;
  const doctor::WheelName& name = *inspection.wheel->name;
  line.package = support::normalised_package(name.distribution);
  line.version = name.version;
  line.python = python_version(name.python);
  line.machine = machine_of(name.platform);
  doctor::AttentionWheel scheme;
  if (doctor::parse_attention_wheel(inspection.wheel->file_name, scheme)) {
    if (scheme.torch.known()) line.torch = scheme.torch.text();
    if (scheme.cuda.known()) line.cuda = scheme.cuda.text();
  }
  std::set<doctor::GpuArch> architectures;
  for (const doctor::Binary& binary : inspection.wheel->binaries) {
    const doctor::BinaryFacts facts = doctor::facts_of(binary);
    if (facts.uses_torch && !facts.torch_stable) line.abi = doctor::cxx_abi_name(facts.cxx_abi.abi);
    if (line.cuda.empty() && facts.cuda_major) line.cuda = std::to_string(facts.cuda_major);
    for (const doctor::FatbinContainer& container : binary.fatbins)
      for (const doctor::FatbinEntry& entry : container.entries)
        if (entry.code == doctor::GpuCode::kCubin && !entry.empty) architectures.insert(entry.arch);
  }
  for (const doctor::GpuArch& arch : architectures) line.architectures.push_back(builder::dotted(arch));
  return line;
}

}  // namespace cli
