// SPDX-License-Identifier: Apache-2.0
// `mica info`: what this build is and what it finds on this machine; with --matrix, what it supports.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include "cli/attention/flash_attn.h"
#include "cli/attention/problem.h"
#include "cli/attention/support_matrix.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "doctor/system/outlook.h"

namespace cli {
namespace {

struct Options {
  bool json = false;
  bool matrix = false;
};

std::string library_path() {
  Dl_info found = {};
  if (!dladdr(reinterpret_cast<void*>(&mica_version), &found) || !found.dli_fname) return "";
  char* resolved = realpath(found.dli_fname, nullptr);
  const std::string path = resolved ? resolved : found.dli_fname;
  std::free(resolved);
  return path;
}

nlohmann::json backend_report(mica_backend backend, const char* name) {
  nlohmann::json report = {{"backend", name}, {"devices", nlohmann::json::array()}};
  const int count = mica_device_count(backend);
  if (count == 0) report["why_not"] = mica_last_error();
  for (int ordinal = 0; ordinal < count; ++ordinal)
    if (const char* text = mica_device_description({backend, ordinal})) report["devices"].push_back(text);
  return report;
}

// Kernels are named cpu/<instruction set>/<what>: asking for a plain problem of each type shows which sets there are,
// which of them this machine has, and which one a plan takes.
nlohmann::json instruction_sets() {
  std::vector<std::string> order;
  std::map<std::string, nlohmann::json> sets;
  for (const char* dtype : {"fp32", "fp16", "bf16"}) {
    ProblemSpec spec;
    spec.dtype = dtype;
    const mica_attention description = describe(spec);
    const std::string chosen = mica::Plan(description).kernel();
    for (const mica::KernelAnswer& answer : mica::list_kernels(description)) {
      const std::size_t begin = answer.kernel.find('/') + 1, end = answer.kernel.find('/', begin);
      const std::string set = answer.kernel.substr(begin, end - begin);
      if (!sets.count(set)) {
        order.push_back(set);
        sets[set] = {
            {"name", set}, {"available", false}, {"why_not", answer.why_not}, {"chosen_for", nlohmann::json::array()}};
      }
      if (answer.why_not.empty()) {
        sets[set]["available"] = true;
        sets[set].erase("why_not");
      }
      if (answer.kernel == chosen) sets[set]["chosen_for"].push_back(dtype);
    }
  }
  nlohmann::json list = nlohmann::json::array();
  for (const std::string& set : order) list.push_back(sets[set]);
  return list;
}

int run(const Options& options) {
  if (options.matrix) {
    if (options.json)
      std::printf("%s\n", support_matrix_json().dump(2).c_str());
    else
      std::printf("%s", support_matrix_markdown().c_str());
    return kOk;
  }
  nlohmann::json out = {
      {"version", mica_version()},
      {"abi_version", mica_abi_version()},
      {"library", library_path()},
      {"compiler", MICA_CLI_COMPILER},
      {"build_type", MICA_CLI_BUILD_TYPE},
      {"architecture", MICA_CLI_ARCHITECTURE},
      {"threads", mica_get_num_threads()},
      {"threads_from", mica_threads_from()},
      {"backends", {backend_report(MICA_CPU, "cpu"), backend_report(MICA_CUDA, "cuda")}},
      {"instruction_sets", instruction_sets()},
  };
  if (const char* forced = std::getenv("MICA_CPU_ISA")) out["MICA_CPU_ISA"] = forced;
  out.update(find_flash_attn(doctor::outlook_here(), library_path(), MICA_CLI_ARCHITECTURE));
  if (options.json) {
    std::printf("%s\n", out.dump(2).c_str());
    return kOk;
  }
  std::printf("mica %s, C interface %u\n", mica_version(), mica_abi_version());
  std::printf("build      %s, %s, %s\n", MICA_CLI_BUILD_TYPE, MICA_CLI_COMPILER, MICA_CLI_ARCHITECTURE);
  std::printf("library    %s\n", library_path().c_str());
  std::printf("threads    %d, %s\n", mica_get_num_threads(), mica_threads_from());
  if (out.contains("MICA_CPU_ISA"))
    std::printf("forced     MICA_CPU_ISA=%s\n", out["MICA_CPU_ISA"].get<std::string>().c_str());
  for (const auto& backend : out["backends"]) {
    const std::string name = backend["backend"];
    for (std::size_t i = 0; i < backend["devices"].size(); ++i)
      std::printf("%-9s  %s\n", format("%s:%zu", name.c_str(), i).c_str(),
                  backend["devices"][i].get<std::string>().c_str());
    if (backend["devices"].empty())
      std::printf("%-9s  none: %s\n", name.c_str(), backend["why_not"].get<std::string>().c_str());
  }
  std::printf("%s", flash_attn_text(out).c_str());
  Table table({"instruction set", "here", "chosen for"});
  for (const auto& set : out["instruction_sets"]) {
    std::string chosen;
    for (const auto& dtype : set["chosen_for"]) chosen += (chosen.empty() ? "" : ", ") + dtype.get<std::string>();
    table.add({set["name"], set["available"] ? "yes" : "no: " + set["why_not"].get<std::string>(), chosen});
  }
  std::printf("\n%s", table.text().c_str());
  return kOk;
}

}  // namespace

Verb info_verb(Command& app) {
  auto options = std::make_shared<Options>();
  Command* verb =
      app.add_subcommand("info", "This build, its backends, instruction sets and devices; which flash_attn is active");
  verb->add_flag("--json", options->json, "print JSON");
  verb->add_flag("--matrix", options->matrix, "print which options the CPU backend supports, as a Markdown table");
  verb->footer(
      "Examples:\n"
      "  mica info\n"
      "  MICA_CPU_ISA=neon mica info --json\n"
      "  mica info --matrix");
  return {verb, [options] { return run(*options); }};
}

}  // namespace cli
