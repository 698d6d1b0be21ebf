// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge/judge.h"

#include <algorithm>

#include "doctor/judge/judge_binary.h"
#include "doctor/judge/judge_gpu.h"
#include "doctor/judge/judge_load.h"
#include "doctor/judge/judge_parts.h"
#include "doctor/judge/judge_wheel.h"
#include "doctor/judge/own_check.h"
#include "doctor/system/python_env.h"
#include "support/package_name.h"

namespace doctor {
namespace {

bool has_code(const std::vector<Verdict>& verdicts, std::size_t from, VerdictCode code) {
  return std::any_of(verdicts.begin() + std::ptrdiff_t(from), verdicts.end(),
                     [&](const Verdict& verdict) { return verdict.code == code; });
}

}  // namespace

std::vector<Verdict> judge(const Inspection& inspection) {
  std::vector<Verdict> out = inspection.problems;
  if (inspection.wheel) {
    const Wheel& wheel = *inspection.wheel;
    out.insert(out.end(), wheel.problems.begin(), wheel.problems.end());
    // Of an archive that could not be opened, nothing else is known.
    if (inspection.kind == FileKind::kPackage)
      judge_recorded(wheel, out);
    else if (!wheel.entries.empty() || out.empty())
      judge_wheel(wheel, out);
  }
  for (const Binary& binary : binaries_of(inspection)) judge_binary(binary, facts_of(binary), out);
  return out;
}

void keep_to_the_import(std::vector<Verdict>& verdicts) {
  for (Verdict& verdict : verdicts) {
    const bool is_promise = verdict.code == "WHEEL_TAG_VS_ELF" || verdict.code == "PY_ABI3_VIOLATION" ||
                            verdict.code == "WHEEL_REQUIRES_TORCH" ||
                            (verdict.code == "RECORD_BAD" && verdict.message != "there is no RECORD");
    if (is_promise && verdict.severity == Severity::kError) verdict.severity = Severity::kWarning;
  }
}

std::vector<Verdict> judge(const Inspection& inspection, const Environment& target) {
  std::vector<Verdict> out = judge(inspection);
  const std::size_t before = out.size();
  if (inspection.wheel) judge_wheel(*inspection.wheel, target, out);
  // What pip refuses is never loaded.
  if (has_code(out, before, "WHEEL_TAG_PYTHON") || has_code(out, before, "WHEEL_TAG_PLATFORM")) return out;
  const std::vector<Binary>& binaries = binaries_of(inspection);
  std::vector<BinaryFacts> facts;
  facts.reserve(binaries.size());
  for (const Binary& binary : binaries) facts.push_back(facts_of(binary));
  judge_parts(inspection, facts, target, out);
  if (inspection.wheel && target.torch)
    judge_own_check(normalised_package(inspection.wheel->metadata.first("Name")),
                    inspection.wheel->metadata.first("Version"), binaries, *target.torch, "python -m pip", out);
  for (std::size_t i = 0; i < binaries.size(); ++i) judge_gpu(binaries[i], facts[i], target, out);
  return out;
}

}  // namespace doctor
