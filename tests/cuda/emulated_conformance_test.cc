// SPDX-License-Identifier: Apache-2.0
// The conformance cases on emulated GPUs: the library plans, binds and launches as on a GPU; the driver it opens hands
// each launch to the emulator, which runs the kernels' own source. Each case runs on an sm_90, an sm_86 and an sm_80.
// MICA_EMULATED_CASES: a regular expression, as `mica check` takes it; else a selection. MICA_EMULATED_ARCH: one alone.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
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
  const std::string wrong =
      emulation::run({name, launch.grid_x, launch.block_x, launch.shared_bytes, params}, schedule);
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

struct CaseOnGpu {
  size_t index;
  int ordinal;
};

class EmulatedConformance : public testing::TestWithParam<CaseOnGpu> {};

TEST_P(EmulatedConformance, Case) {
  EmulatedMemory memory(GetParam().ordinal);
  const Outcome outcome = run_case(GetParam().index, memory);
  EXPECT_EQ(outcome.status, Status::kPassed)
      << (outcome.status == Status::kSkipped ? "skipped, but a GPU runs everything: " : "") << outcome.message
      << "\nforward " << outcome.forward_kernel << ", backward " << outcome.backward_kernel;
}

std::vector<CaseOnGpu> selected() {
  const char* expression = std::getenv("MICA_EMULATED_CASES");
  const char* arch = std::getenv("MICA_EMULATED_ARCH");
  std::vector<CaseOnGpu> all;
  for (int ordinal = 0; ordinal < int(std::size(kArchs)); ++ordinal)
    for (const size_t index : select_cases(expression ? expression : "^plain_"))
      if (!arch || std::atoi(arch) == kArchs[ordinal]) all.push_back({index, ordinal});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Case, EmulatedConformance, testing::ValuesIn(selected()),
                         [](const testing::TestParamInfo<CaseOnGpu>& info) {
                           return cases()[info.param.index].name + "_sm" + std::to_string(kArchs[info.param.ordinal]);
                         });

}  // namespace
}  // namespace mica::conformance

int main(int argc, char** argv) {
  using namespace mica;
  testing::InitGoogleTest(&argc, argv);
  test::FakeDriver& driver = *test::mica_fake_driver();
  driver.device_count = int(std::size(conformance::kArchs));
  driver.run_kernel = conformance::run_kernel;
  for (int ordinal = 0; ordinal < driver.device_count; ++ordinal) driver.arch[ordinal] = conformance::kArchs[ordinal];
  if (const char* order = std::getenv("MICA_EMULATED_ORDER"); order && std::string(order) == "reversed")
    conformance::schedule = {true, true};
  return RUN_ALL_TESTS();
}
