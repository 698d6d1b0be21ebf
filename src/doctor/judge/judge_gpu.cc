// SPDX-License-Identifier: Apache-2.0
#include "doctor/judge/judge_gpu.h"

#include <algorithm>

#include "doctor/facts/gpu_rules.h"
#include "doctor/tables/cuda_releases.h"
#include "doctor/tables/gpu_arch.h"
#include "support/text.h"

namespace doctor {

using namespace support;

namespace {

// A cubin alone is judged as a container with one entry.
std::vector<FatbinContainer> containers_of(const Binary& binary) {
  if (!binary.cubin) return binary.fatbins;
  FatbinContainer out;
  FatbinEntry entry;
  entry.code = GpuCode::kCubin;
  entry.arch = binary.cubin->arch;
  entry.cubin_abi = binary.cubin->abi;
  entry.toolkit = binary.cubin->toolkit;
  entry.empty = binary.cubin->kernels.empty();
  out.entries.push_back(entry);
  return {out};
}

std::string entries_text(const FatbinContainer& container) {
  std::vector<std::string> texts;
  for (const FatbinEntry& entry : container.entries)
    if (!entry.empty) texts.push_back(entry_text(entry));
  return joined(texts, ", ");
}

struct Tally {
  std::size_t count = 0;
  ContainerJudgement first;
  const FatbinContainer* container = nullptr;
};

void judge_one(const Binary& binary, const std::vector<FatbinContainer>& containers, const Gpu& gpu,
               const Version& driver, std::vector<Verdict>& out) {
  Tally tallies[6];
  std::size_t total = 0;
  for (const FatbinContainer& container : containers) {
    if (container.empty()) continue;
    ++total;
    const ContainerJudgement judgement = judge_container(container, gpu.capability, driver);
    Tally& tally = tallies[int(judgement.outcome)];
    if (tally.count++ == 0) tally = {1, judgement, &container};
  }
  if (total == 0) return;
  const std::string subject = printable(binary.path);
  const std::string who =
      (gpu.name.empty() ? "a GPU" : printable(gpu.name)) + " (compute capability " + gpu.capability.text() + ")";
  const auto tally = [&](GpuOutcome outcome) -> const Tally& { return tallies[int(outcome)]; };
  const auto share = [&](const Tally& t) {
    return t.count == total ? std::string() : std::to_string(t.count) + " of " + counted(total, "container") + ": ";
  };
  if (const Tally& t = tally(GpuOutcome::kZstdOldDriver); t.count > 0)
    out.push_back(
        make_verdict({.code = "FATBIN_ZSTD_OLD_DRIVER",
                      .subject = subject,
                      .message = share(t) + "CUDA error: device kernel image is invalid",
                      .cause = "The GPU code is compressed with zstd, which drivers before 550 do not know; here is " +
                               driver.text() + ".",
                      .fix = "update the driver to 550.54 or later, or build with -compress-mode=default",
                      .evidence = {entries_text(*t.container)}}));
  if (const Tally& t = tally(GpuOutcome::kToolkitTooNew); t.count > 0)
    out.push_back(make_verdict(
        {.code = "CUBIN_TOOLKIT_TOO_NEW",
         .subject = subject,
         .message = share(t) + "CUDA error: device kernel image is invalid",
         .cause = "The GPU code was made by CUDA " + lowest_toolkit(*t.first.entry).text() + " or later; the driver " +
                  driver.text() + " speaks CUDA " + cuda_for_driver(driver).text() + ".",
         .fix = "update the driver to " + lowest_driver(*t.first.entry).text() +
                " or later, or take the build for CUDA " + std::to_string(cuda_for_driver(driver).major_part()),
         .evidence = {entries_text(*t.container)}}));
  if (const Tally& t = tally(GpuOutcome::kPtxTooNew); t.count > 0) {
    const Version cuda = cuda_for_ptx(t.first.entry->ptx_isa);
    out.push_back(make_verdict(
        {.code = "PTX_TOO_NEW",
         .subject = subject,
         .message = share(t) + "CUDA error: the provided PTX was compiled with an unsupported toolchain.",
         .cause = "For " + who + " there is only PTX " + t.first.entry->ptx_isa.text() + ", which needs " +
                  (cuda.known() ? "CUDA " + cuda.text() : "a later CUDA") + "; the driver " + driver.text() +
                  " speaks CUDA " + cuda_for_driver(driver).text() + ".",
         .fix = "update the driver" +
                (cuda.known() ? " to " + lowest_driver(*t.first.entry).text() + " or later" : std::string()) +
                ", or build with code for this GPU",
         .evidence = {entries_text(*t.container)}}));
  }
  if (const Tally& t = tally(GpuOutcome::kNoCode); t.count == total)
    out.push_back(make_verdict({.code = "GPU_NO_CODE",
                                .subject = subject,
                                .message = "CUDA error: no kernel image is available for execution on the device",
                                .cause = "It holds " + entries_text(*t.container) + (total > 1 ? " and the like" : "") +
                                         "; none of it runs on " + who + ".",
                                .fix = "build it for this GPU: TORCH_CUDA_ARCH_LIST=" + gpu.capability.text() +
                                       " (flash-attn: FLASH_ATTN_CUDA_ARCHS=" +
                                       std::to_string(gpu.capability.major * 10 + gpu.capability.minor) + ")",
                                .evidence = {entries_text(*t.container)}}));
  else if (t.count > 0) {
    // Kernels for one architecture each lie in containers of their own; which are called is decided at run time.
    Verdict verdict = make_verdict(
        {.code = "GPU_NO_CODE",
         .subject = subject,
         .message = std::to_string(t.count) + " of " + counted(total, "container") + " hold no code for " + who,
         .cause = "Kernels for other architectures are normal; if one of these is launched, it says: no kernel "
                  "image is available for execution on the device.",
         .evidence = {entries_text(*t.container)}});
    verdict.severity = t.count * 2 > total ? Severity::kWarning : Severity::kNote;
    out.push_back(std::move(verdict));
  }
  if (const Tally& t = tally(GpuOutcome::kRunsAfterJit); t.count > 0)
    out.push_back(make_verdict(
        {.code = "PTX_JIT",
         .subject = subject,
         .message = share(t) + "only PTX for " + who,
         .cause = "The driver compiles it at first use: a slow start, and slower kernels than code made for this GPU.",
         .evidence = {entries_text(*t.container)}}));
}

}  // namespace

void judge_gpu(const Binary& binary, const BinaryFacts& facts, const Environment& target, std::vector<Verdict>& out) {
  const std::vector<FatbinContainer> containers = containers_of(binary);
  std::vector<ComputeCapability> seen;
  for (const Gpu& gpu : target.gpus) {
    if (std::find(seen.begin(), seen.end(), gpu.capability) != seen.end()) continue;
    seen.push_back(gpu.capability);
    judge_one(binary, containers, gpu, target.driver, out);
  }
  const Version lowest = lowest_driver_of_major(facts.cuda_major);
  if (facts.cuda_major > 0 && lowest.known() && target.driver.known() && target.driver < lowest)
    out.push_back(make_verdict({.code = "DRIVER_TOO_OLD",
                                .subject = printable(binary.path),
                                .message = "CUDA driver version is insufficient for CUDA runtime version",
                                .cause = "It is linked with CUDA " + std::to_string(facts.cuda_major) +
                                         ", which needs a driver of " + lowest.text() + " or later; here is " +
                                         target.driver.text() + ".",
                                .fix = "update the driver, install cuda-compat, or take the build for CUDA " +
                                       std::to_string(cuda_for_driver(target.driver).major_part()),
                                .evidence = {facts.cuda_evidence}}));
  const bool gpu_code =
      std::any_of(containers.begin(), containers.end(), [](const FatbinContainer& c) { return !c.empty(); });
  if (gpu_code && target.gpus_known && target.gpus.empty() && !target.driver.known())
    out.push_back(
        make_verdict({.code = "DRIVER_MISSING",
                      .subject = printable(binary.path),
                      .message = "it holds GPU code, and there is no NVIDIA driver here",
                      .cause = "It may load; launching a kernel fails with: no CUDA-capable device is detected.",
                      .fix = "run it on a node with a GPU"}));
}

}  // namespace doctor
