// SPDX-License-Identifier: Apache-2.0
// Every conformance case, a test each: --gtest_filter='*paged*' picks by name. On the CPU by every instruction set that
// is here, or by the one that MICA_CPU_ISA names; or with MICA_TEST_BACKEND=cuda on GPU 0. MICA_CASES_FROM=1e8 and
// MICA_CASES_BELOW=1e8 leave out those with fewer or not fewer multiply-adds. Exit status 77 if this machine does not
// have what was asked for.
#include "conformance/conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "mica/mica.h"

namespace mica::conformance {
namespace {

std::unique_ptr<Memory> gpu;  // null: the CPU

// The instruction sets that the library has kernels for on this architecture. Engines for bf16 alone take nothing else:
// the other types run on the set before.
struct InstructionSet {
  const char* name;
  bool bf16_alone;
};
#if defined(__aarch64__)
constexpr InstructionSet kSets[] = {{"neon", false}, {"bfmmla", true}};
#else
constexpr InstructionSet kSets[] = {{"avx2", false}, {"avx512", false}, {"amx", true}};
#endif

// Forces the library's choice while it lives.
class Forced {
 public:
  explicit Forced(const std::string& set) {
    if (const char* before = std::getenv("MICA_CPU_ISA")) before_ = before;
    setenv("MICA_CPU_ISA", set.c_str(), 1);
  }
  ~Forced() { before_.empty() ? unsetenv("MICA_CPU_ISA") : setenv("MICA_CPU_ISA", before_.c_str(), 1); }
  Forced(const Forced&) = delete;
  Forced& operator=(const Forced&) = delete;

 private:
  std::string before_;
};

// "" if this machine has the instruction set that MICA_CPU_ISA names, else what the library says.
std::string missing_instruction_set() {
  if (!std::getenv("MICA_CPU_ISA")) return "";
  mica_attention a = MICA_ATTENTION_INIT;
  a.q = a.k = a.v = a.o = {MICA_FP32, 0, {1, 1, 1, 8}, {8, 8, 8, 1}};
  mica_plan* plan = nullptr;
  const mica_status status = mica_plan_create(&a, MICA_FORWARD, &plan);
  mica_plan_destroy(plan);
  return status == MICA_OK ? "" : mica_last_error();
}

std::vector<std::string> sets_for(const CaseInfo& info) {
  if (const char* wanted = std::getenv("MICA_CPU_ISA")) return {wanted};
  const bool is_bf16 = std::find(info.tags.begin(), info.tags.end(), "bf16") != info.tags.end();
  std::vector<std::string> sets;
  for (const InstructionSet& set : kSets) {
    const Forced forced(set.name);
    if ((is_bf16 || !set.bf16_alone) && missing_instruction_set().empty()) sets.push_back(set.name);
  }
  return sets;
}

void expect_passed(const Outcome& outcome) {
  EXPECT_EQ(outcome.status, Status::kPassed)
      << (outcome.status == Status::kSkipped ? "skipped, but the CPU runs everything: " : "") << outcome.message
      << "\nforward " << outcome.forward_kernel << ", backward " << outcome.backward_kernel;
  for (const Comparison& c : outcome.comparisons) EXPECT_LE(c.error, c.bound) << c.tensor;
}

class Conformance : public testing::TestWithParam<size_t> {};

TEST_P(Conformance, Case) {
  Case one(GetParam());
  if (gpu) {
    const Outcome outcome = one.run(*gpu);
    if (outcome.status == Status::kSkipped) GTEST_SKIP() << outcome.message;
    return expect_passed(outcome);
  }
  const std::vector<std::string> sets = sets_for(cases()[GetParam()]);
  ASSERT_FALSE(sets.empty());
  for (const std::string& set : sets) {
    SCOPED_TRACE(set);
    const Forced forced(set);
    expect_passed(one.run(host_memory()));
    // A few cases of every kind with fewer and with many more threads than the machine has.
    if (GetParam() % 11 != 0) continue;
    for (const int threads : {1, 3, 23}) {
      SCOPED_TRACE(std::to_string(threads) + " threads");
      mica_set_num_threads(threads);
      expect_passed(one.run(host_memory()));
    }
    mica_set_num_threads(0);
  }
}

std::vector<size_t> wanted_cases() {
  const char *from = std::getenv("MICA_CASES_FROM"), *below = std::getenv("MICA_CASES_BELOW");
  std::vector<size_t> wanted;
  for (const size_t n : select_cases("")) {
    const double cost = cases()[n].cost;
    if ((!from || cost >= std::atof(from)) && (!below || cost < std::atof(below))) wanted.push_back(n);
  }
  return wanted;
}

INSTANTIATE_TEST_SUITE_P(Case, Conformance, testing::ValuesIn(wanted_cases()),
                         [](const testing::TestParamInfo<size_t>& info) { return cases()[info.param].name; });

// So that a run's summary says which sets it had nothing to try on.
class ConformanceSet : public testing::TestWithParam<InstructionSet> {};

TEST_P(ConformanceSet, IsHere) {
  if (gpu || std::getenv("MICA_CPU_ISA")) return;
  const Forced forced(GetParam().name);
  const std::string missing = missing_instruction_set();
  if (!missing.empty()) GTEST_SKIP() << missing;
}

INSTANTIATE_TEST_SUITE_P(Set, ConformanceSet, testing::ValuesIn(kSets),
                         [](const testing::TestParamInfo<InstructionSet>& info) { return info.param.name; });

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

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::string reason = mica::conformance::missing_instruction_set();
  if (reason.empty()) reason = mica::conformance::open_backend();
  if (!reason.empty()) {
    std::printf("skipped: %s\n", reason.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
