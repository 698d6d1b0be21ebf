// SPDX-License-Identifier: Apache-2.0
// `mica verify`: everything on a shared folder, looked at again.
#include "builder/shelf/verify.h"

#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "builder/shelf/publish.h"
#include "builder/shelf/shelf_index.h"
#include "cli/builder/wheel_facts.h"
#include "cli/json_text.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "doctor/judge/judge.h"
#include "doctor/read/inspect.h"
#include "doctor/report/inspection_json.h"
#include "doctor/system/environment_json.h"
#include "doctor/system/survey.h"
#include "doctor/verdict/verdict_json.h"
#include "support/text.h"

namespace cli {
namespace {

struct Options {
  std::string folder, python, target;
  bool quarantine = false, record = false, json = false;
};

// What a wheel does on this node (or in the target): beside the question whether the file itself is good.
struct Here {
  std::vector<doctor::Verdict> verdicts;
  builder::MatrixLine line;
  bool loads() const { return doctor::exit_code_of(verdicts) == 0; }
};

doctor::Environment environment(const Options& options) {
  if (!options.target.empty()) return doctor::read_environment(options.target);
  doctor::Survey survey = doctor::survey(doctor::outlook_here());
  const doctor::PythonInstall* python =
      options.python.empty() ? doctor::default_python(survey) : doctor::find_python(survey, options.python);
  if (!python && !options.python.empty())
    throw std::runtime_error("--python is " + support::printable(options.python) + ", which is no Python");
  doctor::Environment out = doctor::environment_of(survey, python);
  out.name = python ? python->program : "this machine";
  return out;
}

builder::MatrixLine line_here(const doctor::Inspection& inspection, const Here& here, const doctor::Environment& env) {
  builder::MatrixLine line = line_of_wheel(inspection, here.verdicts);
  if (env.torch) {
    line.torch = env.torch->version;
    if (!env.torch->cuda_version.empty()) line.cuda = env.torch->cuda_version;
  }
  if (!env.gpus.empty()) line.gpu = env.gpus[0].name;
  return line;
}

std::string first_error(const std::vector<doctor::Verdict>& verdicts) {
  for (const doctor::Verdict& verdict : verdicts)
    if (verdict.severity == doctor::Severity::kError) return verdict.code.text() + ": " + verdict.message;
  return "";
}

nlohmann::json report_json(const builder::ShelfReport& report, const std::map<std::string, Here>& here,
                           const doctor::Environment& env) {
  nlohmann::json out = {
      {"wheels", nlohmann::json::array()}, {"environment", env.name}, {"verdicts", doctor::as_json(report.verdicts)}};
  for (const builder::ShelfEntry& entry : report.entries) {
    nlohmann::json wheel = {{"wheel", entry.wheel},
                            {"sha256", entry.sha256},
                            {"size", entry.size},
                            {"ok", !entry.bad()},
                            {"pretender", entry.pretender},
                            {"quarantined", entry.quarantined},
                            {"verdicts", doctor::as_json(entry.verdicts)}};
    if (const auto found = here.find(entry.wheel); found != here.end())
      wheel["here"] = {{"loads", found->second.loads()}, {"verdicts", doctor::as_json(found->second.verdicts)}};
    out["wheels"].push_back(std::move(wheel));
  }
  return out;
}

void print_report(const builder::ShelfReport& report, const std::map<std::string, Here>& here,
                  const doctor::Environment& env, bool quarantine) {
  // Whoever may write there chose the names.
  const auto shown = [](const std::string& text) { return support::printable(text, 8000); };
  std::printf("judged for %s\n", shown(env.name).c_str());
  std::size_t good = 0;
  for (const builder::ShelfEntry& entry : report.entries) {
    good += !entry.bad();
    std::printf("%-4s  %s  %s\n", entry.bad() ? "BAD" : "ok", shown(entry.wheel).c_str(),
                format_bytes(double(entry.size)).c_str());
    for (const doctor::Verdict& verdict : entry.verdicts)
      if (verdict.severity != doctor::Severity::kNote) std::printf("%s", doctor::verdict_text(verdict, false).c_str());
    if (const auto found = here.find(entry.wheel); found != here.end() && !entry.bad())
      std::printf("      here: %s\n",
                  found->second.loads() ? "loads" : shown(first_error(found->second.verdicts)).c_str());
    if (!entry.quarantined.empty())
      std::printf("  set aside: %s\n", shown(entry.quarantined).c_str());
    else if (entry.pretender && !quarantine)
      std::printf("  it claims compiled code and holds none; mica verify --quarantine sets it aside\n");
  }
  for (const doctor::Verdict& verdict : report.verdicts)
    std::printf("%s", doctor::verdict_text(verdict, false).c_str());
  std::printf("%zu of %zu wheels are good\n", good, report.entries.size());
}

void record(const std::string& folder, const builder::ShelfReport& report, const std::map<std::string, Here>& here) {
  for (const builder::ShelfEntry& entry : report.entries) {
    const auto found = here.find(entry.wheel);
    if (entry.bad() || found == here.end()) continue;
    builder::MatrixLine line = found->second.line;
    line.wheel = entry.wheel;
    line.sha256 = entry.sha256;
    line.host = builder::host_name();
    line.time = builder::utc_time_now();
    builder::record_line(folder, line);
  }
  builder::rebuild_derived(folder);
}

int run(const Options& options) {
  const doctor::Environment env = environment(options);
  std::map<std::string, Here> here;
  const builder::Judge judge = [&](const std::string& path) {
    const doctor::Inspection inspection = doctor::inspect(path);
    Here& found = here[support::base_name(path)];
    found.verdicts = doctor::judge(inspection, env);
    found.line = line_here(inspection, found, env);
    return doctor::judge(inspection);
  };
  const builder::ShelfReport report = builder::verify(options.folder, judge, options.quarantine);
  if (options.json)
    std::printf("%s", json_text(report_json(report, here, env)).c_str());
  else
    print_report(report, here, env, options.quarantine);
  // After the report, which took minutes and is good also where nothing can be written.
  if (options.record) record(options.folder, report, here);
  for (const builder::ShelfEntry& entry : report.entries)
    if (entry.bad()) return kFailed;
  return doctor::exit_code_of(report.verdicts) ? kFailed : kOk;
}

}  // namespace

Verb verify_verb(Command& app) {
  auto options = std::make_shared<Options>();
  Command* verb = app.add_subcommand("verify", "Check every wheel in a shared folder again");
  verb->add_option("folder", options->folder, "where `mica publish` put them")->required()->type_name("DIR");
  verb->add_option("--python", options->python, "judge for this Python (default: the active one)")->type_name("PATH");
  verb->add_option("--target", options->target, "judge for the environment that mica doctor --export wrote")
      ->type_name("FILE");
  verb->add_flag("--quarantine", options->quarantine,
                 "move wheels that claim compiled code and hold none into DIR/quarantine");
  verb->add_flag("--record", options->record, "add what was found for this node to DIR/matrix.jsonl");
  verb->add_flag("--json", options->json, "print JSON");
  verb->footer(
      "Compares each wheel with the hash that was recorded when it was published, looks at it as `mica inspect` does,\n"
      "and says whether it loads on this node: a good wheel for another Python or torch is still a good wheel. Names\n"
      "wheels of unknown origin, a stale index and what an interrupted publisher left.\n"
      "Examples:\n"
      "  mica verify /shared/wheels\n"
      "  mica verify /shared/wheels --python /env/bin/python --record\n"
      "  mica verify /shared/wheels --quarantine --json\n"
      "Exit codes: 0 all are good; 1 at least one is not; 2 the folder could not be read.");
  return {verb, [options] { return run(*options); }};
}

}  // namespace cli
