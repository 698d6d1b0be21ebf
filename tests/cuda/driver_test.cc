// SPDX-License-Identifier: Apache-2.0
// The driver against a fake libcuda.so.1.
#include "cuda/driver.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/cuda/fake_driver.h"

namespace mica {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";  // the fake's name

class DriverTest : public ::testing::Test {
 protected:
  DriverTest() : fake(*test::mica_fake_driver()) {
    test::mica_fake_reset();
    test::mica_fake_set_context(nullptr);
  }
  // Whether a driver that is opened now complains of this.
  static ::testing::AssertionResult complains(const std::string& text) {
    const Driver driver(kLibrary);
    if (driver.device_count() == 0 && std::string(driver.problem()).find(text) != std::string::npos)
      return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << driver.device_count() << " devices: " << driver.problem();
  }
  test::FakeDriver& fake;
};

TEST_F(DriverTest, DescribesDevices) {
  const Driver driver(kLibrary);
  EXPECT_STREQ(driver.problem(), "");
  ASSERT_EQ(driver.device_count(), 2);
  EXPECT_EQ(driver.device(0).arch, 90);
  EXPECT_EQ(driver.device(1).arch, 86);
  EXPECT_EQ(driver.device(1).max_smem_bytes, 99 << 10);
  EXPECT_STREQ(driver.device(1).name, "Fake GPU 1");
}

TEST_F(DriverTest, NoDriver) {
  const Driver driver("libno_such_driver.so.1");
  EXPECT_EQ(driver.device_count(), 0);
  EXPECT_NE(std::string(driver.problem()).find("no NVIDIA driver: libno_such_driver.so.1"), std::string::npos)
      << driver.problem();
}

TEST_F(DriverTest, OldDriver) {
  fake.cuda_version = 11080;
  EXPECT_TRUE(complains("too old: it supports CUDA 11.8, want 12.0"));
}

TEST_F(DriverTest, IncompleteDriver) {
  fake.missing_symbol = "cuLibraryLoadData";
  EXPECT_TRUE(complains("lacks cuLibraryLoadData"));
}

TEST_F(DriverTest, FunctionsThatCameAfter12_0MayBeMissing) {
  fake.cuda_version = 12000;
  const Driver driver(kLibrary);
  EXPECT_STREQ(driver.problem(), "");
  EXPECT_EQ(driver.api().cuFuncLoad, nullptr);
}

TEST_F(DriverTest, NoDevice) {
  fake.init_result = cu::kNoDevice;
  EXPECT_TRUE(complains("finds no GPU"));
  fake.init_result = cu::kSuccess;
  fake.device_count = 0;
  EXPECT_TRUE(complains("shows no GPU"));
}

TEST_F(DriverTest, StubMismatchAndOtherErrors) {
  fake.init_result = cu::kStubLibrary;
  EXPECT_TRUE(complains("stub"));
  fake.init_result = cu::kSystemDriverMismatch;
  EXPECT_TRUE(complains("do not match"));
  fake.init_result = 999;
  EXPECT_TRUE(complains("999 (FAKE_ERROR: as the test wanted)"));
}

TEST_F(DriverTest, ContextIsPushedOnlyWhenAnotherIsCurrent) {
  Driver driver(kLibrary);
  int other;
  test::mica_fake_set_context(&other);
  {
    const ScopedContext scope(driver, 1);
    EXPECT_EQ(scope.status(), MICA_OK);
    EXPECT_NE(test::mica_fake_context(), &other);
    const ScopedContext again(driver, 1);
    EXPECT_EQ(fake.pushes, 1);
  }
  EXPECT_EQ(test::mica_fake_context(), &other);
  EXPECT_EQ(fake.pops, 1);
  EXPECT_EQ(fake.retains, 1);
}

TEST_F(DriverTest, ErrorsCarryNameAndText) {
  const Driver driver(kLibrary);
  EXPECT_EQ(driver.check(700, "cuLaunchKernelEx"), MICA_ERROR_DEVICE);
  EXPECT_STREQ(last_error(), "cuLaunchKernelEx gives 700 (FAKE_ERROR: as the test wanted)");
  EXPECT_EQ(driver.check(cu::kOutOfMemory, "cuLaunchKernelEx"), MICA_ERROR_OUT_OF_MEMORY);
}

}  // namespace
}  // namespace mica
