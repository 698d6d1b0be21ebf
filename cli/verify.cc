// SPDX-License-Identifier: Apache-2.0
// `mica verify`: everything on a shared folder, looked at again.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "builder/shelf.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "doctor/inspect.h"
#include "doctor/json.h"

namespace cli {
namespace {

struct Options {
  std::string folder;
  bool quarantine = false, json = false;
};

nlohmann::json report_json(const builder::ShelfReport& report) {
  nlohmann::json out = {{"wheels", nlohmann::json::array()}, {"verdicts", doctor::as_json(report.verdicts)}};
  for (const builder::ShelfEntry& entry : report.entries)
    out["wheels"].push_back({{"wheel", entry.wheel},
                             {"sha256", entry.sha256},
                             {"size", entry.size},
                             {"ok", !entry.bad()},
                             {"pretender", entry.pretender},
                             {"quarantined", entry.quarantined},
                             {"verdicts", doctor::as_json(entry.verdicts)}});
  return out;
}

void print_report(const builder::ShelfReport& report, const Options& options) {
  std::size_t good = 0;
  for (const builder::ShelfEntry& entry : report.entries) {
    good += !entry.bad();
    std::printf("%-4s  %s  %s\n", entry.bad() ? "BAD" : "ok", entry.wheel.c_str(),
                format_bytes(double(entry.size)).c_str());
    for (const doctor::Verdict& verdict : entry.verdicts)
      if (verdict.severity != doctor::Severity::kNote) std::printf("%s", doctor::verdict_text(verdict, false).c_str());
    if (!entry.quarantined.empty())
      std::printf("  set aside: %s\n", entry.quarantined.c_str());
    else if (entry.pretender && !options.quarantine)
      std::printf("  it claims compiled code and holds none; mica verify --quarantine sets it aside\n");
  }
  for (const doctor::Verdict& verdict : report.verdicts)
    std::printf("%s", doctor::verdict_text(verdict, false).c_str());
  std::printf("%zu of %zu wheels are good\n", good, report.entries.size());
}

int run(const Options& options) {
  const builder::Judge judge = [](const std::string& path) { return doctor::judge(doctor::inspect(path)); };
  const builder::ShelfReport report = builder::verify(options.folder, judge, options.quarantine);
  if (options.json)
    std::printf("%s\n", report_json(report).dump(2).c_str());
  else
    print_report(report, options);
  for (const builder::ShelfEntry& entry : report.entries)
    if (entry.bad()) return kFailed;
  return doctor::exit_code_of(report.verdicts) ? kFailed : kOk;
}

}  // namespace

Verb verify_verb(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("verify", "Check every wheel in a shared folder again");
  verb->add_option("folder", options->folder, "where `mica publish` put them")->required()->type_name("DIR");
  verb->add_flag("--quarantine", options->quarantine,
                 "move wheels that claim compiled code and hold none into DIR/quarantine");
  verb->add_flag("--json", options->json, "print JSON");
  verb->footer(
      "Compares each wheel with the hash that was recorded when it was published, and looks at it as `mica inspect`\n"
      "does. Names wheels of unknown origin, a stale index and what an interrupted publisher left.\n"
      "Examples:\n"
      "  mica verify /shared/wheels\n"
      "  mica verify /shared/wheels --quarantine --json\n"
      "Exit codes: 0 all are good; 1 at least one is not; 2 the folder could not be read.");
  return {verb, [options] { return run(*options); }};
}

}  // namespace cli
