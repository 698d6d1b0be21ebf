// SPDX-License-Identifier: Apache-2.0
// `mica check`: the conformance cases on this machine.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/attention/against/against.h"
#include "cli/process.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "conformance/conformance.h"
#include "mica/mica.h"
#include "support/process.h"

namespace cli {
namespace {

using mica::conformance::cases;
using mica::conformance::Outcome;
using mica::conformance::Status;

struct Options {
  std::string filter, backend = "cpu", isa;
  int jobs = 0;
  bool list = false, json = false, verbose = false;
  AgainstOptions against;
};

const char* status_name(Status status) {
  return status == Status::kPassed ? "passed" : (status == Status::kSkipped ? "skipped" : "failed");
}

// On a terminal a bar that redraws itself; elsewhere a line for every tenth. Callers hold the lock.
class Progress {
 public:
  Progress(std::size_t total, bool quiet) : total_(total), quiet_(quiet), bar_(stdout_is_terminal()) {}

  void advance(const std::string& name) {
    ++done_;
    if (quiet_) return;
    if (bar_) {
      constexpr std::size_t kWidth = 30;
      const std::size_t filled = done_ * kWidth / total_;
      std::printf("\r[%s%s] %zu/%zu  %-40.40s", std::string(filled, '#').c_str(),
                  std::string(kWidth - filled, '.').c_str(), done_, total_, name.c_str());
    } else if (done_ * 10 / total_ != (done_ - 1) * 10 / total_) {
      std::printf("%zu/%zu\n", done_, total_);
    }
    std::fflush(stdout);
  }

  // A line of its own, above the bar.
  void say(const std::string& line) {
    if (quiet_) return;
    if (bar_) std::printf("\r%79s\r", "");
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

  void finish() {
    if (!quiet_ && bar_) std::printf("\r%79s\r", "");
  }

 private:
  std::size_t total_, done_ = 0;
  bool quiet_, bar_;
};

nlohmann::json to_json(const std::string& name, const Outcome& outcome) {
  nlohmann::json out = {{"name", name}, {"status", status_name(outcome.status)}, {"seconds", outcome.seconds}};
  if (!outcome.message.empty()) out["message"] = outcome.message;
  if (!outcome.forward_kernel.empty()) out["forward_kernel"] = outcome.forward_kernel;
  if (!outcome.backward_kernel.empty()) out["backward_kernel"] = outcome.backward_kernel;
  for (const auto& c : outcome.comparisons)
    out["comparisons"].push_back(
        {{"tensor", c.tensor}, {"error", c.error}, {"naive_error", c.naive_error}, {"bound", c.bound}});
  return out;
}

int list_cases(const std::vector<std::size_t>& selected, bool json) {
  nlohmann::json out = nlohmann::json::array();
  for (const std::size_t index : selected) {
    out.push_back({{"name", cases()[index].name}, {"tags", cases()[index].tags}});
    if (!json) std::printf("%s\n", cases()[index].name.c_str());
  }
  if (json) std::printf("%s\n", out.dump(2).c_str());
  return kOk;
}

std::string where(mica_device device, const Options& options) {
  const char* text = mica_device_description(device);
  if (!text) throw std::runtime_error(mica_last_error());
  return options.backend + ", " + text;
}

// A misspelt instruction set would fail every case alike: one line instead.
void require_known_isa() {
  mica_attention a = MICA_ATTENTION_INIT;
  a.q = a.k = a.v = a.o = {MICA_FP32, 0, {1, 1, 1, 1}, {1, 1, 1, 1}};
  mica_plan* plan = nullptr;
  if (mica_plan_create(&a, MICA_FORWARD, &plan) == MICA_ERROR_INVALID) throw std::runtime_error(mica_last_error());
  mica_plan_destroy(plan);
}

std::vector<std::size_t> select(const std::string& filter) {
  try {
    return mica::conformance::select_cases(filter);
  } catch (const std::invalid_argument& e) {
    throw std::runtime_error(std::string("--filter: ") + e.what());
  }
}

int run(const Options& options) {
  const std::vector<std::size_t> selected = select(options.filter);
  if (selected.empty()) throw std::runtime_error("no case matches '" + options.filter + "' (see mica check --list)");
  if (options.list) return list_cases(selected, options.json);
  // Before the library looks at its backends for the first time.
  if (!options.isa.empty()) setenv("MICA_CPU_ISA", options.isa.c_str(), 1);
  std::unique_ptr<mica::conformance::Memory> gpu;
  std::string why_not;
  if (options.backend == "cuda") gpu = mica::conformance::cuda_memory(0, &why_not);
  if (options.backend == "cuda" && !gpu) throw std::runtime_error(why_not);
  mica::conformance::Memory& memory = gpu ? *gpu : mica::conformance::host_memory();
  const std::string device = where(memory.device(), options);
  if (!gpu) require_known_isa();
  if (!options.json) std::printf("%zu cases on %s\n", selected.size(), device.c_str());

  // Heavy cases first, so that no thread ends alone with one.
  std::vector<std::size_t> order = selected;
  std::stable_sort(order.begin(), order.end(),
                   [](std::size_t a, std::size_t b) { return cases()[a].cost > cases()[b].cost; });
  std::map<std::size_t, Outcome> outcomes;
  Progress progress(order.size(), options.json);
  std::mutex mutex;
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t n; (n = next++) < order.size();) {
      const std::string& name = cases()[order[n]].name;
      Outcome outcome;
      try {
        outcome = mica::conformance::run_case(order[n], memory);
      } catch (const std::exception& e) {
        outcome.status = Status::kFailed;
        outcome.message = e.what();
      }
      const std::lock_guard lock(mutex);
      if (outcome.status == Status::kFailed)
        progress.say("FAILED  " + name + ": " + outcome.message);
      else if (options.verbose)
        progress.say(format("%-7s %s %s %s", status_name(outcome.status), name.c_str(), outcome.forward_kernel.c_str(),
                            outcome.message.c_str()));
      progress.advance(name);
      outcomes[order[n]] = std::move(outcome);
    }
  };
  const double begin = support::monotonic_seconds();
  const int jobs = options.jobs > 0 ? options.jobs : int(std::max(1u, std::thread::hardware_concurrency()));
  {
    std::vector<std::jthread> threads;
    for (int t = 1; t < jobs; ++t) threads.emplace_back(work);
    work();
  }
  const double seconds = support::monotonic_seconds() - begin;
  progress.finish();

  std::map<Status, std::size_t> count;
  std::map<std::string, std::size_t> skipped, kernels;
  for (const auto& [index, outcome] : outcomes) {
    ++count[outcome.status];
    if (outcome.status == Status::kSkipped) ++skipped[outcome.message];
    for (const std::string& kernel : {outcome.forward_kernel, outcome.backward_kernel})
      if (!kernel.empty()) ++kernels[kernel];
  }
  if (options.json) {
    nlohmann::json out = {{"device", device},
                          {"version", mica_version()},
                          {"passed", count[Status::kPassed]},
                          {"failed", count[Status::kFailed]},
                          {"skipped", count[Status::kSkipped]},
                          {"seconds", seconds},
                          {"kernels", kernels},
                          {"cases", nlohmann::json::array()}};
    for (const auto& [index, outcome] : outcomes) out["cases"].push_back(to_json(cases()[index].name, outcome));
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    for (const auto& [reason, times] : skipped) std::printf("skipped %zu: %s\n", times, reason.c_str());
    for (const auto& [kernel, times] : kernels) std::printf("%6zu runs of %s\n", times, kernel.c_str());
    std::printf("%zu passed, %zu failed, %zu skipped in %s\n", count[Status::kPassed], count[Status::kFailed],
                count[Status::kSkipped], format_seconds(seconds).c_str());
  }
  if (count[Status::kFailed]) return kFailed;
  return count[Status::kPassed] ? kOk : kCannotTell;
}

}  // namespace

Verb check_verb(Command& app) {
  auto options = std::make_shared<Options>();
  Command* verb = app.add_subcommand("check", "Run the conformance cases on this machine");
  verb->add_option("--filter", options->filter, "only cases whose name or tag matches this regular expression")
      ->type_name("REGEX");
  verb->add_option("--backend", options->backend, "where to run them")->one_of({"cpu", "cuda"})->capture_default_str();
  verb->add_option("--isa", options->isa, "CPU instruction set, as MICA_CPU_ISA (see mica info)")->type_name("NAME");
  verb->add_option("--jobs", options->jobs, "cases at a time (0: as many as there are cores)")
      ->range(0, 1024)
      ->capture_default_str();
  // Who asks for --device cuda alone, as other verbs take it, shall not read that all is well on a CPU.
  const Option* against =
      verb->add_option("--against", options->against.package,
                       "instead: the attention of an installed package beside an exact one, forward and backward")
          ->one_of({"flash_attn", "flash_attn_3", "xformers", "sdpa"});
  verb->add_option("--python", options->against.python,
                   "with --against: the Python that has it (default: the active one)")
      ->type_name("PATH")
      ->needs(against);
  verb->add_option("--device", options->against.device, "with --against: where it computes (without: --backend)")
      ->one_of({"auto", "cuda", "cpu"})
      ->capture_default_str()
      ->needs(against);
  verb->add_flag("--list", options->list, "print the names of the cases and stop");
  verb->add_flag("--verbose", options->verbose, "a line for every case");
  verb->add_flag("--json", options->json, "print JSON");
  verb->footer(
      "A case passes if its error against a double-precision reference is at most twice that of naive attention in "
      "the\n"
      "same precision, plus a floor; and if nothing but the outputs was written.\n"
      "Examples:\n"
      "  mica check\n"
      "  mica check --filter 'paged.*bf16'\n"
      "  mica check --filter backward --json\n"
      "  mica check --against flash_attn --python ~/venv\n"
      "Exit codes: 0 all that ran passed; 1 a case failed; 2 none could be run.");
  return {verb, [options] {
            return options->against.package.empty() ? run(*options) : check_against(options->against, options->json);
          }};
}

}  // namespace cli
