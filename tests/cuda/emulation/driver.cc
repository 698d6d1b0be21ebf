// SPDX-License-Identifier: Apache-2.0
// Makes the fake driver's GPU 0 an emulated sm_86, or with MICA_EMULATED_ARCH=90 an H100, in a program that knows
// nothing of it.
#include <cstdio>
#include <cstdlib>

#include "tests/cuda/emulation/emulator.h"
#include "tests/cuda/fake_driver.h"

namespace mica::emulation {
namespace {

int run_kernel(const char* name, const test::FakeLaunch& launch, const void* params) {
  const std::string wrong =
      run({name, launch.grid_x, launch.block_x, launch.shared_bytes, params, 1, launch.runs_at_once}, Schedule{});
  if (wrong.empty()) return 0;
  std::printf("%s\n", wrong.c_str());
  return 719;  // CUDA_ERROR_LAUNCH_FAILED
}

[[maybe_unused]] const bool is_ready = [] {
  test::FakeDriver& driver = *test::mica_fake_driver();
  const char* arch = std::getenv("MICA_EMULATED_ARCH");
  driver.device_count = 1;
  driver.arch[0] = arch ? std::atoi(arch) : 86;
  driver.max_smem_bytes[0] = driver.arch[0] >= 90 ? 227 << 10 : 99 << 10;
  driver.run_kernel = run_kernel;
  return true;
}();

}  // namespace
}  // namespace mica::emulation
