// SPDX-License-Identifier: Apache-2.0
// Which GPU runs which code, and which driver loads it: tables and the rules over them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "doctor/fatbin.h"

namespace doctor {

struct KnownGpu {
  ComputeCapability capability;
  const char* examples;  // "A100"
};
std::span<const KnownGpu> known_gpus();

// Does this entry run on that GPU; for PTX: after the driver has compiled it.
bool runs_on(const FatbinEntry& entry, ComputeCapability gpu);

// The lowest driver branch that loads the entry (580 stands for 580.xx); not known if nothing tells.
Version lowest_driver(const FatbinEntry& entry);
Version driver_for_cuda(const Version& cuda);    // 12.4 -> 550; not known for a CUDA that is not in the table
Version cuda_for_driver(const Version& driver);  // 550.54 -> 12.4
Version cuda_for_ptx(const Version& isa);        // 8.4 -> 12.4
// The lowest driver that runs programs linked with this CUDA major: 12 -> 525.
Version lowest_driver_of_major(int cuda_major);
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
