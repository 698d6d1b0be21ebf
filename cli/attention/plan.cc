// SPDX-License-Identifier: Apache-2.0
// `mica plan`: what would run for a problem, and why the other kernels would not.
#include <cstdio>
#include <memory>

#include "cli/attention/problem.h"
#include "cli/text.h"
#include "cli/verbs.h"

namespace cli {
namespace {

struct Options {
  ProblemSpec problem;
  bool json = false;
};

int run(const Options& options) {
  const ProblemSpec& spec = options.problem;
  const mica_attention description = describe(spec);
  nlohmann::json out = {{"problem", problem_to_json(spec)}, {"name", problem_name(spec)}};
  mica_status status = MICA_OK;
  std::string message;
  try {
    const mica::Plan plan(description, spec.pass_value());
    out["plan"] = {{"kernel", plan.kernel()}, {"workspace_bytes", plan.workspace_bytes()}, {"splits", plan.splits()}};
  } catch (const mica::Error& e) {
    status = e.status();
    message = e.what();
    out["error"] = {{"status", mica_status_name(status)}, {"message", message}};
  }
  out["gflop"] = problem_flops(spec) * 1e-9;
  out["minimum_bytes"] = problem_bytes(spec);
  out["kernels"] = nlohmann::json::array();
  try {
    for (const mica::KernelAnswer& answer : mica::list_kernels(description, spec.pass_value()))
      out["kernels"].push_back({{"kernel", answer.kernel}, {"why_not", answer.why_not}});
  } catch (const mica::Error&) {
    // The plan failed for the same reason, and says so above.
  }

  if (options.json) {
    std::printf("%s\n", out.dump(2).c_str());
  } else if (status == MICA_ERROR_INVALID) {
    throw std::runtime_error(message);
  } else {
    std::printf("problem    %s\n", out["name"].get<std::string>().c_str());
    std::printf("work       %.3g GFLOP, at least %s moved\n", problem_flops(spec) * 1e-9,
                format_bytes(problem_bytes(spec)).c_str());
    if (status == MICA_OK) {
      std::printf("kernel     %s\n", out["plan"]["kernel"].get<std::string>().c_str());
      std::printf("workspace  %s\n", format_bytes(out["plan"]["workspace_bytes"].get<double>()).c_str());
      std::printf("splits     %d\n", out["plan"]["splits"].get<int>());
    } else {
      std::printf("kernel     none: %s\n", message.c_str());
    }
    if (!out["kernels"].empty()) {
      const std::string chosen = status == MICA_OK ? out["plan"]["kernel"].get<std::string>() : "";
      Table table({"every kernel", "answer"});
      for (const auto& k : out["kernels"]) {
        const std::string kernel = k["kernel"], why_not = k["why_not"];
        table.add({kernel, !why_not.empty() ? "no: " + why_not : (kernel == chosen ? "chosen" : "could run it")});
      }
      std::printf("\n%s", table.text().c_str());
    }
  }
  if (status == MICA_OK) return kOk;
  return status == MICA_ERROR_INVALID ? kCannotTell : kFailed;
}

}  // namespace

Verb plan_verb(Command& app) {
  auto options = std::make_shared<Options>();
  Command* verb = app.add_subcommand("plan", "What would run for a problem, and why the others would not");
  add_problem_flags(*verb, options->problem);
  verb->add_flag("--json", options->json, "print JSON");
  verb->footer(
      "Examples:\n"
      "  mica plan --seqlen-q 4096 --dim 128 --causal\n"
      "  mica plan --seqlen-q 1 --seqlen-k 8192 --heads-q 32 --heads-k 8 --dim 128     decode\n"
      "  mica plan --pass backward --dtype fp16 --window 256,0 --causal --sinks\n"
      "  mica plan --varlen 100,2000,37 --causal=top-left --json\n"
      "Exit codes: 0 a kernel runs it; 1 none does; 2 the problem makes no sense.");
  return {verb, [options] { return run(*options); }};
}

}  // namespace cli
