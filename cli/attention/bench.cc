// SPDX-License-Identifier: Apache-2.0
// `mica bench`: times the cases of a suite. A case that fails its check is not timed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>

#include "cli/attention/device_memory.h"
#include "cli/attention/suite.h"
#include "cli/attention/workload.h"
#include "cli/process.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "commit.h"
#include "support/process.h"

namespace cli {
namespace {

struct Options {
  std::string suite, filter, device, output;
  int threads = 0;
  double seconds = 1;
  bool list = false, json = false;
};

struct Timing {
  double median, p10, p90;  // seconds
  int samples;
};

// Samples of at least a millisecond each (short cases are repeated inside one), for about `seconds`, at least 5.
Timing time_workload(const Workload& workload, double seconds) {
  const auto run = [&](int repetitions) {
    const double begin = support::monotonic_seconds();
    for (int r = 0; r < repetitions; ++r) workload.execute();
    workload.synchronise();
    return support::monotonic_seconds() - begin;
  };
  int repetitions = 1;  // warm-up, which also finds out how many make a millisecond
  while (run(repetitions) < 1e-3 && repetitions < (1 << 20)) repetitions *= 2;
  std::vector<double> samples;
  const double begin = support::monotonic_seconds();
  do samples.push_back(run(repetitions) / repetitions);
  while (samples.size() < 5 || (support::monotonic_seconds() - begin < seconds && samples.size() < 1000));
  std::sort(samples.begin(), samples.end());
  const auto quantile = [&](double q) { return samples[std::size_t(std::lround(q * double(samples.size() - 1)))]; };
  return {quantile(0.5), quantile(0.1), quantile(0.9), int(samples.size())};
}

// One row or few rows per key: the memory is the limit, and GB/s the figure to look at.
bool is_memory_bound(const ProblemSpec& spec) { return problem_flops(spec) / problem_bytes(spec) < 16; }

int list_cases(const Suite& suite, bool json) {
  nlohmann::json out = nlohmann::json::array();
  for (const ProblemSpec& spec : suite.cases) {
    out.push_back({{"name", problem_name(spec)}, {"problem", problem_to_json(spec)}});
    if (!json) std::printf("%s\n", problem_name(spec).c_str());
  }
  if (json) std::printf("%s\n", out.dump(2).c_str());
  return kOk;
}

int run(const Options& options) {
  if (mica_set_num_threads(options.threads) != MICA_OK) throw std::runtime_error(mica_last_error());
  Suite suite = load_suite(options.suite);
  if (!options.filter.empty()) {
    try {
      const std::regex pattern(options.filter);
      std::erase_if(suite.cases, [&](const ProblemSpec& s) { return !std::regex_search(problem_name(s), pattern); });
    } catch (const std::regex_error&) {
      throw std::runtime_error("--filter is '" + options.filter + "', want a regular expression");
    }
  }
  if (suite.cases.empty())
    throw std::runtime_error("no case of suite " + suite.name + " matches '" + options.filter + "' (see --list)");
  if (!options.device.empty())
    for (ProblemSpec& spec : suite.cases) spec.device = options.device;
  if (options.list) return list_cases(suite, options.json);
  if (!options.output.empty()) require_writable(options.output);
  const char* description = mica_device_description(parse_device(suite.cases[0].device));
  if (!description) throw std::runtime_error(mica_last_error());
  nlohmann::json out = {{"device", description}, {"version", mica_version()},
                        {"commit", MICA_COMMIT}, {"threads", mica_get_num_threads()},
                        {"suite", suite.name},   {"cases", nlohmann::json::array()}};
  const char* line = "%-52s %9s %9s %9s %11s  %s\n";
  if (!options.json) {
    std::printf("%s, Mica %s, suite %s: %zu cases\n\n", description, mica_version(), suite.name.c_str(),
                suite.cases.size());
    std::printf(line, "case", "median", "p10", "p90", "rate", "kernel");
    std::fflush(stdout);
  }
  bool all_right = true;
  for (const ProblemSpec& spec : suite.cases) {
    const std::string name = problem_name(spec);
    nlohmann::json entry = {{"name", name}, {"problem", problem_to_json(spec)}};
    try {
      DeviceMemory memory(parse_device(spec.device));
      Workload workload(spec, memory.get());
      if (const std::string wrong = workload.check(); !wrong.empty()) throw std::runtime_error(wrong);
      const Timing t = time_workload(workload, options.seconds);
      const double gflops = problem_flops(spec) / t.median * 1e-9, gbytes = problem_bytes(spec) / t.median * 1e-9;
      entry.update({{"kernel", workload.plan().kernel()},
                    {"splits", workload.plan().splits()},
                    {"workspace_bytes", workload.plan().workspace_bytes()},
                    {"median_s", t.median},
                    {"p10_s", t.p10},
                    {"p90_s", t.p90},
                    {"samples", t.samples},
                    {"gflops", gflops},
                    {"gbytes_per_s", gbytes}});
      if (!options.json)
        std::printf(
            line, name.c_str(), format_seconds(t.median).c_str(), format_seconds(t.p10).c_str(),
            format_seconds(t.p90).c_str(),
            is_memory_bound(spec) ? format("%.1f GB/s", gbytes).c_str() : format("%.0f GFLOP/s", gflops).c_str(),
            workload.plan().kernel());
    } catch (const std::exception& e) {
      all_right = false;
      entry["error"] = e.what();
      if (!options.json) std::printf("%-52s not timed: %s\n", name.c_str(), e.what());
    }
    std::fflush(stdout);
    out["cases"].push_back(entry);
  }
  if (options.json) std::printf("%s\n", out.dump(2).c_str());
  if (!options.output.empty()) {
    std::ofstream file(options.output);
    if (!(file << out.dump(2) << "\n").flush()) throw std::runtime_error("cannot write " + options.output);
  }
  return all_right ? kOk : kFailed;
}

}  // namespace

Verb bench_verb(Command& app) {
  auto options = std::make_shared<Options>();
  Command* verb = app.add_subcommand("bench", "Time the cases of a suite");
  verb->add_option("--suite", options->suite, "JSON file with cases (see bench/suites; default: cpu, built in)")
      ->type_name("FILE");
  verb->add_option("--filter", options->filter, "only cases whose name matches this regular expression")
      ->type_name("REGEX");
  verb->add_option("--device", options->device, "cpu, cuda or cuda:N, instead of what the suite says");
  verb->add_option("--threads", options->threads, "threads (0: all)")->capture_default_str();
  verb->add_option("--seconds", options->seconds, "about how long to time each case")
      ->range(0.0, 3600.0)
      ->capture_default_str();
  verb->add_option("--output", options->output, "also write the JSON to this file")->type_name("FILE");
  verb->add_flag("--list", options->list, "print the names of the cases and stop");
  verb->add_flag("--json", options->json, "print JSON instead of the table");
  verb->footer(
      "Examples:\n"
      "  mica bench\n"
      "  mica bench --filter 'bf16.*causal' --threads 1\n"
      "  mica bench --suite bench/suites/options.json --output options.json\n"
      "Rates count visible pairs alone. Exit codes: 0 every case was right and timed; 1 one was not; 2 bad usage.");
  return {verb, [options] { return run(*options); }};
}

}  // namespace cli
