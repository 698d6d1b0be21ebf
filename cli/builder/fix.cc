// SPDX-License-Identifier: Apache-2.0
// `mica fix`: from a wish to an environment where it holds, or to the environment as it was.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "builder/install/choose.h"
#include "builder/install/install.h"
#include "cli/doctor/judging.h"
#include "cli/process.h"
#include "cli/verbs.h"
#include "doctor/explain/explain.h"
#include "jupyter/running.h"
#include "support/text.h"

namespace cli {
namespace {

using Kind = builder::FixChoice::Kind;

struct Options {
  std::vector<std::string> wish, folders;
  std::string python, architectures;
  bool slurm = false;
  bool dry_run = false, yes = false, undo = false, json = false;
};

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kNothing: return "nothing";
    case Kind::kDropIn: return "drop-in";
    case Kind::kWheel: return "wheel";
    case Kind::kBuild: return "build";
    case Kind::kRefused: return "refused";
  }
  return "refused";
}

bool is_agreed(const Options& options) {
  if (options.yes) return true;
  if (!isatty(STDIN_FILENO))
    throw std::runtime_error("nobody is there to be asked: give --yes, or --dry-run to look only");
  std::printf("do it? [y/N] ");
  std::fflush(stdout);
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "yes";
}

nlohmann::json as_json(const builder::FixChoice& choice, const builder::InstallOutcome& outcome, bool done) {
  return {{"choice", name_of(choice.kind)},
          {"package", choice.package},
          {"wheels", choice.wheels},
          {"why", choice.why},
          {"done", done},
          {"replaced", outcome.replaced},
          {"imported", outcome.imported},
          {"error", outcome.error},
          {"site", outcome.site}};
}

void explain_failure(const builder::InstallOutcome& outcome, const doctor::Environment& here) {
  std::printf("failed   %s; the environment is as it was\n", support::printable(outcome.error, 2000).c_str());
  const doctor::Explanation explanation = doctor::explain(outcome.log, &here);
  if (!explanation.verdicts.empty())
    std::printf("%s", doctor::verdict_text(explanation.verdicts[0], isatty(STDOUT_FILENO)).c_str());
  else if (const std::string line = doctor::likely_error_line(outcome.log); !line.empty())
    std::printf("said     %s\n", line.c_str());
}

int run(const Options& options) {
  doctor::Survey survey = doctor::survey(doctor::outlook_here());
  const doctor::PythonInstall* python = wanted_python(survey, options.python);
  if (!python) throw std::runtime_error("no Python was found: give --python PATH");
  if (options.undo) {
    const bool was_there = builder::undo_unfinished(*python);
    std::printf("%s\n", was_there ? "undone: the environment is as it was" : "there was nothing to undo");
    return kOk;
  }
  if (options.wish.empty())
    throw std::runtime_error("want a package such as flash-attn, or a wheel (see mica fix --help)");
  // What an interrupted one left would be judged as if it were meant.
  if (!options.dry_run && builder::undo_unfinished(*python)) {
    if (!options.json) std::printf("undone   what an interrupted installation had left\n");
    survey = doctor::survey(doctor::outlook_here());
    python = wanted_python(survey, options.python);
  }
  std::vector<std::string> folders = options.folders;
  if (folders.empty()) folders = {".", "dist", "wheels"};
  const builder::FixChoice choice = builder::choose_fix(support::joined(options.wish, " "), folders, survey, *python);
  builder::InstallOutcome outcome;
  const bool installs = choice.kind == Kind::kDropIn || choice.kind == Kind::kWheel;
  if (!options.json) {
    for (const std::string& line : choice.why) std::printf("why      %s\n", support::printable(line, 2000).c_str());
    std::printf("choice   %s\n", name_of(choice.kind));
    for (const std::string& wheel : choice.wheels)
      std::printf("install  %s\n", support::printable(wheel, 2000).c_str());
    if (installs) std::printf("into     %s\n", builder::site_of(*python).c_str());
  }
  nlohmann::json build;
  bool is_done = choice.kind == Kind::kNothing;
  int code = choice.kind == Kind::kRefused ? kFailed : kOk;
  if (!options.dry_run && installs && is_agreed(options)) {
    builder::InstallRequest request;
    request.python = *python;
    request.wheels = choice.wheels;
    if (!options.json) request.say = [](const std::string& line) { std::printf("         %s\n", line.c_str()); };
    outcome = builder::install_wheels(request);
    is_done = outcome.installed;
    code = is_done ? kOk : kFailed;
    if (!options.json && !is_done) explain_failure(outcome, environment_of(survey, python));
    if (!options.json && is_done) {
      for (const std::string& old : outcome.replaced) std::printf("replaced %s\n", old.c_str());
      std::printf("done     %s imported in a new process\n", support::joined(outcome.imported, ", ").c_str());
      for (const jupyter::RunningKernel& kernel : jupyter::running_kernels(support::Files()))
        for (const doctor::Verdict& verdict : jupyter::judge_running(kernel))
          std::printf("%s", doctor::verdict_text(verdict, isatty(STDOUT_FILENO)).c_str());
    }
  } else if (choice.kind == Kind::kBuild && (options.dry_run || is_agreed(options))) {
    std::vector<std::string> words = {"build", choice.package, "--python", python->program};
    words.push_back(options.dry_run ? "--dry-run" : "--install");
    if (options.slurm) words.push_back("--slurm");
    if (!options.architectures.empty()) words.insert(words.end(), {"--arch", options.architectures});
    if (options.json) {
      words.push_back("--json");
      const ChildResult built = run_self(words);
      build = nlohmann::json::parse(built.output, nullptr, false);
      code = built.exit_code;
    } else {
      code = show_self(words);
    }
    is_done = !options.dry_run && code == kOk;
    if (options.dry_run) code = kOk;  // the choice is made; whether the build can work is in its plan
  }
  if (options.json) {
    nlohmann::json out = as_json(choice, outcome, is_done);
    if (!build.is_null()) out["build"] = build;
    out["exit_code"] = code;
    std::printf("%s\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }
  return code;
}

}  // namespace

Verb fix_verb(Command& app) {
  auto options = std::make_shared<Options>();
  Command* verb = app.add_subcommand("fix", "Make a package work in this environment, or leave it as it was");
  verb->add_option("wish", options->wish, "a package (flash-attn), a sentence with one in it, or a wheel");
  verb->add_option("--from", options->folders, "where wheels are looked for (default: here, dist and wheels)");
  verb->add_option("--python", options->python,
                   "the environment (a program or its folder); without it, the active one");
  verb->add_option("--arch", options->architectures, "GPUs that a build is for, as in 8.0,9.0 (see mica build)");
  verb->add_flag("--slurm", options->slurm, "build as a job of Slurm (see mica build)");
  verb->add_flag("--dry-run", options->dry_run, "only say what would be done, and why");
  verb->add_flag("--yes", options->yes, "do not ask");
  verb->add_flag("--undo", options->undo, "only undo what an interrupted one left");
  verb->add_flag("--json", options->json, "print JSON");
  verb->footer(
      "Mica's drop-in where it serves; else a wheel at hand that loads by its symbols; else a build. What is chosen "
      "is\n"
      "unpacked beside the environment and imported there first, then exchanged for what it replaces as a whole, and\n"
      "imported once more; if anything fails, or the program is killed, the environment is as before.\n"
      "Examples:\n"
      "  mica fix flash-attn --dry-run\n"
      "  mica fix flash-attn --from /srv/wheels --yes\n"
      "  mica fix ./causal_conv1d-1.5.0-cp312-cp312-linux_x86_64.whl --python ~/venv\n"
      "Exit codes: 0 it works now; 1 it does not, and nothing was changed; 2 it could not be tried.");
  return {verb, [options] { return run(*options); }};
}

}  // namespace cli
