// SPDX-License-Identifier: Apache-2.0
// `mica doctor`: this environment, and what the loader will say of a file or an installed package in it.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/doctor/judging.h"
#include "cli/process.h"
#include "cli/verbs.h"
#include "doctor/judge/build_verdicts.h"
#include "doctor/judge/installed.h"
#include "doctor/judge/judge.h"
#include "doctor/read/inspect.h"
#include "doctor/report/report.h"
#include "doctor/report/report_html.h"
#include "doctor/report/report_json.h"
#include "doctor/system/environment_json.h"
#include "doctor/system/package.h"
#include "doctor/verdict/catalogue.h"
#include "doctor/verdict/verdict_json.h"
#include "support/package_name.h"
#include "support/text.h"

namespace cli {
namespace {

struct Options {
  std::vector<std::string> files;
  std::string python, target, export_file, html;
  bool build = false, json = false, strict = false;
};

void write_file(const char* flag, const std::string& path, const std::string& text) {
  namespace fs = std::filesystem;
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  const bool is_open = file.is_open();
  file << text;
  file.close();
  if (file) return;
  const std::string reason = errno ? std::string(": ") + std::strerror(errno) : "";
  // Half of it would be taken for the whole.
  std::error_code ignored;
  if (is_open && fs::is_regular_file(path, ignored)) fs::remove(path, ignored);
  throw std::runtime_error(std::string(flag) + " " + path + " cannot be written" + reason);
}

bool is_source_package(const std::string& path) { return path.ends_with(".tar.gz") || path.ends_with(".tgz"); }

bool begins_as_gzip(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return file.get() == 0x1f && file.get() == 0x8b;
}

// The source of a project other than flash-attn: what `mica build` decides and says of it, without building.
std::vector<doctor::Verdict> judge_source(const std::string& file, const doctor::PythonInstall& python) {
  const ChildResult said = run_self({"build", file, "--dry-run", "--json", "--python", python.program});
  const nlohmann::json plan = nlohmann::json::parse(said.output, nullptr, false);
  if (!plan.is_object() || !plan.contains("verdicts"))
    throw std::runtime_error(file + " cannot be judged: mica build " + file + " --dry-run says why");
  std::vector<doctor::Verdict> out;
  for (const nlohmann::json& one : plan["verdicts"]) {
    const doctor::VerdictKind* kind = doctor::find_verdict_kind(one.value("code", ""));
    doctor::Verdict verdict =
        doctor::make_verdict({.code = kind ? kind->code : doctor::VerdictCode(doctor::Code::NOT_KNOWN),
                              .subject = one.value("subject", ""),
                              .message = one.value("message", ""),
                              .cause = one.value("cause", ""),
                              .fix = one.value("fix", ""),
                              .evidence = one.value("evidence", std::vector<std::string>{})});
    for (const doctor::Severity severity :
         {doctor::Severity::kNote, doctor::Severity::kWarning, doctor::Severity::kError})
      if (one.value("severity", "") == doctor::severity_name(severity)) verdict.severity = severity;
    out.push_back(std::move(verdict));
  }
  return out;
}

// A file, or a package that is installed: its name, or a folder of it.
doctor::Judged judge_one(const std::string& given, const doctor::Environment& target, const std::string& target_name,
                         const doctor::Survey* survey, const doctor::PythonInstall* python) {
  if (survey && python) {
    const bool exists = access(given.c_str(), F_OK) == 0;
    const auto* named = exists ? nullptr : python->package(support::normalised_package(given));
    if (named) return judge_package(*survey, *python, *named, target);
    const doctor::Outlook& outlook = survey->outlook;
    const auto package = doctor::package_at(outlook.files, support::join_path(outlook.folder, given));
    if (package) return judge_package(*survey, *python, *package, target);
  }
  if (survey && may_be_package(given) && !is_source_package(given)) throw no_such_package(given, python);
  doctor::Judged judged{given, target_name, {}};
  if (!survey) {
    // As if it were moved to the target.
    const doctor::Outlook here = doctor::outlook_here();
    if (const auto package = doctor::package_at(here.files, support::join_path(here.folder, given))) {
      judged.verdicts = judge(doctor::inspect_package(here.files, *package), target);
      return judged;
    }
  }
  if (is_source_package(given)) {
    if (access(given.c_str(), R_OK) != 0) throw std::runtime_error(given + " cannot be read");
    if (!survey || !python)
      throw std::runtime_error(given + " is a source package: a build is judged on its own machine");
    if (!begins_as_gzip(given))
      throw std::runtime_error(given + " is no source archive: it does not begin as gzip does");
    const std::string name = support::base_name(given);
    const bool is_flash_attn = name.starts_with("flash_attn-") || name.starts_with("flash-attn-");
    judged.verdicts = is_flash_attn ? judge_build(*survey, *python) : judge_source(given, *python);
  } else {
    ProgressLine progress;
    judged.verdicts = judge(doctor::inspect(given, progress.callback()), target);
  }
  return judged;
}

struct Outcome {
  std::vector<doctor::ReportSection> sections;
  std::vector<doctor::Judged> judged;
  nlohmann::json environment;
  std::vector<doctor::Judged> unread;  // could not be looked at

  void judge_all(const std::vector<std::string>& files, const doctor::Environment& target, const std::string& name,
                 const doctor::Survey* survey, const doctor::PythonInstall* python) {
    for (const std::string& file : files) {
      try {
        judged.push_back(judge_one(file, target, name, survey, python));
      } catch (const std::exception& e) {
        unread.push_back({file, name, {unreadable(file, e)}});
      }
    }
  }
};

Outcome in_described_target(const Options& options) {
  const doctor::Environment target = doctor::read_environment(options.target);
  if (options.files.empty()) throw std::runtime_error("--target wants files to judge");
  Outcome out{describe(target), {}, {{"target", options.target}}, {}};
  out.judge_all(options.files, target, options.target, nullptr, nullptr);
  return out;
}

Outcome here(const Options& options) {
  doctor::Survey survey = doctor::survey(doctor::outlook_here());
  const doctor::PythonInstall* python = wanted_python(survey, options.python);
  const doctor::Environment target = environment_of(survey, python);
  Outcome out;
  out.sections = describe(survey);
  out.environment = as_json(survey);
  if (!options.export_file.empty()) write_file("--export", options.export_file, export_environment(target));
  const std::string name = python ? python->program : target.name;
  out.judge_all(options.files, target, name, &survey, python);
  if (options.files.empty() && python) out.judged = judge_installed(survey, *python, target);
  if (!python)
    out.unread.push_back(
        {target.name,
         "",
         {doctor::make_verdict({.code = "CANNOT_TELL",
                                .subject = target.name,
                                .message = "no Python was found",
                                .cause = "Packages are judged for a Python; none is on PATH or in the usual folders.",
                                .fix = "mica doctor --python PATH"})}});
  if (options.build) {
    if (!python) throw std::runtime_error("--build wants a Python, and none was found");
    out.judged.push_back({"building flash-attn from source", name, judge_build(survey, *python)});
  }
  return out;
}

std::vector<doctor::Verdict> all_verdicts(const std::vector<doctor::Judged>& judged) {
  std::vector<doctor::Verdict> out;
  for (const doctor::Judged& item : judged) out.insert(out.end(), item.verdicts.begin(), item.verdicts.end());
  return out;
}

int run(const Options& options) {
  Outcome outcome = options.target.empty() ? here(options) : in_described_target(options);
  if (!options.strict)
    for (doctor::Judged& judged : outcome.judged) doctor::keep_to_the_import(judged.verdicts);
  std::vector<doctor::Judged> all = outcome.judged;
  all.insert(all.end(), outcome.unread.begin(), outcome.unread.end());
  const std::vector<doctor::Verdict> verdicts = all_verdicts(all);
  // With files, the answer is about them; the environment is in --json and --html.
  const bool brief = !options.files.empty();
  if (!options.html.empty()) write_file("--html", options.html, report_html("mica doctor", outcome.sections, all));
  if (options.json) {
    const nlohmann::json out = {{"environment", outcome.environment},
                                {"judged", as_json(all)},
                                {"tables", doctor::tables_json()},
                                {"verdicts", doctor::as_json(verdicts)},
                                {"exit_code", int(exit_code(verdicts))}};
    std::printf("%s\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    const std::vector<doctor::ReportSection> none;
    std::printf("%s", report_text(brief ? none : outcome.sections, outcome.judged, isatty(STDOUT_FILENO)).c_str());
    for (const doctor::Verdict& verdict : all_verdicts(outcome.unread))
      std::fprintf(stderr, "mica doctor: %s\n", support::printable(verdict.message, 2000).c_str());
  }
  return exit_code(verdicts);
}

}  // namespace

Verb doctor_verb(Command& app) {
  auto options = std::make_shared<Options>();
  Command* verb =
      app.add_subcommand("doctor", "This environment, and whether a wheel or an installed package loads in it");
  verb->add_option("file", options->files, "wheels, .so files, folders, or names of installed packages");
  verb->add_option("--python", options->python, "judge for this Python (a program or its environment's folder)");
  verb->add_option("--target", options->target, "judge for the machine that --export described");
  verb->add_option("--export", options->export_file,
                   "describe this machine and Python in a file, for --target elsewhere")
      ->excludes("--target");
  verb->add_flag("--build", options->build, "also what a build of flash-attn from source would meet")
      ->excludes("--target");
  verb->add_flag("--strict", options->strict,
                 "what does not stop an import (tags, RECORD, symbols beyond abi3) counts as an error too");
  verb->add_option("--html", options->html, "write one page to attach to a ticket");
  verb->add_flag("--json", options->json, "print JSON");
  verb->footer(
      "Nothing that is found is started or imported.\n"
      "Examples:\n"
      "  mica doctor                                        the environment and its installed packages\n"
      "  mica doctor flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl\n"
      "  mica doctor flash-attn --python ~/venv             an installed package\n"
      "  mica doctor --export node.json                     there; then here: mica doctor --target node.json FILE.whl\n"
      "Exit codes: 0 loads, or nothing is wrong; 1 it will fail; 2 it cannot be told.");
  return {verb, [options] { return run(*options); }};
}

}  // namespace cli
