// SPDX-License-Identifier: Apache-2.0
#include "doctor/gpu_rules.h"

#include <algorithm>

namespace doctor {
namespace {

constexpr KnownGpu kGpus[] = {
    {{5, 0}, "GTX 750, M2000"},
    {{5, 2}, "GTX 980, M60"},
    {{5, 3}, "Jetson Nano"},
    {{6, 0}, "P100"},
    {{6, 1}, "GTX 1080, P40"},
    {{6, 2}, "Jetson TX2"},
    {{7, 0}, "V100"},
    {{7, 2}, "Jetson Xavier"},
    {{7, 5}, "T4, RTX 2080"},
    {{8, 0}, "A100, A30"},
    {{8, 6}, "RTX 3090, A10, A40"},
    {{8, 7}, "Jetson Orin"},
    {{8, 9}, "RTX 4090, L4, L40S"},
    {{9, 0}, "H100, H200, GH200"},
    {{10, 0}, "B200, GB200"},
    {{10, 3}, "B300, GB300"},
    {{11, 0}, "Jetson Thor"},
    {{12, 0}, "RTX 5090, RTX PRO 6000"},
    {{12, 1}, "DGX Spark (GB10)"},
};

// A driver branch, the CUDA it came with, and the PTX that CUDA writes.
struct Release {
  int driver, cuda_major, cuda_minor, ptx_major, ptx_minor;
};
constexpr Release kReleases[] = {
    {450, 11, 0, 7, 0}, {455, 11, 1, 7, 1}, {460, 11, 2, 7, 2}, {465, 11, 3, 7, 3}, {470, 11, 4, 7, 4},
    {495, 11, 5, 7, 5}, {510, 11, 6, 7, 6}, {515, 11, 7, 7, 7}, {520, 11, 8, 7, 8}, {525, 12, 0, 8, 0},
    {530, 12, 1, 8, 1}, {535, 12, 2, 8, 2}, {545, 12, 3, 8, 3}, {550, 12, 4, 8, 4}, {555, 12, 5, 8, 5},
    {560, 12, 6, 8, 5}, {565, 12, 7, 8, 6}, {570, 12, 8, 8, 7}, {575, 12, 9, 8, 8}, {580, 13, 0, 9, 0},
    {590, 13, 1, 9, 1},
};

constexpr int kZstdDriver = 550;  // for what CUDA 12 packed; CUDA 13 needs a later one anyway

// The CUDA that first knew an architecture.
Version first_cuda_of(int sm) {
  if (sm >= 110 && sm < 120) return {{13, 0}};
  if (sm == 103 || sm == 121) return {{12, 9}};
  if (sm >= 100) return {{12, 8}};
  if (sm >= 89) return {{11, 8}};
  if (sm >= 87) return {{11, 4}};
  if (sm >= 86) return {{11, 1}};
  return {{11, 0}};
}

// Compute capabilities that share "f" code.
int family_of(ComputeCapability c) {
  if (c.major == 10) return c.minor == 1 ? 110 : 100;
  return c.major * 10;
}

}  // namespace

std::span<const KnownGpu> known_gpus() { return kGpus; }

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

Version driver_for_cuda(const Version& cuda) {
  for (const Release& r : kReleases)
    if (r.cuda_major == cuda.major_part() && r.cuda_minor == cuda.minor_part()) return {{r.driver}};
  return {};
}

Version cuda_for_driver(const Version& driver) {
  Version out;
  for (const Release& r : kReleases)
    if (driver.major_part() >= r.driver) out = {{r.cuda_major, r.cuda_minor}};
  return out;
}

Version cuda_for_ptx(const Version& isa) {
  for (const Release& r : kReleases)
    if (r.ptx_major == isa.major_part() && r.ptx_minor == isa.minor_part()) return {{r.cuda_major, r.cuda_minor}};
  return {};
}

Version lowest_driver_of_major(int cuda_major) {
  for (const Release& r : kReleases)
    if (r.cuda_major == cuda_major) return {{r.driver}};
  return {};
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
      else if (entry.code == GpuCode::kPtx && cuda.known() && cuda_for_ptx(entry.ptx_isa) > cuda)
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
  for (const KnownGpu& gpu : kGpus) {
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
