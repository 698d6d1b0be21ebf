// SPDX-License-Identifier: Apache-2.0
// `mica demo`: its flags, and its outcome as JSON.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/attention/demo.h"
#include "cli/verbs.h"
#include "mica/mica.h"

namespace cli {
namespace {

struct Options {
  DemoOptions demo;
  bool json = false;
};

nlohmann::json to_json(const std::optional<DemoMeasurement>& m) {
  if (!m) return nullptr;
  return {{"seconds", m->seconds}, {"extra_bytes", m->extra_bytes}, {"largest_error", m->error}, {"kernel", m->kernel}};
}

void print_json(const DemoOptions& options, const DemoOutcome& outcome) {
  nlohmann::json out = {{"device", outcome.machine}, {"version", mica_version()}, {"heads", options.heads},
                        {"dim", options.dim},        {"causal", options.causal},  {"threads", mica_get_num_threads()},
                        {"exact", outcome.exact},    {"plot", options.plot},      {"rows", nlohmann::json::array()}};
  for (const DemoRow& row : outcome.rows)
    out["rows"].push_back({{"length", row.length},
                           {"naive", to_json(row.naive)},
                           {"tiled", to_json(row.tiled)},
                           {"naive_why_not", row.naive_why_not},
                           {"naive_formula_bytes", row.naive_formula_bytes}});
  std::printf("%s\n", out.dump(2).c_str());
}

int run(const Options& options) {
  const DemoOutcome outcome = run_demo(options.demo, !options.json);
  if (options.json) print_json(options.demo, outcome);
  return outcome.exact ? kOk : kFailed;
}

}  // namespace

Verb demo_verb(Command& app) {
  auto options = std::make_shared<Options>();
  Command* verb = app.add_subcommand("demo", "The textbook's attention against tiles: time, memory, error, a plot");
  verb->add_option("--lengths", options->demo.lengths, "sequence lengths, growing")->delimiter(',')->type_name("N,N");
  verb->add_option("--heads", options->demo.heads, "heads")->capture_default_str();
  verb->add_option("--dim", options->demo.dim, "head dimension")->capture_default_str();
  verb->add_flag("--causal", options->demo.causal, "each row sees the keys up to its own");
  verb->add_option("--threads", options->demo.threads, "threads of both (0: all)")->capture_default_str();
  verb->add_option("--seconds", options->demo.seconds, "about how long it may take in all")
      ->range(1.0, 86400.0)
      ->capture_default_str();
  verb->add_option("--plot", options->demo.plot, "file for the plot")->capture_default_str();
  verb->add_flag("--json", options->json, "print JSON");
  verb->footer(
      "Examples:\n"
      "  mica demo\n"
      "  mica demo --causal --dim 128 --lengths 1024,4096,16384 --plot plot.svg\n"
      "Exit codes: 0 every tiled result is exact to rounding; 1 one is not; 2 it could not be measured.");
  return {verb, [options] { return run(*options); }};
}

}  // namespace cli
