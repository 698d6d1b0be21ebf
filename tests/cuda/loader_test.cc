// SPDX-License-Identifier: Apache-2.0
// Images and their loading, against a fake libcuda.so.1.
#include "cuda/loader.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/cuda/fake_driver.h"

namespace mica {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";  // the fake's name

// Two rows: row 0 for sm_80, sm_86 (packed against the one before) and PTX, row 1 for sm_90 alone.
class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() : fake(*test::mica_fake_driver()) {
    test::mica_fake_reset();
    test::mica_fake_set_context(nullptr);
    add(0, 80, 0);
    add(0, 86, 0, 0);
    add(0, 80, 1);
    add(1, 90, 0);
    table = {images.data(), i32(images.size()), data.data(), data.size()};
  }
  static std::string code_of(i32 row, i32 arch) {
    return "code of row " + std::to_string(row) +
           ", many words of it the same for every architecture: " + std::to_string(arch);
  }
  void add(i32 row, i32 arch, i32 is_ptx, i32 base = -1) {
    const std::string code = code_of(row, arch);
    const std::string prefix = base < 0 ? "" : code_of(images[base].row, images[base].arch);
    std::vector<unsigned char> packed(ZSTD_compressBound(code.size()));
    ZSTD_CCtx* context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    ZSTD_CCtx_refPrefix(context, prefix.data(), prefix.size());
    packed.resize(ZSTD_compress2(context, packed.data(), packed.size(), code.data(), code.size()));
    ZSTD_freeCCtx(context);
    images.push_back({row, arch, is_ptx, 0, u32(data.size()), u32(packed.size()), u32(code.size()), base, 0, 0, 0, 0});
    data.insert(data.end(), packed.begin(), packed.end());
  }
  // The code; "" where it does not unpack.
  std::string unpack(i32 index) {
    std::unique_ptr<unsigned char[]> code;
    const mica_status status = unpack_image(table, index, "some_kernel", &code);
    EXPECT_EQ(status == MICA_OK, code != nullptr);
    if (status == MICA_OK) return reinterpret_cast<const char*>(code.get());
    EXPECT_EQ(status, MICA_ERROR_INTERNAL);
    EXPECT_TRUE(says("the image of some_kernel does not unpack, "));
    return "";
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
  const KernelImage specific = {0, 90, 0, 1, 0, 0, 0, -1, 0, 0, 0, 0};
  const KernelImage ordinary = {0, 90, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0};
  EXPECT_GT(image_rank(specific, 90), image_rank(ordinary, 90));
  EXPECT_EQ(image_rank(specific, 91), 0);
  EXPECT_GT(image_rank(ordinary, 91), 0);
}

TEST_F(LoaderTest, ImagesUnpack) {
  EXPECT_EQ(unpack(3), code_of(1, 90));
  EXPECT_EQ(unpack(1), code_of(0, 86)) << "against its base";
  EXPECT_LT(images[1].packed_bytes, images[0].packed_bytes / 2);
}

TEST_F(LoaderTest, EveryImageOfThisBuildUnpacks) {
  const ImageTable& built = kernel_images();
  for (i32 i = 0; i < built.num_images; ++i) {
    std::unique_ptr<unsigned char[]> code;
    ASSERT_EQ(unpack_image(built, i, "a kernel", &code), MICA_OK) << i << ": " << last_error();
    ASSERT_EQ(code[built.images[i].bytes], 0);
  }
}

TEST_F(LoaderTest, DamagedDataIsNoticed) {
  for (const i32 index : {0, 1}) {
    for (u32 at = 0; at < images[0].packed_bytes; ++at) {
      data[images[0].offset + at] ^= 0x5a;
      const std::string code = unpack(index);
      // Bits that say nothing may change; nothing else comes out.
      EXPECT_TRUE(code.empty() || code == code_of(0, images[index].arch)) << index << ", byte " << at;
      data[images[0].offset + at] ^= 0x5a;
    }
    EXPECT_NE(unpack(index), "");
  }
}

TEST_F(LoaderTest, DamagedTablesAreNoticed) {
  const KernelImage sound = images[1];
  const auto damaged = [&](const char* what, const KernelImage& image) {
    images[1] = image;
    EXPECT_EQ(unpack(1), "") << what;
    images[1] = sound;
  };
  const auto with = [&](auto KernelImage::*field, auto value) {
    KernelImage image = sound;
    image.*field = value;
    return image;
  };
  damaged("a base that is needed", with(&KernelImage::base, -1));
  damaged("another base", with(&KernelImage::base, 3));
  damaged("a base behind the table", with(&KernelImage::base, table.num_images));
  damaged("a base before the table", with(&KernelImage::base, -2));
  damaged("its own base", with(&KernelImage::base, 1));
  damaged("a place behind the data", with(&KernelImage::offset, u32(data.size()) + 1));
  damaged("a place at the end of the data", with(&KernelImage::offset, u32(data.size()) - 2));
  damaged("the largest place", with(&KernelImage::offset, ~0u));
  damaged("no data", with(&KernelImage::packed_bytes, 0u));
  damaged("half of the data", with(&KernelImage::packed_bytes, sound.packed_bytes / 2));
  damaged("more than the data", with(&KernelImage::packed_bytes, ~0u));
  damaged("a smaller image", with(&KernelImage::bytes, sound.bytes - 1));
  damaged("a larger image", with(&KernelImage::bytes, ~0u));
  EXPECT_EQ(unpack(1), code_of(0, 86));
}

TEST_F(LoaderTest, ADamagedImageIsReportedAndOthersLoad) {
  fake.arch[0] = 86;
  Driver driver(kLibrary);
  KernelLoader loader(driver, table, 2);
  data[images[0].offset + images[0].packed_bytes - 1] ^= 0xff;  // the checksum of the base
  EXPECT_EQ(loader.load(wanted(0, 0), &function), MICA_ERROR_INTERNAL);
  EXPECT_TRUE(says("the image of some_kernel does not unpack, "));
  EXPECT_TRUE(says("the library's file is damaged"));
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(fake.loads, 0);
  data[images[0].offset + images[0].packed_bytes - 1] ^= 0xff;
  EXPECT_EQ(loader.load(wanted(0, 0), &function), MICA_OK);
}

}  // namespace
}  // namespace mica
