// SPDX-License-Identifier: Apache-2.0
#include "doctor/facts/gpu_rules.h"

#include <algorithm>

#include "doctor/tables/cuda_releases.h"
#include "doctor/tables/gpu_arch.h"
#include "doctor/tables/gpus.h"

namespace doctor {
namespace {

constexpr int kZstdDriver = 550;  // for what CUDA 12 packed; CUDA 13 needs a later one anyway

// Compute capabilities that share "f" code.
int family_of(ComputeCapability c) {
  if (c.major == 10) return c.minor == 1 ? 110 : 100;
  return c.major * 10;
}

}  // namespace

bool runs_on(const FatbinEntry& entry, ComputeCapability gpu) {
  ComputeCapability built = entry.arch.capability();
  // CUDA 13 calls 10.1 what is 11.0 now (Jetson Thor).
  if (built == ComputeCapability{10, 1}) built = {11, 0};
  if (gpu == ComputeCapability{10, 1}) gpu = {11, 0};
  if (entry.empty || entry.code == GpuCode::kOther || entry.arch.sm < 10) return false;
  if (entry.arch.suffix == 'a') return built == gpu;
  if (entry.arch.suffix == 'f') return family_of(built) == family_of(gpu) && gpu.minor >= built.minor;
  // Linked and compiled by the driver, like PTX.
  if (entry.code == GpuCode::kPtx || entry.code == GpuCode::kLtoIr) return gpu >= built;
  return built.major == gpu.major && gpu.minor >= built.minor;
}

Version lowest_toolkit(const FatbinEntry& entry) {
  if (entry.toolkit.known()) return entry.toolkit;
  if (entry.code == GpuCode::kPtx) return cuda_for_ptx(entry.ptx_isa);
  Version out = first_cuda_of(entry.arch.sm);
  if (entry.code == GpuCode::kCubin && entry.cubin_abi >= 8 && entry.arch.sm < 100) out = {{13, 0}};
  if (entry.arch.suffix == 'f') out = std::max(out, Version{{12, 9}});
  return out;
}

Version lowest_driver(const FatbinEntry& entry) {
  const Version toolkit = lowest_toolkit(entry);
  Version out;
  if (entry.code == GpuCode::kPtx) {
    out = driver_for_cuda(toolkit);
  } else {
    // Within one major version, a cubin runs on the first driver of that major that knows the architecture.
    out = lowest_driver_of_major(toolkit.major_part());
    const Version arch = driver_for_cuda(first_cuda_of(entry.arch.sm));
    if (out < arch) out = arch;
  }
  if (entry.compression == Compression::kZstd && out < Version{{kZstdDriver}}) out = {{kZstdDriver}};
  return out;
}

ContainerJudgement judge_container(const FatbinContainer& container, ComputeCapability gpu, const Version& driver) {
  // The driver takes a cubin where one runs, else PTX; the reason against the better one is reported.
  ContainerJudgement best{GpuOutcome::kNoCode, nullptr};
  const auto rank = [](GpuOutcome o) {
    switch (o) {
      case GpuOutcome::kRuns: return 0;
      case GpuOutcome::kRunsAfterJit: return 1;
      case GpuOutcome::kZstdOldDriver: return 2;
      case GpuOutcome::kToolkitTooNew: return 3;
      case GpuOutcome::kPtxTooNew: return 4;
      case GpuOutcome::kNoCode: return 5;
    }
    return 5;
  };
  // One compressed entry makes the whole container unreadable for a driver that does not know the method.
  const FatbinEntry* zstd = nullptr;
  for (const FatbinEntry& entry : container.entries)
    if (entry.compression == Compression::kZstd && !entry.empty) zstd = &entry;
  for (const FatbinEntry& entry : container.entries) {
    if (!runs_on(entry, gpu)) continue;
    const bool jit = entry.code != GpuCode::kCubin;
    GpuOutcome outcome = jit ? GpuOutcome::kRunsAfterJit : GpuOutcome::kRuns;
    if (driver.known()) {
      const Version cuda = cuda_for_driver(driver);
      if (zstd && driver.major_part() < kZstdDriver)
        outcome = GpuOutcome::kZstdOldDriver;
      else if (entry.code == GpuCode::kPtx && !driver_takes_ptx(driver, entry.ptx_isa))
        outcome = GpuOutcome::kPtxTooNew;
      else if (!jit && lowest_toolkit(entry).major_part() > cuda.major_part())
        outcome = GpuOutcome::kToolkitTooNew;
    }
    if (!best.entry || rank(outcome) < rank(best.outcome))
      best = {outcome, outcome == GpuOutcome::kZstdOldDriver ? zstd : &entry};
  }
  return best;
}

ServedGpus served_gpus(std::span<const FatbinContainer> containers) {
  ServedGpus out;
  for (const KnownGpu& gpu : known_gpus()) {
    std::size_t total = 0, serving = 0;
    std::size_t jit = 0;
    for (const FatbinContainer& container : containers) {
      if (container.empty()) continue;
      ++total;
      const GpuOutcome outcome = judge_container(container, gpu.capability, {}).outcome;
      serving += outcome != GpuOutcome::kNoCode;
      jit += outcome == GpuOutcome::kRunsAfterJit;
    }
    if (serving == 0) continue;
    std::string& list = serving == total ? out.all : out.some;
    list += (list.empty() ? "" : ", ") + gpu.capability.text();
    if (serving < total)
      list += " (" + std::to_string(serving) + " of " + std::to_string(total) + ")";
    else if (jit > 0)
      list += jit == total ? " (PTX)" : " (PTX for " + std::to_string(jit) + " of " + std::to_string(total) + ")";
  }
  return out;
}

}  // namespace doctor
