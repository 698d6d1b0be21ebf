// SPDX-License-Identifier: Apache-2.0
// What is decided before a build: toolkit, architectures, ABI, compilers, how many at a time; and when it is refused.
#include "builder/plan/plan.h"

#include <gtest/gtest.h>

#include "builder/plan/architectures.h"
#include "builder/plan/forecast.h"
#include "builder/plan/parallel.h"
#include "builder/run/failure.h"
#include "builder/run/progress.h"
#include "doctor/facts/mangled.h"
#include "doctor/facts/toolchain.h"

namespace builder {
namespace {

constexpr uint64_t kGiB = uint64_t(1) << 30;

PlanInputs inputs(const std::string& cuda = "12.8") {
  PlanInputs in;
  in.package = "flash-attn";
  in.here.name = "this machine";
  in.here.machine = "x86_64";
  in.here.python.emplace();
  in.here.python->version = support::parse_version("3.12.4");
  in.here.torch.emplace();
  in.here.torch->version = "2.8.0+cu128";
  in.here.torch->cuda_version = cuda;
  in.here.torch->cxx_abi = doctor::CxxAbi::kNew;
  in.here.gpus_known = true;
  in.here.gpus = {{"NVIDIA H200", {9, 0}}, {"NVIDIA H200", {9, 0}}};
  in.target = in.here;
  in.toolkits = {{"/usr/local/cuda-12.4", support::parse_version("12.4"), 13},
                 {"/usr/local/cuda-12.9", support::parse_version("12.9"), 14},
                 {"/usr/local/cuda-13.0", support::parse_version("13.0"), 15}};
  in.first_nvcc = "/usr/local/cuda-13.0";
  in.host_compilers = {{"gcc", "g++", support::parse_version("12.2.0")}};
  in.cores = 16;
  in.memory_bytes = 64 * kGiB;
  in.memory_from = "test";
  return in;
}

std::string code_of(const Plan& plan) {
  for (const auto& verdict : plan.verdicts)
    if (verdict.severity == doctor::Severity::kError) return verdict.code.text();
  return "";
}
std::string value_of(const Plan& plan, const std::string& name) {
  for (const Setting& setting : plan.settings)
    if (setting.name == name) return setting.removed ? "(removed)" : setting.value;
  return "(not set)";
}
std::string why(const Plan& plan, const std::string& what) {
  for (const Decision& decision : plan.decisions)
    if (decision.what == what) return decision.why;
  return "";
}

TEST(Plan, TakesTheToolkitOfTorchAndNotTheFirstOnPath) {
  const Plan plan = make_plan(inputs());
  ASSERT_FALSE(plan.refused()) << plan.verdicts[0].message;
  EXPECT_EQ(plan.toolkit.folder, "/usr/local/cuda-12.9");  // nearest to 12.8
  EXPECT_NE(why(plan, "toolkit").find("/usr/local/cuda-13.0, is not used"), std::string::npos) << why(plan, "toolkit");
  EXPECT_EQ(value_of(plan, "CUDA_HOME"), "/usr/local/cuda-12.9");
  EXPECT_EQ(value_of(plan, "FLASH_ATTENTION_FORCE_BUILD"), "TRUE");
  EXPECT_EQ(value_of(plan, "FLASH_ATTENTION_SKIP_CUDA_BUILD"), "(removed)");
  EXPECT_EQ(value_of(plan, "FLASH_ATTN_CUDA_ARCHS"), "90");
  EXPECT_EQ(value_of(plan, "TORCH_CUDA_ARCH_LIST"), "9.0");
  EXPECT_EQ(plan.gencode(), std::vector<std::string>{"arch=compute_90,code=sm_90"});
  EXPECT_EQ(plan.cxx_abi, 1);
  EXPECT_EQ(plan.jobs, 8);  // 57.6 GiB of 64 at 7.03 GiB each
  EXPECT_EQ(value_of(plan, "MAX_JOBS"), "8");
  EXPECT_EQ(value_of(plan, "LC_ALL"), "C");
  EXPECT_EQ(plan.nvcc_threads, 1);
}

TEST(Plan, TheAbiIsTorchs) {
  PlanInputs in = inputs();
  in.here.torch->cxx_abi = in.target.torch->cxx_abi = doctor::CxxAbi::kOld;
  EXPECT_EQ(make_plan(in).cxx_abi, 0);
  in.here.torch->cxx_abi = in.target.torch->cxx_abi = doctor::CxxAbi::kUnknown;
  EXPECT_EQ(make_plan(in).cxx_abi, -1);
}

TEST(Plan, RefusesWithTheReason) {
  PlanInputs in = inputs("11.8");
  Plan plan = make_plan(in);
  EXPECT_EQ(code_of(plan), "BUILD_CUDA_MAJOR_MISMATCH");
  EXPECT_NE(plan.verdicts[0].fix.find("11.8"), std::string::npos);
  EXPECT_EQ(plan.verdicts[0].evidence.size(), 3u);  // each toolkit and what is wrong with it

  in = inputs();
  in.toolkits.clear();
  EXPECT_EQ(code_of(make_plan(in)), "BUILD_NVCC_MISSING");

  in = inputs();
  in.architectures = "12.0";
  in.toolkits.resize(1);
  plan = make_plan(in);
  EXPECT_EQ(code_of(plan), "BUILD_ARCH_UNSUPPORTED_BY_NVCC");
  EXPECT_NE(plan.verdicts[0].evidence[0].find("12.8 or later"), std::string::npos) << plan.verdicts[0].evidence[0];

  in = inputs();
  in.target.gpus.clear();
  EXPECT_EQ(code_of(make_plan(in)), "BUILD_NO_ARCH");
  in.architectures = "9.0";
  EXPECT_EQ(code_of(make_plan(in)), "");

  in = inputs();
  in.architectures = "7.5";
  EXPECT_EQ(code_of(make_plan(in)), "GPU_TOO_OLD");

  in = inputs();
  in.here.torch->cuda_version = in.target.torch->cuda_version = "";
  EXPECT_EQ(code_of(make_plan(in)), "BUILD_CUDA_MAJOR_MISMATCH");

  in = inputs();
  in.here.torch.reset();
  EXPECT_EQ(code_of(make_plan(in)), "TORCH_MISSING");

  in = inputs();
  in.host_compilers = {{"gcc", "g++", support::parse_version("15.1")}};
  plan = make_plan(in);
  EXPECT_EQ(code_of(plan), "BUILD_HOST_COMPILER");
  EXPECT_NE(plan.verdicts[0].evidence[0].find("up to 14"), std::string::npos);
  EXPECT_NE(plan.verdicts[0].fix.find("apt-get install g++-12"), std::string::npos) << plan.verdicts[0].fix;
  for (Toolkit& toolkit : in.toolkits) toolkit.most_gcc = 11;
  EXPECT_EQ(make_plan(in).verdicts[0].fix, "install g++-11 (Debian and Ubuntu: apt-get install g++-11)");
}

TEST(Plan, AnotherHostCompilerThatSuitsIsTaken) {
  PlanInputs in = inputs();
  in.host_compilers = {{"gcc", "g++", support::parse_version("15.1")},
                       {"gcc-12", "g++-12", support::parse_version("12.2")}};
  const Plan plan = make_plan(in);
  EXPECT_EQ(code_of(plan), "");
  EXPECT_EQ(value_of(plan, "CXX"), "g++-12");
  EXPECT_EQ(value_of(plan, "CC"), "gcc-12");
  EXPECT_EQ(value_of(plan, "NVCC_PREPEND_FLAGS"), "-ccbin g++-12");
}

TEST(Plan, TheTargetMustMatchWhatBuilds) {
  PlanInputs in = inputs();
  in.target.name = "gpu-node.json";
  in.target.torch->version = "2.9.1+cu128";
  Plan plan = make_plan(in);
  EXPECT_TRUE(plan.refused());
  EXPECT_EQ(plan.verdicts[0].message, "torch here is 2.8, in gpu-node.json 2.9");
  in = inputs();
  in.target.machine = "aarch64";
  EXPECT_TRUE(make_plan(in).refused());
  in = inputs();
  in.target.python->version = support::parse_version("3.11.9");
  EXPECT_TRUE(make_plan(in).refused());
  in = inputs();
  in.target.gpus = {{"NVIDIA A100", {8, 0}}};  // the GPUs are the target's
  EXPECT_EQ(make_plan(in).gencode(), std::vector<std::string>{"arch=compute_80,code=sm_80"});
}

TEST(Plan, WithoutCudaFilesNothingOfCudaIsNeeded) {
  PlanInputs in = inputs();
  in.package = "other";
  in.source_seen = true;
  in.toolkits.clear();
  in.target.gpus.clear();
  const Plan plan = make_plan(in);
  EXPECT_EQ(code_of(plan), "");
  EXPECT_FALSE(plan.cuda);
  EXPECT_EQ(value_of(plan, "CUDA_HOME"), "(not set)");
  in.cuda_files = 3;
  EXPECT_EQ(code_of(make_plan(in)), "BUILD_NO_ARCH");
  in.here.torch->cuda_version = in.target.torch->cuda_version = "";
  EXPECT_FALSE(make_plan(in).cuda);  // a torch for the CPU: setup.py decides what is left
}

TEST(Plan, OneWheelForAFleet) {
  PlanInputs in = inputs();
  in.target.gpus = {{"NVIDIA A100", {8, 0}}, {"NVIDIA L40S", {8, 9}}};
  in.others = {in.here, in.here};
  in.others[0].gpus = {{"NVIDIA H200", {9, 0}}};
  in.others[1].gpus = {{"Tesla V100", {7, 0}}, {"NVIDIA A40", {8, 6}}};
  const Plan plan = make_plan(in);
  ASSERT_FALSE(plan.refused()) << plan.verdicts[0].message;
  EXPECT_EQ(plan.gencode(), (std::vector<std::string>{"arch=compute_80,code=sm_80", "arch=compute_90,code=sm_90"}));
  EXPECT_EQ(
      why(plan, "architectures"),
      "the least that runs on all 3 targets: exact for 8.0, 9.0; 8.6 runs the code of 8.0; 8.9 runs the code of 8.0");
  // What the project does not support is said, and does not stop the others.
  ASSERT_EQ(plan.verdicts.size(), 1u);
  EXPECT_EQ(plan.verdicts[0].message, "nodes with GPUs of 7.0 are left out");
  // One that has another torch cannot share the wheel.
  in.others[0].torch->version = "2.9.0+cu128";
  EXPECT_EQ(code_of(make_plan(in)), "CANNOT_TELL");
}

TEST(Plan, WhatIsToBeFetchedIsSaidAndUsed) {
  PlanInputs in = inputs("13.2");
  in.toolkits = {
      {"/shared/toolchains/cuda-13.2/nvidia/cu13", support::parse_version("13.2"), 15, "pip: nvidia-cuda-nvcc"}};
  in.host_compilers = {{"/shared/toolchains/gcc-12/bin/gcc", "/shared/toolchains/gcc-12/bin/g++",
                        support::parse_version("12"), true, "apt-get download g++-12"}};
  const Plan plan = make_plan(in);
  ASSERT_FALSE(plan.refused()) << plan.verdicts[0].message;
  EXPECT_NE(why(plan, "toolkit").find("fetched into that folder by pip: nvidia-cuda-nvcc"), std::string::npos);
  EXPECT_NE(why(plan, "host compiler").find("fetched by apt-get download g++-12"), std::string::npos);
  EXPECT_EQ(value_of(plan, "NVCC_PREPEND_FLAGS"),
            "-ccbin /shared/toolchains/gcc-12/bin/g++");  // it is on nobody's PATH
}

TEST(Forecast, FollowsJobsAndArchitectures) {
  Plan plan;
  plan.recipe = &recipe_of("flash-attn");
  plan.jobs = 8;
  plan.job_bytes = 7 * kGiB;
  plan.architectures = {{{80, 0}, false}, {{90, 0}, false}};
  const Forecast known = forecast(plan, "flash-attn", {});
  EXPECT_NEAR(known.seconds, 21'500.0 * 2 / 8, 1);
  EXPECT_EQ(known.peak_bytes, 56 * kGiB);
  EXPECT_EQ(known.wheel_bytes, 2u * 62'153'028);
  // A build that was really made here counts more, and the last one most.
  const RecordedBuild old = {"flash-attn", "2.7.4", "/work", 9000, 4, 1, 20 * kGiB, 50'000'000};
  const RecordedBuild last = {"flash-attn", "2.8.3", "/work", 6000, 4, 1, 24 * kGiB, 60'000'000};
  const Forecast own = forecast(plan, "flash-attn", {old, last, {"other", "1", "/work", 1, 1, 1, 1, 1}});
  EXPECT_NEAR(own.seconds, 6000, 1);
  EXPECT_EQ(own.peak_bytes, 48 * kGiB);
  EXPECT_EQ(own.wheel_bytes, 120'000'000u);
  EXPECT_EQ(own.from, "2 builds recorded in /work, the last of 2.8.3");
  // Nothing recorded: nothing foretold.
  plan.recipe = &recipe_of("somebodys-extension");
  EXPECT_TRUE(forecast(plan, "somebodys-extension", {last}).from.empty());
}

TEST(Architectures, TheSmallestSetForAFleet) {
  const FleetArchitectures fleet = smallest_set({{9, 0}, {8, 6}, {8, 9}, {8, 7}, {8, 6}, {12, 1}, {12, 0}});
  std::vector<std::string> exact, compatible;
  for (const auto& gpu : fleet.exact) exact.push_back(gpu.text());
  for (const auto& [gpu, by] : fleet.compatible) compatible.push_back(gpu.text() + " by " + by.text());
  EXPECT_EQ(exact, (std::vector<std::string>{"8.6", "8.7", "9.0", "12.0"}));  // 8.7 is a Tegra's: alone
  EXPECT_EQ(compatible, (std::vector<std::string>{"8.9 by 8.6", "12.1 by 12.0"}));
  EXPECT_TRUE(smallest_set({}).needed.empty());
}

TEST(Architectures, AreWrittenAsTorchWritesThem) {
  const auto list = parse_architectures("8.0;9.0a 12.0+PTX,10.3f");
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(list[1].arch.text(), "sm_90a");
  EXPECT_TRUE(list[2].ptx);
  EXPECT_EQ(list[3].arch.text(), "sm_103f");
  for (const char* bad : {"", "80", "sm_90", "9.", ".0", "9.0b", "9.0+ptx", "9.00", "123.0", "8.0,,x"})
    EXPECT_THROW(parse_architectures(bad), std::runtime_error) << bad;
  Plan plan;
  plan.architectures = parse_architectures("9.0a+PTX");
  EXPECT_EQ(plan.gencode(),
            (std::vector<std::string>{"arch=compute_90a,code=sm_90a", "arch=compute_90a,code=compute_90a"}));
}

TEST(Architectures, NvccKnowsThemFromAndUntil) {
  const auto says = [](const char* nvcc, int sm, char suffix = 0) {
    return doctor::why_nvcc_cannot(support::parse_version(nvcc), {sm, suffix});
  };
  EXPECT_EQ(says("12.4", 90, 'a'), "");
  EXPECT_NE(says("12.4", 120), "");
  EXPECT_EQ(says("12.8", 120), "");
  EXPECT_NE(says("12.8", 120, 'f'), "");
  EXPECT_EQ(says("12.9", 70), "");
  EXPECT_NE(says("13.0", 70), "");
  EXPECT_EQ(says("13.0", 75), "");
  EXPECT_NE(says("13.0", 42), "");
}

TEST(Jobs, FollowMemoryAndCores) {
  Parallelism p;
  p.cores = 16;
  p.memory_bytes = 32 * kGiB;
  p.memory_from = "the control group's limit";
  p.job_bytes = 7 * kGiB;
  p.files = 72;
  EXPECT_EQ(choose_jobs(p).jobs, 4);
  EXPECT_EQ(choose_jobs(p).nvcc_threads, 1);
  EXPECT_NE(choose_jobs(p).why.find("control group"), std::string::npos);
  p.memory_bytes = 1000 * kGiB;
  EXPECT_EQ(choose_jobs(p).jobs, 16);
  p.memory_bytes = 4 * kGiB;
  EXPECT_EQ(choose_jobs(p).jobs, 1);
  EXPECT_FALSE(choose_jobs(p).warning.empty());
  p.memory_bytes = 0;  // not known
  EXPECT_EQ(choose_jobs(p).jobs, 16);
  p.memory_bytes = 64 * kGiB;
  p.job_bytes = 3 * kGiB;
  p.files = 3;
  p.architectures = 2;
  EXPECT_EQ(choose_jobs(p).jobs, 3);
  EXPECT_EQ(choose_jobs(p).nvcc_threads, 2);
  p.memory_bytes = 16 * kGiB;  // 4 compilers hold, 3 files: no second thread
  EXPECT_EQ(choose_jobs(p).nvcc_threads, 1);
  p.wanted_jobs = 9;
  EXPECT_EQ(choose_jobs(p).jobs, 9);
  EXPECT_FALSE(choose_jobs(p).warning.empty());
  EXPECT_EQ(fewer_jobs(9), 4);
  EXPECT_EQ(fewer_jobs(1), 0);
}

TEST(Progress, CountsOverSeveralStarts) {
  ProgressReader first(0, 0);
  first.read("running build_ext\n[1/4] nvcc a.cu\n[2/");
  EXPECT_EQ(first.done(), 1);
  EXPECT_EQ(first.total(), 4);
  first.read("4] nvcc b.cu\n[not/4] x\n[9/4] y\n");
  EXPECT_EQ(first.done(), 2);
  EXPECT_EQ(first.seconds_left(60), 60);
  ProgressReader second(first.total(), first.done());
  EXPECT_EQ(second.done(), 2);
  EXPECT_LT(second.seconds_left(1), 0);
  second.read("[1/2] nvcc c.cu\n");
  EXPECT_EQ(second.done(), 3);
  EXPECT_EQ(second.total(), 4);
}

TEST(Failure, TheFirstComplaintOfACompilerMatters) {
  const std::string log =
      "mica: refused to download http://x: this builds from source\n"
      "urllib.error.HTTPError: HTTP Error 404: mica build downloads nothing while it compiles\n"
      "During handling of the above exception, another exception occurred:\n"
      "[1/3] nvcc a.cu -DTEXT=error\n"
      "a.cu(12): error: identifier \"x\" is undefined\n"
      "b.cu(1): error: later\n"
      "RuntimeError: Error compiling objects for extension\n";
  EXPECT_EQ(error_line(log), "a.cu(12): error: identifier \"x\" is undefined");
  EXPECT_EQ(error_line("ninja: error: 'a.cu', needed by 'a.o', missing\nRuntimeError: x\n"),
            "ninja: error: 'a.cu', needed by 'a.o', missing");
  EXPECT_EQ(error_line("ok\nModuleNotFoundError: No module named 'numpy'\n"),
            "ModuleNotFoundError: No module named 'numpy'");
  EXPECT_EQ(error_line("all is well\n"), "");
}

}  // namespace
}  // namespace builder
