// SPDX-License-Identifier: Apache-2.0
// Which GPU runs which code, and which driver loads it: tables and the rules over them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "doctor/read/fatbin.h"
#include "doctor/tables/gpu_arch.h"

namespace doctor {

// Does this entry run on that GPU; for PTX: after the driver has compiled it.
bool runs_on(const FatbinEntry& entry, ComputeCapability gpu);

// The lowest driver branch that loads the entry (580 stands for 580.xx); not known if nothing tells.
Version lowest_driver(const FatbinEntry& entry);
// The toolkit generation an entry shows at the least.
Version lowest_toolkit(const FatbinEntry& entry);

// What one container does on one GPU with one driver.
enum class GpuOutcome { kRuns, kRunsAfterJit, kNoCode, kPtxTooNew, kToolkitTooNew, kZstdOldDriver };
struct ContainerJudgement {
  GpuOutcome outcome = GpuOutcome::kRuns;
  const FatbinEntry* entry = nullptr;  // the one that decides
};
// A driver that is not known loads everything.
ContainerJudgement judge_container(const FatbinContainer& container, ComputeCapability gpu, const Version& driver);

// Of the GPUs known: "8.0, 8.6, 9.0 (PTX)". PTX stands for code that the driver must compile first.
struct ServedGpus {
  std::string all;   // served by every container that has code at all
  std::string some;  // only by some, as "9.0 (12 of 40)": normal where kernels are written for one architecture each
};
ServedGpus served_gpus(std::span<const FatbinContainer> containers);

}  // namespace doctor
