// SPDX-License-Identifier: Apache-2.0
// Fatbin containers and cubins, made by hand and, where nvcc is at hand, by it; which GPU and driver takes what.
#include <gtest/gtest.h>

#include <filesystem>

#include "doctor/facts/facts.h"
#include "doctor/facts/gpu_rules.h"
#include "doctor/read/cubin.h"
#include "doctor/read/fatbin.h"
#include "doctor/read/inspect.h"
#include "doctor/read/unpack/lz4.h"
#include "doctor/read/unpack/zstd.h"
#include "doctor/tables/cuda_releases.h"
#include "doctor/tables/gpu_arch.h"
#include "tests/doctor/fixtures.h"

namespace {

using doctor::Compression;
using doctor::ComputeCapability;
using doctor::FatbinContainer;
using doctor::FatbinEntry;
using doctor::GpuOutcome;
using fixtures::GpuEntry;

std::vector<FatbinContainer> read(const std::string& bytes, std::vector<std::string>* problems = nullptr) {
  support::MemorySource source(bytes);
  std::vector<std::string> ignored;
  return doctor::read_fatbins(source, {0, bytes.size()}, problems ? problems : &ignored);
}

doctor::Cubin cubin(const std::string& bytes) {
  support::MemorySource source(bytes);
  return doctor::read_cubin(source);
}

FatbinContainer container(const std::vector<std::string>& archs, uint64_t compression = 0, int abi = 7) {
  return read(fixtures::make_gpu_code(archs, compression, abi)).at(0);
}

TEST(Cubin, OldAndNewGeneration) {
  const doctor::Cubin old = cubin(fixtures::make_cubin({7, 90, 'a', 129, {"forward", "backward"}}));
  EXPECT_EQ(old.arch.text(), "sm_90a");
  EXPECT_EQ(old.virtual_arch.sm, 90);
  EXPECT_EQ(old.toolkit.text(), "12.9");
  EXPECT_EQ(old.kernels, (std::vector<std::string>{"forward", "backward"}));
  EXPECT_EQ(cubin(fixtures::make_cubin({7, 86})).arch.text(), "sm_86");
  for (const char suffix : {'a', 'f', '\0'}) {
    const doctor::Cubin fresh = cubin(fixtures::make_cubin({8, 100, suffix, 130}));
    EXPECT_EQ(fresh.arch.suffix, suffix);
    EXPECT_EQ(fresh.arch.sm, 100);
    EXPECT_EQ(fresh.toolkit.text(), "13.0");
    EXPECT_TRUE(fresh.command_line.starts_with("-arch sm_100")) << fresh.command_line;
  }
  EXPECT_THROW(cubin("no cubin"), support::ReadError);
}

TEST(Fatbin, EntriesAndWhatTheirHeadersSay) {
  const std::string bytes = fixtures::make_container({{1, 80, 0x8011, 9, 0, "", 400},
                                                      {2, 90, 0x100011, 1, 7, fixtures::make_cubin({7, 90, 'a', 128})},
                                                      {2, 120, 0x1200011, 1, 8, "", 0, 112},
                                                      {2, 80, 0x2011, 1, 7, "", 5000}});
  // Between containers stand zeros.
  const auto found = read(bytes + std::string(24, '\0') + bytes);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1].offset, bytes.size() + 24);
  const auto& entries = found[1].entries;
  ASSERT_EQ(entries.size(), 4u);
  EXPECT_EQ(doctor::entry_text(entries[0]), "compute_80 (PTX 9.0) zstd");
  EXPECT_EQ(doctor::entry_text(entries[1]), "sm_90a");
  EXPECT_EQ(entries[1].toolkit.text(), "12.8");
  EXPECT_EQ(doctor::entry_text(entries[2]), "sm_120f");
  EXPECT_EQ(entries[2].cubin_abi, 8);
  EXPECT_EQ(doctor::entry_text(entries[3]), "sm_80 lz4");
  EXPECT_EQ(entries[3].plain_bytes, 5000u);
}

// A frame of zstd that holds the bytes as they are, in raw blocks.
std::string zstd_frame(const std::string& plain) {
  std::string out = "\x28\xb5\x2f\xfd";
  out += '\x80';  // the content's size in four bytes; a window
  out += '\x38';  // of 128 KB
  for (int i = 0; i < 4; ++i) out += char(plain.size() >> (8 * i));
  constexpr std::size_t kMost = 100'000;
  for (std::size_t at = 0; at < plain.size(); at += kMost) {
    const std::size_t size = std::min(kMost, plain.size() - at);
    const std::size_t header = size << 3 | (at + size == plain.size());
    for (int i = 0; i < 3; ++i) out += char(header >> (8 * i));
    out += plain.substr(at, size);
  }
  return out;
}

TEST(Fatbin, EmptyContainersAreSetAside) {
  const std::string nothing = fixtures::make_cubin({7, 90, 0, 124, {}});
  const std::string link_step =
      fixtures::make_container({{2, 80, 0x11, 1, 7, fixtures::make_cubin({7, 80, 0, 124, {}})},
                                {2, 90, 0x8011, 1, 8, zstd_frame(nothing), nothing.size()}});
  EXPECT_TRUE(read(link_step).at(0).empty());
  EXPECT_FALSE(container({"80"}).empty());
  EXPECT_FALSE(read(fixtures::make_container({{2, 90, 0x8011, 1, 8, "", 3112}})).at(0).empty());
  // The union would claim sm_90; each container by itself does not.
  const std::string both = fixtures::make_container({{2, 90, 0x11, 1, 7, fixtures::make_cubin({7, 90, 0, 124, {}})}}) +
                           fixtures::make_gpu_code({"80"});
  EXPECT_EQ(doctor::served_gpus(read(both)).all, "8.0, 8.6, 8.7, 8.9");
}

// Large cubins pass by unread, their headers excepted; what still cannot be told, the neighbours tell.
TEST(Fatbin, ToolkitOfLargeAndOfCompressedCubins) {
  const std::string large = fixtures::make_cubin({7, 80, 0, 123}) + std::string(100'000, '\0');
  const auto found = read(fixtures::make_container({{2, 80, 0x11, 1, 7, large}, {2, 90, 0x8011, 1, 7, "", 9000}}));
  ASSERT_EQ(found.at(0).entries.size(), 2u);
  EXPECT_EQ(found[0].entries[0].toolkit.text(), "12.3");
  EXPECT_FALSE(found[0].entries[0].empty);
  EXPECT_EQ(found[0].entries[1].toolkit.text(), "12.3");
  const auto with_ptx =
      read(fixtures::make_container({{2, 90, 0x8011, 1, 7, "", 9000}, {1, 90, 0x8011, 8, 8, "", 9000}}));
  EXPECT_EQ(with_ptx.at(0).entries.at(0).toolkit.text(), "12.9");
  const auto alone = read(fixtures::make_container({{2, 90, 0x8011, 1, 7, "", 9000}}));
  EXPECT_FALSE(alone.at(0).entries.at(0).toolkit.known());
}

TEST(Fatbin, Lz4CubinsAreOpened) {
  // One run of literals: a token of 15, lengths, the bytes themselves.
  const std::string plain = fixtures::make_cubin({7, 80, 0, 118});
  std::string block = "\xf0";
  std::size_t rest = plain.size() - 15;
  for (; rest >= 255; rest -= 255) block += '\xff';
  block += char(rest);
  block += plain;
  const auto found = read(fixtures::make_container({{2, 80, 0x2011, 1, 7, block, plain.size()}}));
  EXPECT_EQ(found.at(0).entries.at(0).toolkit.text(), "11.8");
  EXPECT_FALSE(found[0].empty());
  const uint8_t repeat[] = {0x14, 'a', 1, 0, 0x20, 'b', 'c'};  // one literal, a match of 8 at distance 1, two literals
  const auto out = doctor::expand_lz4(repeat, 100);
  EXPECT_EQ(std::string(out.begin(), out.end()), "aaaaaaaaabc");
  EXPECT_EQ(doctor::expand_lz4(repeat, 4).size(), 4u);
}

TEST(Fatbin, ZstdCubinsAreOpened) {
  if (!doctor::has_zstd()) GTEST_SKIP() << "this build has no zstd";
  const auto first = [](const std::string& plain, const std::string& frame) {
    return read(fixtures::make_container({{2, 90, 0x8011, 1, 7, frame, plain.size()}})).at(0).entries.at(0);
  };
  // A small one with a kernel, and a small one without: its size says nothing.
  const std::string kernel = fixtures::make_cubin({7, 90, 0, 128}), none = fixtures::make_cubin({7, 90, 0, 128, {}});
  EXPECT_EQ(first(kernel, zstd_frame(kernel)).toolkit.text(), "12.8");
  EXPECT_FALSE(first(kernel, zstd_frame(kernel)).empty);
  EXPECT_TRUE(first(none, zstd_frame(none)).empty);
  // Of a large one the beginning is enough.
  const std::string large = fixtures::make_cubin({7, 90, 0, 123}) + std::string(300'000, '\0');
  EXPECT_EQ(first(large, zstd_frame(large)).toolkit.text(), "12.3");
  // What is no frame, or a damaged one, still says in its entry what it is for.
  for (const std::string& bad : {std::string(64, 'x'), zstd_frame(kernel).substr(0, 11)}) {
    EXPECT_FALSE(first(kernel, bad).toolkit.known());
    EXPECT_EQ(first(kernel, bad).arch.sm, 90);
  }
  // A byte repeated: a block of one byte that stands for many, bounded by what was asked for.
  const uint8_t repeat[] = {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38, 0x03, 0x40, 0x01, 'a'};
  EXPECT_EQ(doctor::expand_zstd(repeat, 100), std::vector<uint8_t>(100, 'a'));
}

TEST(Fatbin, DamageIsNamed) {
  const std::string whole = fixtures::make_gpu_code({"80", "90a"});
  for (std::size_t size = 17; size < whole.size(); size += 41) {
    std::vector<std::string> problems;
    read(whole.substr(0, size), &problems);
    EXPECT_EQ(problems.size(), 1u) << size;
  }
  std::string bad = whole;
  bad[16 + 4] = 3;  // header of the first entry: 3 bytes
  std::vector<std::string> problems;
  EXPECT_TRUE(read(bad, &problems).at(0).entries.empty());
  EXPECT_NE(problems.at(0).find("header of 3 bytes"), std::string::npos);
  bad = whole;
  bad[16 + 8 + 7] = 1;  // its payload: more than there is
  problems.clear();
  read(bad, &problems);
  EXPECT_NE(problems.at(0).find("larger than the container"), std::string::npos);
}

TEST(Fatbin, FedInAnyPieces) {
  const std::string bytes = std::string(40, 'y') + fixtures::make_gpu_code({"80", "90a", "ptx80"}) +
                            std::string(104, '\0') + fixtures::make_gpu_code({"75"});
  for (const std::size_t piece : {1, 7, 16, 63, 200, 1000}) {
    doctor::FatbinScanner scanner;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      const std::string part = bytes.substr(at, piece);
      scanner.feed({reinterpret_cast<const uint8_t*>(part.data()), part.size()});
    }
    std::vector<std::string> problems;
    const auto found = scanner.finish(&problems);
    EXPECT_TRUE(problems.empty());
    ASSERT_EQ(found.size(), 2u) << piece;
    EXPECT_EQ(found[0].entries.size(), 3u);
    EXPECT_EQ(found[0].offset, 40u);
    EXPECT_EQ(found[1].entries.at(0).arch.sm, 75);
  }
}

TEST(GpuRules, WhichGpuRunsWhat) {
  struct Row {
    const char* arch;
    std::vector<ComputeCapability> yes, no;
  };
  const Row rows[] = {
      {"80", {{8, 0}, {8, 6}, {8, 9}}, {{7, 5}, {9, 0}, {12, 0}}},
      {"86", {{8, 6}, {8, 9}}, {{8, 0}}},
      {"90a", {{9, 0}}, {{10, 0}, {8, 9}}},
      {"100f", {{10, 0}, {10, 3}}, {{11, 0}, {12, 0}, {9, 0}}},
      {"103f", {{10, 3}}, {{10, 0}}},
      {"120f", {{12, 0}, {12, 1}}, {{10, 0}}},
      {"101", {{11, 0}}, {{10, 0}, {10, 3}}},
      {"ptx80", {{8, 0}, {9, 0}, {12, 1}}, {{7, 5}}},
      {"ptx90a", {{9, 0}}, {{10, 0}}},
      {"ptx100f", {{10, 3}}, {{12, 0}}},
  };
  for (const Row& row : rows) {
    const FatbinEntry entry = container({row.arch}).entries.at(0);
    for (const auto& gpu : row.yes) EXPECT_TRUE(doctor::runs_on(entry, gpu)) << row.arch << " on " << gpu.text();
    for (const auto& gpu : row.no) EXPECT_FALSE(doctor::runs_on(entry, gpu)) << row.arch << " on " << gpu.text();
  }
}

TEST(GpuRules, WhichDriverLoadsWhat) {
  const auto lowest = [](const FatbinContainer& c) { return doctor::lowest_driver(c.entries.at(0)).text(); };
  EXPECT_EQ(lowest(container({"80"})), "525");
  EXPECT_EQ(lowest(container({"80"}, 0, 8)), "580");
  EXPECT_EQ(lowest(container({"80"}, 0x8000)), "550");  // zstd
  EXPECT_EQ(lowest(container({"100"}, 0x2000, 8)), "570");
  EXPECT_EQ(lowest(container({"103"}, 0x2000, 8)), "575");
  EXPECT_EQ(lowest(container({"ptx80"})), "550");  // PTX 8.4
  const auto outcome = [](const FatbinContainer& c, ComputeCapability gpu, const char* driver) {
    return doctor::judge_container(c, gpu, support::parse_version(driver)).outcome;
  };
  EXPECT_EQ(outcome(container({"80"}), {8, 6}, "525.60.13"), GpuOutcome::kRuns);
  EXPECT_EQ(outcome(container({"80"}, 0x8000), {8, 6}, "535.129"), GpuOutcome::kZstdOldDriver);
  EXPECT_EQ(outcome(container({"80"}, 0x8000), {8, 6}, "550.54"), GpuOutcome::kRuns);
  EXPECT_EQ(outcome(container({"80"}, 0, 8), {8, 6}, "570.86"), GpuOutcome::kToolkitTooNew);
  EXPECT_EQ(outcome(container({"80"}, 0, 8), {8, 6}, "580.65"), GpuOutcome::kRuns);
  EXPECT_EQ(outcome(container({"ptx80"}), {9, 0}, "535.54"), GpuOutcome::kPtxTooNew);
  EXPECT_EQ(outcome(container({"ptx80"}), {9, 0}, "550.54"), GpuOutcome::kRunsAfterJit);
  EXPECT_EQ(outcome(container({"ptx80", "90a"}), {9, 0}, "535.54"), GpuOutcome::kRuns);
  EXPECT_EQ(outcome(container({"80"}), {9, 0}, ""), GpuOutcome::kNoCode);
  EXPECT_EQ(doctor::cuda_for_driver(support::parse_version("575.57")).text(), "12.9");
  EXPECT_EQ(doctor::cuda_for_driver(support::parse_version("595.45.04")).text(), "13.2");
  EXPECT_EQ(doctor::cuda_for_ptx(support::parse_version("9.3")).text(), "13.3");
  EXPECT_TRUE(doctor::driver_takes_ptx(support::parse_version("610.43.02"), support::parse_version("9.3")));
  EXPECT_FALSE(doctor::driver_takes_ptx(support::parse_version("595.58.03"), support::parse_version("9.3")));
  EXPECT_EQ(doctor::first_cuda_of(88).text(), "13.0");
  EXPECT_EQ(doctor::first_cuda_of(89).text(), "11.8");
}

TEST(Fatbin, FromNvcc) {
  const char* nvcc = "/usr/local/cuda/bin/nvcc";
  if (!std::filesystem::exists(nvcc)) GTEST_SKIP() << "no nvcc";
  fixtures::TempFolder folder;
  fixtures::write_file(
      folder / "k.cu",
      "extern \"C\" __global__ void k(float* x) { *x = 1; }\nvoid launch(float* x) { k<<<1, 1>>>(x); }\n");
  const std::string command =
      std::string(nvcc) +
      " -shared -Xcompiler -fPIC -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_80,code=compute_80 " +
      folder / "k.cu" + " -o " + folder / "k.so";
  try {
    fixtures::output_of(command + " 2>&1");
  } catch (const std::exception& e) {
    GTEST_SKIP() << "nvcc does not run here: " << e.what();
  }
  const doctor::Inspection found = doctor::inspect(folder / "k.so");
  const doctor::GpuFacts gpu = doctor::facts_of(found.binaries.at(0)).gpu;
  EXPECT_EQ(gpu.containers, 1u);
  EXPECT_EQ(gpu.empty_containers, 1u);
  EXPECT_TRUE(gpu.served.starts_with("8.0 (PTX)")) << gpu.served;
  EXPECT_NE(gpu.served.find("9.0,"), std::string::npos) << gpu.served;
  EXPECT_TRUE(found.problems.empty());
}

}  // namespace
