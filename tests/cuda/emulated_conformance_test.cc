// SPDX-License-Identifier: Apache-2.0
// The conformance cases on emulated GPUs: the library plans, binds and launches as on a GPU; the driver it opens hands
// each launch to the emulator, which runs the kernels' own source. Each case runs on an sm_90, an sm_86 and an sm_80.
// MICA_EMULATED_CASES: a regular expression, as `mica check` takes it; "": all, less what would show nothing new; else
// a selection. MICA_EMULATED_ARCH: one alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "conformance/conformance.h"
#include "mica/mica.h"
#include "tests/cuda/emulation/emulator.h"
#include "tests/cuda/fake_driver.h"

namespace mica::conformance {
namespace {

constexpr int kArchs[] = {90, 86, 80};
emulation::Schedule schedule;
std::string report;  // of the launches since the last synchronise()

int run_kernel(const char* name, const test::FakeLaunch& launch, const void* params) {
  const std::string wrong = emulation::run(
      {name, launch.grid_x, launch.block_x, launch.shared_bytes, params, 1, launch.runs_at_once}, schedule);
  if (!wrong.empty()) report += (report.empty() ? "" : "\n") + wrong;
  return 0;
}

// Device memory is host memory.
class EmulatedMemory final : public Memory {
 public:
  explicit EmulatedMemory(int ordinal) : ordinal_(ordinal) {}
  mica_device device() const override { return {MICA_CUDA, ordinal_}; }
  void* stream() const override { return nullptr; }
  void* allocate(size_t bytes) override { return host_memory().allocate(bytes); }
  void release(void* address) override { host_memory().release(address); }
  void upload(void* to, const void* from, size_t bytes) override { host_memory().upload(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { host_memory().download(to, from, bytes); }
  void fence(void* address, size_t bytes) override { emulation::fence(address, bytes); }
  void open_fence(void* address, size_t bytes) override { emulation::open_fence(address, bytes); }
  const char* synchronise() override {
    said_ = std::move(report);
    report.clear();
    return said_.c_str();
  }

 private:
  int ordinal_;
  std::string said_;
};

bool has_tag(size_t index, const char* tag) {
  const std::vector<std::string>& tags = cases()[index].tags;
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

// Caches of e4m3 beside queries of fp32 are the CPU's alone; everything else runs on a GPU.
bool runs_on_gpu(size_t index) { return !(cases()[index].name.starts_with("fp8_cache_") && has_tag(index, "fp32")); }

struct CaseOnGpu {
  size_t index;
  int ordinal;
};

// Less what would show nothing new. One emulated kernel serves all architectures, so that a GPU which takes the
// kernels, splits and workspace of one before it would repeat it. And a large case, which takes seconds to minutes, is
// about Hopper's kernels: beside bf16 on sm_90 it runs only where it brings a kernel that no other run has. What is
// about a GPU's number of SMs has fewer of them here, and other cases.
std::vector<CaseOnGpu> worthwhile(const std::vector<size_t>& indices, const std::vector<int>& ordinals) {
  constexpr double kLarge = 2e7, kHuge = 1e10;  // multiply-adds
  using Plan = std::vector<Case::PlannedPass>;
  std::vector<CaseOnGpu> kept;
  std::vector<std::pair<CaseOnGpu, Plan>> large;
  std::set<std::string> kernels;
  const auto brings_kernels = [&](const Plan& plan) {
    const size_t before = kernels.size();
    for (const Case::PlannedPass& pass : plan) kernels.insert(pass.kernel);
    return kernels.size() > before;
  };
  for (const size_t index : indices) {
    if (cases()[index].cost > kHuge) continue;
    const Case one(index);
    std::set<Plan> plans;
    for (const int ordinal : ordinals) {
      const Plan plan = one.plan({MICA_CUDA, ordinal});
      if (!plans.insert(plan).second) continue;
      if (cases()[index].cost < kLarge || (kArchs[ordinal] == 90 && has_tag(index, "bf16"))) {
        kept.push_back({index, ordinal});
        brings_kernels(plan);
      } else {
        large.push_back({{index, ordinal}, plan});
      }
    }
  }
  for (const auto& [each, plan] : large)
    if (brings_kernels(plan)) kept.push_back(each);
  return kept;
}

std::vector<CaseOnGpu> selected() {
  const char* expression = std::getenv("MICA_EMULATED_CASES");
  const char* arch = std::getenv("MICA_EMULATED_ARCH");
  std::vector<int> ordinals;
  for (int ordinal = 0; ordinal < int(std::size(kArchs)); ++ordinal)
    if (!arch || std::atoi(arch) == kArchs[ordinal]) ordinals.push_back(ordinal);
  const std::vector<size_t> indices = select_cases(expression ? expression : "^plain_");
  if (expression && !*expression) return worthwhile(indices, ordinals);
  std::vector<CaseOnGpu> all;
  for (const int ordinal : ordinals)
    for (const size_t index : indices) all.push_back({index, ordinal});
  return all;
}

class EmulatedConformance : public testing::TestWithParam<CaseOnGpu> {};

TEST_P(EmulatedConformance, Case) {
  EmulatedMemory memory(GetParam().ordinal);
  const Outcome outcome = run_case(GetParam().index, memory);
  EXPECT_EQ(outcome.status, runs_on_gpu(GetParam().index) ? Status::kPassed : Status::kSkipped)
      << outcome.message << "\nforward " << outcome.forward_kernel << ", backward " << outcome.backward_kernel;
}

INSTANTIATE_TEST_SUITE_P(Case, EmulatedConformance, testing::ValuesIn(selected()),
                         [](const testing::TestParamInfo<CaseOnGpu>& info) {
                           return cases()[info.param.index].name + "_sm" + std::to_string(kArchs[info.param.ordinal]);
                         });

}  // namespace
}  // namespace mica::conformance

int main(int argc, char** argv) {
  using namespace mica;
  test::FakeDriver& driver = *test::mica_fake_driver();
  driver.device_count = int(std::size(conformance::kArchs));
  driver.run_kernel = conformance::run_kernel;
  for (int ordinal = 0; ordinal < driver.device_count; ++ordinal) driver.arch[ordinal] = conformance::kArchs[ordinal];
  if (const char* order = std::getenv("MICA_EMULATED_ORDER"); order && std::string(order) == "reversed")
    conformance::schedule = {true, true};
  testing::InitGoogleTest(&argc, argv);  // which asks for the cases, and they are planned for these GPUs
  return RUN_ALL_TESTS();
}
