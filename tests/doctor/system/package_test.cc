// SPDX-License-Identifier: Apache-2.0
// Installed packages, by name and by folder: what they are, and whether they agree with what their installer recorded.
#include "doctor/system/package.h"

#include <gtest/gtest.h>

#include "doctor/judge/judge.h"
#include "doctor/read/inspect.h"
#include "doctor/report/describe.h"
#include "tests/doctor/fake_system.h"

namespace doctor {
namespace {

const std::string kSite = "/opt/conda/lib/python3.12/site-packages";
const std::string kModule = "flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so";

class Package : public testing::Test {
 protected:
  Package() {
    system_.add_base();
    system_.add_python("/opt/conda", "3.12.4");
    system_.library(kSite + "/" + kModule, {.needed = {"libc10.so"}, .exports = {"PyInit_flash_attn_2_cuda"}});
    system_.write(kSite + "/flash_attn/__init__.py", "import flash_attn_2_cuda\n");
    system_.add_package(kSite, "other", "1.0", "", "other/__init__.py,,\n");
    install("flash_attn/__init__.py,,25\nflash_attn/__pycache__/__init__.pyc,,\n" + kModule + ",,\n");
  }
  void install(const std::string& record) {
    system_.add_package(kSite, "flash_attn", "2.8.3", "Requires-Dist: torch\n", record);
    system_.write(kSite + "/flash_attn-2.8.3.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: cp312-cp312-linux_x86_64\n");
  }
  Inspection look() {
    const Outlook outlook = system_.outlook();
    const auto package = package_at(outlook.files, kSite + "/flash_attn");
    return package ? inspect_package(outlook.files, *package) : Inspection{};
  }
  std::vector<std::string> codes() {
    std::vector<std::string> out;
    for (const Verdict& verdict : judge(look())) out.push_back(verdict.code.text());
    return out;
  }
  using Codes = std::vector<std::string>;

  FakeSystem system_;
};

TEST_F(Package, IsFoundByItsFolders) {
  const Outlook outlook = system_.outlook();
  for (const char* folder : {"/flash_attn", "/flash_attn/", "/flash_attn-2.8.3.dist-info"}) {
    const auto package = package_at(outlook.files, kSite + folder);
    ASSERT_TRUE(package) << folder;
    EXPECT_EQ(package->name, "flash-attn");
    EXPECT_EQ(package->version, "2.8.3");
    EXPECT_EQ(package->site, kSite);
  }
  system_.write(kSite + "/copied/__init__.py", "");
  for (const char* folder : {"/copied", "/nowhere", "", "/flash_attn/__init__.py"})
    EXPECT_FALSE(package_at(outlook.files, kSite + folder)) << folder;
}

TEST_F(Package, SaysWhatItIs) {
  const std::string text = describe(look(), false);
  for (const char* words : {"package    flash_attn 2.8.3", "1 compiled", "tags       cp312-cp312-linux_x86_64",
                            "requires   torch", "exports PyInit_flash_attn_2_cuda"})
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
  EXPECT_EQ(codes(), Codes{});
}

TEST_F(Package, DisagreesWithItsRecord) {
  system_.write(kSite + "/flash_attn/__init__.py", "import flash_attn_2_cuda, os\n");
  EXPECT_EQ(codes(), Codes{"RECORD_BAD"}) << "another size";
  system_.remove(kSite + "/flash_attn/__init__.py");
  EXPECT_EQ(codes(), Codes{"RECORD_BAD"}) << "gone";
}

TEST_F(Package, WithoutItsCompiledModule) {
  install("flash_attn/__init__.py,,25\n");
  EXPECT_EQ(codes(), Codes{"WHEEL_NO_EXTENSION"});
}

TEST_F(Package, OfAnotherMachineOrPython) {
  system_.write(kSite + "/flash_attn-2.8.3.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: cp311-cp311-linux_aarch64\n");
  EXPECT_EQ(codes(), (Codes{"WHEEL_TAG_VS_ELF", "WHEEL_TAG_VS_ELF"}));
  system_.remove(kSite + "/flash_attn-2.8.3.dist-info/WHEEL");
  EXPECT_EQ(codes(), Codes{}) << "without tags nothing is promised";
}

TEST_F(Package, ARecordIsOnlyText) {
  system_.library("/secret/x.so", {.imports = {"missing"}});
  install("../../../../../secret/x.so,,\n/secret/x.so,,\nflash_attn/__init__.py,,25\n" + kModule + ",,\n");
  EXPECT_EQ(look().wheel->binaries.size(), 1u);
  EXPECT_EQ(words_of_package(system_.outlook().files, *package_at(system_.outlook().files, kSite + "/flash_attn"))
                .certain_imports,
            std::set<std::string>{"flash_attn_2_cuda"});
}

}  // namespace
}  // namespace doctor
