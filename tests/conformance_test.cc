// SPDX-License-Identifier: Apache-2.0
// Every conformance case, a test each: --gtest_filter='*paged*' picks by name. On the CPU, where MICA_CPU_ISA chooses
// the instruction set, or with MICA_TEST_BACKEND=cuda on GPU 0; exit status 77 if this machine does not have it.
#include "conformance/conformance.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "mica/mica.h"

namespace mica::conformance {
namespace {

class Conformance : public testing::TestWithParam<size_t> {};

std::unique_ptr<Memory> gpu;  // null: the CPU

TEST_P(Conformance, Case) {
  const Outcome outcome = run_case(GetParam(), gpu ? *gpu : host_memory());
  if (gpu && outcome.status == Status::kSkipped) GTEST_SKIP() << outcome.message;
  EXPECT_EQ(outcome.status, Status::kPassed)
      << (outcome.status == Status::kSkipped ? "skipped, but the CPU runs everything: " : "") << outcome.message
      << "\nforward " << outcome.forward_kernel << ", backward " << outcome.backward_kernel;
  for (const Comparison& c : outcome.comparisons) EXPECT_LE(c.error, c.bound) << c.tensor;
}

std::vector<size_t> all_cases() { return select_cases(""); }

INSTANTIATE_TEST_SUITE_P(Case, Conformance, testing::ValuesIn(all_cases()),
                         [](const testing::TestParamInfo<size_t>& info) { return cases()[info.param].name; });

// A few cases of every kind with fewer and with many more threads than the machine has.
TEST(ConformanceThreads, AnyNumber) {
  if (gpu) GTEST_SKIP() << "the CPU's threads";
  for (const int threads : {1, 3, 23}) {
    mica_set_num_threads(threads);
    for (size_t n = 0; n < cases().size(); n += 11) {
      const Outcome outcome = run_case(n, host_memory());
      EXPECT_EQ(outcome.status, Status::kPassed)
          << cases()[n].name << " with " << threads << " threads: " << outcome.message;
    }
  }
  mica_set_num_threads(0);
}

TEST(ConformanceTable, NamesAreUniqueAndMany) {
  std::set<std::string> names;
  for (const CaseInfo& info : cases()) EXPECT_TRUE(names.insert(info.name).second) << info.name;
  EXPECT_GT(names.size(), 500u);
}

TEST(ConformanceTable, SelectsByNameAndTag) {
  EXPECT_EQ(select_cases("").size(), cases().size());
  ASSERT_EQ(select_cases("^plain_fp32$").size(), 1u);
  EXPECT_EQ(cases()[select_cases("^plain_fp32$")[0]].name, "plain_fp32");
  const size_t paged = select_cases("^paged$").size();  // no case has this name: the tag matched
  EXPECT_GT(paged, 20u);
  EXPECT_TRUE(select_cases("no such case").empty());
}

}  // namespace

// "" if the backend that MICA_TEST_BACKEND asks for is here.
std::string open_backend() {
  const char* wanted = std::getenv("MICA_TEST_BACKEND");
  std::string why_not;
  if (wanted && std::string(wanted) == "cuda") gpu = cuda_memory(0, &why_not);
  return why_not;
}

}  // namespace mica::conformance

// "" if the instruction set that MICA_CPU_ISA forces is here, else what the library says.
std::string missing_instruction_set() {
  if (!std::getenv("MICA_CPU_ISA")) return "";
  mica_attention a = MICA_ATTENTION_INIT;
  a.q = a.k = a.v = a.o = {MICA_FP32, 0, {1, 1, 1, 8}, {8, 8, 8, 1}};
  mica_plan* plan = nullptr;
  const mica_status status = mica_plan_create(&a, MICA_FORWARD, &plan);
  mica_plan_destroy(plan);
  return status == MICA_OK ? "" : mica_last_error();
}

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::string reason = missing_instruction_set();
  if (reason.empty()) reason = mica::conformance::open_backend();
  if (!reason.empty()) {
    std::printf("skipped: %s\n", reason.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
