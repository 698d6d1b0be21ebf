// SPDX-License-Identifier: Apache-2.0
// Images and their loading, against a fake libcuda.so.1.
#include "cuda/loader.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/cuda/fake_driver.h"

namespace mica {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";  // the fake's name

// Two rows: row 0 for sm_80, sm_86 and PTX, row 1 for sm_90 alone.
class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() : fake(*test::mica_fake_driver()) {
    test::mica_fake_reset();
    test::mica_fake_set_context(nullptr);
    add(0, 80, 0);
    add(0, 86, 0);
    add(0, 80, 1);
    add(1, 90, 0);
    table = {images.data(), i32(images.size()), data.data()};
  }
  void add(i32 row, i32 arch, i32 is_ptx) {
    const std::string code = "code of row " + std::to_string(row);
    uLongf bytes = compressBound(code.size());
    std::vector<unsigned char> deflated(bytes);
    compress(deflated.data(), &bytes, reinterpret_cast<const unsigned char*>(code.data()), code.size());
    images.push_back({row, arch, is_ptx, 0, u32(data.size()), u32(bytes), u32(code.size()), 0, 0, 0, 0});
    data.insert(data.end(), deflated.begin(), deflated.begin() + bytes);
  }
  static KernelLoader::Wanted wanted(i32 device, i32 row) { return {device, row, "some_kernel", 100000}; }
  static ::testing::AssertionResult says(const std::string& text) {
    if (std::string(last_error()).find(text) != std::string::npos) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << last_error();
  }

  test::FakeDriver& fake;
  std::vector<KernelImage> images;
  std::vector<unsigned char> data;
  ImageTable table;
  cu::Function function = nullptr;
};

TEST_F(LoaderTest, LoadsOnceAndSetsSharedMemory) {
  Driver driver(kLibrary);
  KernelLoader loader(driver, table, 2);
  EXPECT_EQ(loader.load(wanted(0, 1), &function), MICA_OK);
  EXPECT_EQ(fake.max_dynamic_smem, 100000);
  const cu::Function first = function;
  EXPECT_EQ(loader.load(wanted(0, 1), &function), MICA_OK);
  EXPECT_EQ(function, first);
  EXPECT_EQ(fake.loads, 1);
  EXPECT_EQ(test::mica_fake_context(), nullptr) << "the caller's context is given back";
}

TEST_F(LoaderTest, EveryDeviceHasItsFunction) {
  fake.arch[0] = fake.arch[1] = 86;
  Driver driver(kLibrary);
  KernelLoader loader(driver, table, 2);
  cu::Function other = nullptr;
  EXPECT_EQ(loader.load(wanted(0, 0), &function), MICA_OK);
  EXPECT_EQ(loader.load(wanted(1, 0), &other), MICA_OK);
  EXPECT_NE(function, other);
  EXPECT_EQ(fake.loads, 1) << "a library serves every device of its architecture";
  EXPECT_EQ(fake.retains, 2);
}

TEST_F(LoaderTest, ManyThreadsLoadOnce) {
  Driver driver(kLibrary);
  KernelLoader loader(driver, table, 2);
  std::vector<cu::Function> found(32);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < found.size(); ++i)
    threads.emplace_back([&, i] { loader.load(wanted(i32(i % 2), 0), &found[i]); });
  for (std::thread& t : threads) t.join();
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NE(found[i], nullptr);
    EXPECT_EQ(found[i], found[i % 2]);
  }
  EXPECT_EQ(fake.functions, 2);
  EXPECT_EQ(fake.retains, 2);
}

TEST_F(LoaderTest, FailureIsReportedAndTriedAgain) {
  Driver driver(kLibrary);
  KernelLoader loader(driver, table, 2);
  fake.load_result = cu::kOutOfMemory;
  EXPECT_EQ(loader.load(wanted(0, 1), &function), MICA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(function, nullptr);
  fake.load_result = cu::kUnsupportedPtxVersion;
  EXPECT_EQ(loader.load(wanted(0, 1), &function), MICA_ERROR_DEVICE);
  EXPECT_TRUE(says("its PTX is newer than the driver"));
  fake.load_result = cu::kSuccess;
  fake.get_kernel_result = cu::kNoBinaryForGpu;
  EXPECT_EQ(loader.load(wanted(0, 1), &function), MICA_ERROR_DEVICE);
  EXPECT_TRUE(says("loading some_kernel: cuLibraryGetKernel gives 209 (FAKE_ERROR"));
  fake.get_kernel_result = cu::kSuccess;
  EXPECT_EQ(loader.load(wanted(0, 1), &function), MICA_OK);
}

TEST_F(LoaderTest, LoadsDuringCaptureWhereTheDriverCan) {
  fake.capturing = true;
  Driver driver(kLibrary);
  KernelLoader loader(driver, table, 2);
  EXPECT_EQ(loader.load(wanted(0, 1), &function), MICA_OK);
  EXPECT_EQ(fake.mode_exchanges, 2) << "the thread's mode is given back";
}

TEST_F(LoaderTest, SaysToPlanBeforeCaptureWhereTheDriverCannot) {
  fake.capturing = true;
  fake.cuda_version = 12020;
  Driver driver(kLibrary);
  KernelLoader loader(driver, table, 2);
  EXPECT_EQ(loader.load(wanted(0, 1), &function), MICA_ERROR_DEVICE);
  EXPECT_TRUE(says("make the plan once before the capture"));
  EXPECT_EQ(fake.mode_exchanges, 0);
}

TEST_F(LoaderTest, ChoosesTheImage) {
  // The architecture, negative for PTX; 0: none.
  const auto arch_for = [&](i32 device_arch) {
    const i32 index = find_image(table, 0, device_arch);
    return index < 0 ? 0 : (table.images[index].is_ptx ? -1 : 1) * table.images[index].arch;
  };
  EXPECT_EQ(arch_for(80), 80);
  EXPECT_EQ(arch_for(86), 86);
  EXPECT_EQ(arch_for(87), 86) << "the highest lower minor of the same major";
  EXPECT_EQ(arch_for(89), 86);
  EXPECT_EQ(arch_for(90), -80) << "no machine code of another major: PTX";
  EXPECT_EQ(arch_for(120), -80);
  EXPECT_EQ(arch_for(75), 0);
  EXPECT_EQ(find_image(table, 1, 100), -1);
  EXPECT_EQ(find_image(table, 2, 90), -1);
}

TEST_F(LoaderTest, SpecificImagesRunOnTheirArchitectureAlone) {
  const KernelImage specific = {0, 90, 0, 1, 0, 0, 0, 0, 0, 0, 0}, ordinary = {0, 90, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_GT(image_rank(specific, 90), image_rank(ordinary, 90));
  EXPECT_EQ(image_rank(specific, 91), 0);
  EXPECT_GT(image_rank(ordinary, 91), 0);
}

TEST_F(LoaderTest, ImagesInflate) {
  const auto code = inflate_image(table, table.images[3]);
  EXPECT_STREQ(reinterpret_cast<const char*>(code.get()), "code of row 1");
  data[images[3].offset + 4] ^= 0xff;
  EXPECT_EQ(inflate_image(table, table.images[3]), nullptr) << "damaged data is noticed";
}

}  // namespace
}  // namespace mica
