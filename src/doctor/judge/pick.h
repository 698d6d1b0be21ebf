// SPDX-License-Identifier: Apache-2.0
// Which wheel fits a target, by the names alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "doctor/facts/environment.h"
#include "doctor/facts/mangled.h"
#include "doctor/judge/attention_wheel.h"
#include "doctor/tables/published_wheels.h"
#include "doctor/verdict/verdict.h"

namespace doctor {

struct PickTarget {
  Version python, torch, cuda, glibc;  // cuda: the one that torch was built with
  bool torch_for_cpu = false;          // torch is known to have no CUDA
  bool torch_unreleased = false;       // a nightly of torch, or NVIDIA's own build on the way to that version
  bool free_threaded = false;
  CxxAbi cxx_abi = CxxAbi::kUnknown;
  std::string machine;
  std::string interpreter = "python";  // for commands
};

// "2.10.0.dev20250910+cu128", "2.9.0a0+1b2c3d.nv25.08": its C++ interface is that of a day, not of the release that its
// number names. A candidate ("2.9.0rc1") has the release's.
bool is_unreleased(std::string_view torch_version);

PickTarget pick_target(const Environment& environment);
// What pip's and pytorch.org's builds of this version have; unknown for 2.6, which has both, unless its name says
// cu126, and for NVIDIA's own builds.
CxxAbi usual_cxx_abi(const std::string& torch_version, const std::string& machine);

// One thing in which a wheel and the target differ.
struct Difference {
  std::string what;         // "torch"
  std::string wheel, here;  // "2.8", "2.9"
  std::string change;       // how the target could be brought to it; empty: it cannot
};

struct Candidate {
  AttentionWheel wheel;
  std::vector<Difference> differences;  // none: it fits
  int distance = 0;
};

struct Pick {
  std::vector<std::string> unknown;   // facts of the target that decide and are not known
  std::vector<Candidate> candidates;  // nearest first
  std::vector<Verdict> verdicts;
  bool fits() const { return !candidates.empty() && candidates[0].differences.empty() && unknown.empty(); }
};

Pick pick(const PickTarget& target, const std::vector<AttentionWheel>& wheels);

}  // namespace doctor
